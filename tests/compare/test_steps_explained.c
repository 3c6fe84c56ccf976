/* What a kernel does to every step anew, in other rows each time: positions within it, its last row. And a cache whose address is off, or that
 * is kept in few bits beside a class that was stated. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/compare/guess_bench.h"
#include "tests/compare/said.h"

/* RoPE with the tables of other positions. */
static void turn_by(const fd_op_args *args, int32_t (*of)(int32_t row, int32_t n)) {
    const int64_t half = args->node->rope.n_rot / 2, n = (args->pos0 + args->n_pos) * half;
    const float *from[2] = {args->rope_cos, args->rope_sin};
    float *to = malloc(2 * sizeof *to * (size_t)n);
    fd_op_args own = *args;
    cr_assert(to);
    for (int t = 0; t < 2; t++) {
        memcpy(to + t * n, from[t], sizeof *to * (size_t)n);
        for (int32_t r = 0; r < args->n_pos; r++)
            memcpy(to + t * n + (args->pos0 + r) * half, from[t] + (args->pos0 + of(r, args->n_pos)) * half,
                   sizeof *to * (size_t)half);
    }
    own.rope_cos = to;
    own.rope_sin = to + n;
    run_clean(&own);
    free(to);
}
static int32_t from_the_end(int32_t row, int32_t n) {
    return n - 1 - row;
}
static int32_t last_one(int32_t row, int32_t n) {
    (void)row;
    return n - 1;
}
static int32_t the_one_before(int32_t row, int32_t n) {
    return (row + n - 1) % n;
}
static void by_the_one_before(const fd_op_args *args) {
    turn_by(args, the_one_before);
}
static void in_reverse(const fd_op_args *args) {
    turn_by(args, from_the_end);
}
static void by_the_last(const fd_op_args *args) {
    turn_by(args, last_one);
}

/* By the position before; that before the first is the second's angle, the other way round. */
static void one_back(const fd_op_args *args) {
    const int64_t half = args->node->rope.n_rot / 2, n = (args->pos0 + args->n_pos) * half;
    const float *cosines = args->rope_cos, *sines = args->rope_sin;
    float *to = calloc((size_t)(2 * n), sizeof *to);
    fd_op_args own = *args;
    cr_assert(to);
    memcpy(to + half, cosines, sizeof *to * (size_t)(n - half));
    memcpy(to + n + half, sines, sizeof *to * (size_t)(n - half));
    for (int64_t i = 0; i < half && n > half; i++) {
        to[i] = cosines[half + i];
        to[n + i] = -sines[half + i];
    }
    own.rope_cos = to;
    own.rope_sin = to + n;
    run_clean(&own);
    free(to);
}

static void last_as_before(const fd_op_args *args) {
    const int64_t n = fd_node_width(args->node);
    float *last = (float *)args->out + (args->n_pos - 1) * n;
    run_clean(args);
    if (args->n_pos > 1) memcpy(last, last - n, sizeof *last * (size_t)n);
}
static void last_as_first(const fd_op_args *args) {
    const int64_t n = fd_node_width(args->node);
    run_clean(args);
    if (args->n_pos > 1) memcpy((float *)args->out + (args->n_pos - 1) * n, args->out, sizeof(float) * (size_t)n);
}

/* The cache as it stands so many elements further on in memory. */
static void read_off(const fd_op_args *args, int64_t by) {
    const int64_t n = args->n_kv * fd_node_width(&args->graph->nodes[args->node->input[1]]);
    float *rows = malloc(sizeof *rows * (size_t)n);
    fd_op_args own = *args;
    cr_assert(rows);
    for (int64_t i = 0; i < n; i++) rows[i] = i + by >= 0 && i + by < n ? ((const float *)args->in[1])[i + by] : 0;
    own.in[1] = rows;
    run_clean(&own);
    free(rows);
}
static void a_head_late(const fd_op_args *args) {
    read_off(args, args->graph->nodes[args->node->input[1]].shape[1]);
}
static void an_element_early(const fd_op_args *args) {
    read_off(args, -1);
}

/* Rows 2 and 4, which are no run. */
static void two_rows_lost(const fd_op_args *args) {
    const int64_t width = fd_node_width(&args->graph->nodes[args->node->input[1]]), n = args->n_kv * width;
    float *rows = malloc(sizeof *rows * (size_t)n);
    fd_op_args own = *args;
    cr_assert(rows);
    memcpy(rows, args->in[1], sizeof *rows * (size_t)n);
    for (int64_t r = 2; r < 5 && r < args->n_kv; r += 2) memset(rows + r * width, 0, sizeof *rows * (size_t)width);
    own.in[1] = rows;
    run_clean(&own);
    free(rows);
}

