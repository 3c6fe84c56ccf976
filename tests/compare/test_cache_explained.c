/* Attention that reads other rows of its cache than were written. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/compare/guess_bench.h"
#include "tests/compare/said.h"

typedef void (*change_rows)(float *rows, const float *right, const fd_op_args *args, int64_t width, int32_t own);

/* Row by row, since each row may find another cache. */
static void read_from(const fd_op_args *args, change_rows change) {
    const fd_node *nodes = args->graph->nodes, *cache = &nodes[args->node->input[1]];
    const int64_t width = fd_node_width(cache), n = width * args->n_kv;
    const int64_t in = fd_node_row_stride(&nodes[args->node->input[0]], args->n_kv);
    float *rows = malloc(sizeof *rows * (size_t)n);
    cr_assert(rows);
    for (int32_t r = 0; r < args->n_pos; r++) {
        fd_op_args own = *args;
        memcpy(rows, args->in[1], sizeof *rows * (size_t)n);
        change(rows, args->in[1], args, width, args->pos0 + r);
        own.pos0 += r;
        own.n_pos = 1;
        own.in[0] = (const float *)args->in[0] + r * in;
        own.in[1] = rows;
        own.out = (float *)args->out + r * fd_node_row_stride(args->node, args->n_kv);
        run_clean(&own);
    }
    free(rows);
}

static void one_before(float *rows, const float *right, const fd_op_args *args, int64_t width, int32_t own) {
    (void)own;
    memcpy(rows + width, right, sizeof *rows * (size_t)((args->n_kv - 1) * width));
}
/* One slot too far: past the last one nobody wrote. */
static void one_after(float *rows, const float *right, const fd_op_args *args, int64_t width, int32_t own) {
    (void)own;
    memcpy(rows, right + width, sizeof *rows * (size_t)((args->n_kv - 1) * width));
    memset(rows + (args->n_kv - 1) * width, 0, sizeof *rows * (size_t)width);
}
static void in_ring_of_5(float *rows, const float *right, const fd_op_args *args, int64_t width, int32_t own) {
    (void)args;
    for (int64_t p = 5; p <= own; p++) memcpy(rows + p % 5 * width, right + p * width, sizeof *rows * (size_t)width);
}
/* Scores of zeros are those of a mask that makes them 0; what V's zeros add tells. */
static void without_6(float *rows, const float *right, const fd_op_args *args, int64_t width, int32_t own) {
    (void)right, (void)args;
    if (own > 6) memset(rows + 6 * width, 0, sizeof *rows * (size_t)width);
}
static void another_run(float *rows, const float *right, const fd_op_args *args, int64_t width, int32_t own) {
    (void)right, (void)own;
    for (int64_t i = 2 * width; i < 5 * width && i < args->n_kv * width; i++) rows[i] = sinf((float)(i % 97));
}

/* From position 3 on, and place 3 has what stood there before. */
static void one_place_late(float *rows, const float *right, const fd_op_args *args, int64_t width, int32_t own) {
    (void)own;
    for (int64_t p = 4; p < args->n_kv; p++)
        memcpy(rows + p * width, right + (p - 1) * width, sizeof *rows * (size_t)width);
    for (int64_t i = 3 * width; i < 4 * width && args->n_kv > 3; i++) rows[i] = sinf((float)(i % 97));
}
static void own_not_written_yet(float *rows, const float *right, const fd_op_args *args, int64_t width, int32_t own) {
    (void)right;
    for (int64_t i = own * width; i < (own + 1) * width && args->n_pos == 1; i++) rows[i] = cosf((float)(i % 89));
}

static void shifted(const fd_op_args *args) {
    read_from(args, one_before);
}
static void too_far(const fd_op_args *args) {
    read_from(args, one_after);
}
static void ring(const fd_op_args *args) {
    read_from(args, in_ring_of_5);
}
static void lost(const fd_op_args *args) {
    read_from(args, without_6);
}
static void stale(const fd_op_args *args) {
    read_from(args, another_run);
}

static void late(const fd_op_args *args) {
    read_from(args, one_place_late);
}
static void own_stale(const fd_op_args *args) {
    read_from(args, own_not_written_yet);
}

static fd_node *mix_of(const fd_graph *g, const fd_node *scores) {
    for (int32_t i = scores->id; i < g->n_node; i++)
        if (g->nodes[i].op == FD_OP_ATTN_MIX && g->nodes[i].layer == scores->layer) return &g->nodes[i];
    cr_assert(false, "%s: no attn_out", scores->name);
    return NULL;
}