/* From the prompt's last row on key 0 is hidden: in that row alone, all keys but the last `N_PREFILL` - 1 are. */
static void first_key_hidden_later(const fd_op_args *args) {
    const int64_t n_row = args->n_pos * args->node->shape[0];
    float *scores = malloc(sizeof *scores * (size_t)(n_row * args->n_kv));
    fd_op_args own = *args;
    cr_assert(scores);
    memcpy(scores, args->in[0], sizeof *scores * (size_t)(n_row * args->n_kv));
    for (int64_t i = 0; i < n_row; i++)
        if (args->pos0 + i / args->node->shape[0] >= N_PREFILL - 1) scores[i * args->n_kv] = -INFINITY;
    own.in[0] = scores;
    run_clean(&own);
    free(scores);
}

/* From the second step on K goes a row too far: nothing to that step's first row, and to later ones what was before them. */
static void a_row_late(const fd_op_args *args) {
    enum { LAYERS = 8, WIDEST = 512 };
    static float before[LAYERS][WIDEST];
    const int64_t width = fd_node_width(args->node), n = args->n_pos;
    float *rows = (float *)args->out + args->pos0 * width, *kept = before[args->node->layer], last[WIDEST];
    cr_assert(args->node->layer < LAYERS && width <= WIDEST);
    run_clean(args);
    if (args->pos0 == 0) {
        memset(kept, 0, sizeof before[0]);
        return;
    }
    memcpy(last, rows + (n - 1) * width, sizeof *rows * (size_t)width);
    memmove(rows + width, rows, sizeof *rows * (size_t)((n - 1) * width));
    memcpy(rows, kept, sizeof *rows * (size_t)width);
    memcpy(kept, last, sizeof *rows * (size_t)width);
}

static const struct {
    const char *nodes[2];
    fd_override_fn override;
    const char *name, *says;
    const char *const *recorded[2];
} bugs[] = {
    {{"attn_q_rope", "attn_k_rope"}, in_reverse, "other_position", "its positions in reverse", {&all, &fused}},
    {{"attn_q_rope", "attn_k_rope"}, by_the_last, "other_position", "the position of its last one", {&fused, NULL}},
    {{"attn_q_rope", "attn_k_rope"},
     by_the_one_before,
     "other_position",
     "the position of the row before, the first row that of the last",
     {&all, &fused}},
    {{"attn_proj"},
     last_as_before,
     "other_rows",
     "the last row of a step of several is that of its last but one",
     {&all, &fused}},
    {{"ffn_down"},
     last_as_first,
     "other_rows",
     "the last row of a step of several is that of its first position",
     {&all, &fused}},
    {{"attn_out"},
     a_head_late,
     "cache_shifted",
     "the V rows are read 32 elements too far on in memory",
     {&all, &fused}},
    {{"attn_scores"},
     an_element_early,
     "cache_shifted",
     "the K rows are read 1 elements too early in memory",
     {&all, &fused}},
    {{"cache_k"},
     a_row_late,
     "cache_slots_late",
     "from position 3 on every row is written 1 position too far",
     {&all, NULL}},
    {{"attn_scores", "attn_out"},
     two_rows_lost,
     "cache_rows_wrong",
     "the K and V rows of positions 2, 4 are read as zeros",
     {&all, NULL}},
};

Test(steps, what_is_done_to_every_step_is_named_once) {
    bench b = open_bench(models[0], (recording){.first_chunk = 3});
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++)
        for (int r = 0; r < 2 && bugs[i].recorded[r]; r++) {
            fd_graph *faulty = spoiled_everywhere(&b, bugs[i].nodes[0], bugs[i].override);
            for (int32_t k = 0; k < faulty->n_node && bugs[i].nodes[1]; k++)
                if (fd_ends_with(faulty->nodes[k].name, bugs[i].nodes[1])) faulty->nodes[k].override = bugs[i].override;
            const recording how = {.emulated = "f32", .tensors = *bugs[i].recorded[r], .first_chunk = 3};
            fd_verdict v = judged(&b, faulty, how);
            const fd_explanation *e = &v.diagnosis.explanation;
            const char *found = e->named ? e->remaining[0].summary : unnamed_of(e);
            cr_expect(e->named && strcmp(e->remaining[0].name, bugs[i].name) == 0, "%s, %s: %s", bugs[i].says,
                      how.tensors, found);
            cr_expect(strstr(found, bugs[i].says), "%s, %s: %s", bugs[i].says, how.tensors, found);
            fd_verdict_free(&v);
            fd_graph_free(faulty);
        }
    close_model(&b);
}

/* The reference had the whole prompt in one step: the candidate's own steps are asked. */
Test(steps, a_name_that_later_steps_of_the_candidate_refute_is_another) {
    bench b = open_bench(models[0], (recording){0});
    fd_graph *faulty = spoiled_everywhere(&b, "attn_weights", first_key_hidden_later);
    fd_verdict v = judged(&b, faulty, (recording){.emulated = "f32", .tensors = all, .first_chunk = 3});
    const fd_explanation *e = &v.diagnosis.explanation;
    cr_assert(e->named, "%s", unnamed_of(e));
    cr_expect(strstr(e->remaining[0].summary, "hides position 0 from all others"), "%s", e->remaining[0].summary);
    fd_verdict_free(&v);
    fd_graph_free(faulty);
    close_model(&b);
}