static void v_one_before(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = shifted;
}
static void both_too_far(fd_graph *g, fd_node *n) {
    n->override = mix_of(g, n)->override = too_far;
}
static void short_ring(fd_graph *g, fd_node *n) {
    n->override = mix_of(g, n)->override = ring;
}
static void lost_row(fd_graph *g, fd_node *n) {
    n->override = mix_of(g, n)->override = lost;
}
static void stale_rows(fd_graph *g, fd_node *n) {
    n->override = mix_of(g, n)->override = stale;
}
static void late_rows(fd_graph *g, fd_node *n) {
    n->override = mix_of(g, n)->override = late;
}
static void own_rows(fd_graph *g, fd_node *n) {
    n->override = mix_of(g, n)->override = own_stale;
}
static void stale_values(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = stale;
}
/* The first three of K are V's, which the node that writes them has kept. */
static float first_of_v[3 * 256];
static void write_and_keep(const fd_op_args *args) {
    const size_t size = sizeof *first_of_v * (size_t)(3 * fd_node_width(args->node));
    cr_assert_leq(size, sizeof first_of_v);
    run_clean(args);
    memcpy(first_of_v, args->out, size);
}
static void as_v(float *rows, const float *right, const fd_op_args *args, int64_t width, int32_t own) {
    (void)right, (void)args, (void)own;
    memcpy(rows, first_of_v, sizeof *rows * (size_t)(3 * width));
}
static void first_three_of_v(const fd_op_args *args) {
    read_from(args, as_v);
}
static void keys_of_v(fd_graph *g, fd_node *n) {
    g->nodes[mix_of(g, n)->input[1]].override = write_and_keep;
    n->override = first_three_of_v;
}

static const struct {
    guessed bug;
    bool through_gaps; /* its rows are this run's: named through unrecorded tensors, too */
} bugs[] = {
    {{"attn_out", v_one_before, "cache_rows_wrong",
      "the V rows from position 1 on are read from those of 1 position before"},
     false},
    {{"attn_scores", both_too_far, "cache_rows_wrong",
      " rows from position 0 on are read from those of 1 position after"},
     true},
    {{"attn_scores", short_ring, "cache_ring_short", "the cache of K and V is a ring of 5 rows"}, true},
    {{"blk.2.attn_scores", keys_of_v, "other_cache", "the K rows of positions 0…2 are read from blk.2.cache_v"}, false},
    {{"attn_scores", lost_row, "cache_row_wrong", "the K and V row of position 6 is read as zeros"}, false},
    {{"attn_scores", stale_rows, "cache_rows_stale",
      "the K and V rows of positions 2…4 that attention reads are not what"},
     false},
    {{"attn_scores", stale_values, "cache_rows_stale", /* V is right, as attn_out shows */
      "the K rows of positions 2…4 that attention reads are not what"},
     false},
    {{"attn_scores", late_rows, "cache_slots_late", "the K and V rows from position 3 on are written 1 place too far"},
     false},
    {{"attn_scores", own_rows, "own_row_stale", "each position's own row of K and V before it is written"}, false},
    {{"blk.1.attn_out", stale_values, "cache_rows_stale",
      "the V rows of positions 2…4 that attention reads are not what"},
     false},
};

Test(cache, rows_from_another_place_another_cache_or_another_run_are_named) {
    bench b = open_bench(models[0], (recording){0});
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++)
        for (int spans = 0; spans < (bugs[i].through_gaps ? 2 : 1); spans++)
            expect_guess(&b, &bugs[i].bug, spans ? fused : all, "f32", true);
    close_model(&b);
}

/* ---- attention that shows its output alone, in the second chunk of a longer prompt ---- */

enum { N_FIRST = 12, N_ALL = 16 };
static const int32_t many[N_ALL] = {1, 30, 45, 103, 26, 7, 51, 88, 9, 64, 77, 18, 300, 261, 91, 40};

static void fill(float *row, int64_t width, int32_t seed) {
    for (int64_t i = 0; i < width; i++) row[i] = sinf((float)(i % 97) + (float)(i / 97) * 0.37f + (float)seed);
}
static void late_from_12(float *rows, const float *right, const fd_op_args *args, int64_t width, int32_t own) {
    (void)own;
    for (int64_t p = N_FIRST + 1; p < args->n_kv; p++)
        memcpy(rows + p * width, right + (p - 1) * width, sizeof *rows * (size_t)width);
    if (args->n_kv > N_FIRST) fill(rows + N_FIRST * width, width, 1);
}
static void own_from_12(float *rows, const float *right, const fd_op_args *args, int64_t width, int32_t own) {
    (void)right, (void)args;
    if (own >= N_FIRST) fill(rows + own * width, width, own);
}
static void row_5_from_12(float *rows, const float *right, const fd_op_args *args, int64_t width, int32_t own) {
    (void)right, (void)args;
    if (own >= N_FIRST) fill(rows + 5 * width, width, 2);
}
/* In the first chunk too, whose first rows see no more than a few keys. */
static void row_2_at_once(float *rows, const float *right, const fd_op_args *args, int64_t width, int32_t own) {
    (void)right, (void)args;
    if (own >= 2) fill(rows + 2 * width, width, 3);
}
static void read_row_2(const fd_op_args *args) {
    read_from(args, row_2_at_once);
}
static void read_late(const fd_op_args *args) {
    read_from(args, late_from_12);
}
static void read_own(const fd_op_args *args) {
    read_from(args, own_from_12);
}
static void read_row_5(const fd_op_args *args) {
    read_from(args, row_5_from_12);
}
/* Each key counts otherwise, in each row and head: no other keys, and few enough that they could be many directions. */
static void other_scores(const fd_op_args *args) {
    run_clean(args);
    const int64_t n = args->n_pos * args->node->shape[0] * args->n_kv;
    for (int64_t i = 0; i < n && args->pos0 > 0; i++) ((float *)args->out)[i] += cosf((float)i);
}