/* K turned back by a position gives the scores of Q turned on by one: both are listed. */
Test(steps, one_side_turned_on_is_the_other_turned_back) {
    bench b = open_bench(models[0], (recording){0});
    fd_graph *faulty = spoiled_everywhere(&b, "attn_k_rope", one_back);
    fd_verdict v = judged(&b, faulty, (recording){.emulated = "f32", .tensors = fused});
    const fd_explanation *e = &v.diagnosis.explanation;
    cr_assert(e->named, "%s", unnamed_of(e));
    bool q = false, k = false;
    for (int32_t i = 0; i < e->n_remaining; i++) {
        q |= strcmp(e->remaining[i].name, "rope_q_one_further") == 0;
        k |= strstr(e->remaining[i].summary, "position - 1, at every attn_k_rope") != NULL;
    }
    cr_expect(q && k, "%s, %s", e->remaining[0].summary, e->n_remaining > 1 ? e->remaining[1].summary : "nothing else");
    fd_verdict_free(&v);
    fd_graph_free(faulty);
    close_model(&b);
}

/* Where row i of all heads' rows stands for an op that gives each K head its group of them, if head h is to read K's h modulo their number. */
static int64_t place_of(int64_t i, int64_t n_head, int64_t n_kv_head) {
    const int64_t h = i % n_head;
    return i - h + h % n_kv_head * (n_head / n_kv_head) + h / n_kv_head;
}

/* Query head h reads K's head h modulo their number. In two rows an element of q fell to the other side of a step of binary16 before. */
static void modulo_beside_a_step(const fd_op_args *args) {
    const fd_node *q = &args->graph->nodes[args->node->input[0]];
    const int64_t n_head = q->shape[0], dim = q->shape[1],
                  n_kv_head = args->graph->nodes[args->node->input[1]].shape[0], n = args->n_pos * n_head,
                  n_key = args->n_kv;
    float *sorted = malloc(sizeof *sorted * (size_t)(n * (dim + n_key))), *scores = sorted + n * dim, *out = args->out;
    fd_op_args own = *args;
    cr_assert(sorted && n_kv_head > 1);
    for (int64_t i = 0; i < n; i++) {
        const int64_t place = place_of(i, n_head, n_kv_head), pos = args->pos0 + i / n_head;
        memcpy(sorted + place * dim, (const float *)args->in[0] + i * dim, sizeof *sorted * (size_t)dim);
        if (pos == 2 || pos == 4) sorted[place * dim] *= 1 + 0x1p-10f;
    }
    own.in[0] = sorted;
    own.out = scores;
    run_clean(&own);
    for (int64_t i = 0; i < n; i++)
        memcpy(out + i * n_key, scores + place_of(i, n_head, n_kv_head) * n_key, sizeof *out * (size_t)n_key);
    free(sorted);
}

/* Rows to their last bits, most of those of a layer, are no chance, and what is left of the others no other bug. */
Test(steps, a_value_on_the_other_side_of_a_step_takes_no_name_away) {
    bench b = open_bench(models[0], (recording){0});
    fd_graph *faulty = spoiled_everywhere(&b, "attn_scores", modulo_beside_a_step);
    fd_verdict v = judged(&b, faulty, (recording){.emulated = "f16kv", .tensors = fused});
    const fd_explanation *e = &v.diagnosis.explanation;
    const char *found = e->named ? e->remaining[0].summary : unnamed_of(e);
    cr_expect(e->named && strstr(found, "query heads 1, 2, 3, 4, 5, 6 read the K heads 1, 2, 3, 0, 1, 2"), "%s: %s",
              v.replay.numerics, found);
    fd_verdict_free(&v);
    fd_graph_free(faulty);
    close_model(&b);
}

/* Where the class is said, and not how K and V are kept: off in every layer as a cache of 8 bits is, that is no bug. */
Test(steps, a_class_that_is_said_says_nothing_of_the_cache) {
    bench b = open_bench(models[0], (recording){0});
    fd_graph *faulty = spoiled_everywhere(&b, "cache_k", in_int8_with_a_given_scale);
    for (int32_t k = 0; k < faulty->n_node; k++)
        if (fd_ends_with(faulty->nodes[k].name, "cache_v")) faulty->nodes[k].override = in_int8_with_a_given_scale;
    for (int everywhere = 1; everywhere >= 0; everywhere--) {
        for (int32_t k = 0; k < faulty->n_node && !everywhere; k++)
            if (faulty->nodes[k].layer != 2) faulty->nodes[k].override = NULL;
        fd_verdict v = judged(&b, faulty, (recording){.emulated = "f32", .tensors = layers});
        cr_expect_eq(v.status, everywhere ? FD_INCOMPLETE : FD_DIVERGED, "%d: %s as %s", everywhere,
                     fd_verdict_status_name(v.status), v.replay.numerics);
        fd_verdict_free(&v);
    }
    fd_graph_free(faulty);
    close_model(&b);
}