Test(cache, keys_of_no_run_are_told_from_other_weights_by_how_few_they_are) {
    static const struct {
        fd_override_fn scores, mix;
        const char *name, *says;
    } bugs[] = {
        {read_late, read_late, "cache_slots_late", "from position 12 on are written 1 place too far"},
        {read_own, read_own, "own_row_stale", "each position's own row of K and V"},
        {read_row_5, read_row_5, "cache_rows_stale", "the K and V row of position 5"},
        {read_row_2, read_row_2, "cache_rows_stale", "the K and V row of position 2"},
        {other_scores, NULL, "", ""},
    };
    recording how = {.tokens = many, .n_prompt = N_ALL, .first_chunk = N_FIRST};
    bench b = open_bench(models[0], how);
    how.emulated = "f32";
    how.tensors = "token_embd,*norm,*attn_[qkv],*rope,*attn_out,*proj,*inp,*down,*l_out,logits";
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++) {
        fd_graph *faulty;
        fd_error err = {0};
        must(fd_graph_clone(b.graph, &faulty, &err), &err);
        fd_node *scores = &faulty->nodes[fd_graph_find(faulty, "blk.1.attn_scores")];
        scores->override = bugs[i].scores;
        mix_of(faulty, scores)->override = bugs[i].mix;
        fd_verdict v = judged(&b, faulty, how);
        const fd_explanation *e = &v.diagnosis.explanation;
        const char *name = e->named ? e->remaining[0].name : "";
        cr_expect_str_eq(v.divergence.node, "blk.1.attn_out");
        cr_expect(strcmp(name, bugs[i].name) == 0 && (!e->named || strstr(e->remaining[0].summary, bugs[i].says)),
                  "%zu: %s", i, e->named ? e->remaining[0].summary : unnamed_of(e));
        fd_verdict_free(&v);
        fd_graph_free(faulty);
    }
    close_model(&b);
}

/* Row 6 of zeros, then row 7: in the last step that is what rows written one position too early are. The step before, which is right,
 * would not be. */
Test(cache, the_step_before_refutes_a_name) {
    bench b = open_bench(models[0], (recording){0});
    fd_error err = {0};
    fd_graph *graph;
    must(fd_graph_clone(b.graph, &graph, &err), &err);
    const int32_t scores = fd_graph_find(graph, "blk.1.attn_scores");
    lost_row(graph, &graph->nodes[scores]);
    fd_verdict v = judged(&b, graph, (recording){.emulated = "f32", .tensors = "token_embd,*.l_out,logits"});
    const fd_explanation *e = &v.diagnosis.explanation;
    cr_expect_eq(v.status, FD_DIVERGED, "%s", fd_verdict_status_name(v.status));
    cr_expect_str_eq(v.divergence.node, "blk.1.l_out", "%s", v.divergence.node);
    cr_expect(e->named && strcmp(e->remaining[0].name, "cache_row_wrong") == 0, "%d %s: %s", e->named,
              e->remaining[0].name, e->remaining[0].summary);
    fd_verdict_free(&v);
    fd_graph_free(graph);
    close_model(&b);
}

Test(cache, no_key_makes_a_score_that_a_mask_hides_from_one_side_alone) {
    const fd_hypothesis stale = {.guess = FD_GUESS_CACHE, .which = FD_CACHE_UNKNOWN, .end = 2};
    const fd_node node = {.op = FD_OP_ATTN_SCORES, .over_kv = true, .shape = {1, 0}};
    float rows[] = {-INFINITY, 1}, candidate[] = {3, 5};
    const fd_output_rows out = {.rows = rows, .pos0 = 1, .n_row = 1, .width = 2, .candidate = candidate};
    fd_hypothesis_output_rows(&stale, &node, &out);
    cr_expect(isinf(rows[0]) && fabsf(rows[1] - 5) <= 0);
}
