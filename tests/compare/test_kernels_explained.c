/* Kernels that put right numbers together wrongly, in ways that no row of the table has: other tiles, parts, pages, tails, heads. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "faults/tiles.h"
#include "tests/compare/guess_bench.h"
#include "tests/compare/said.h"

/* Softmax's weights as a kernel of tiles has them, which it does not record. */
static void mixed_by(const fd_op_args *args, fd_tile_rule rule, int32_t tile) {
    int64_t n_head = args->node->shape[0], n = args->n_pos * n_head;
    float *weights = copy_input(args, 0, n * args->n_kv);
    for (int64_t i = 0; i < n; i++)
        fd_tile_weights(rule, tile, weights + i * args->n_kv, args->pos0 + (int32_t)(i / n_head) + 1);
    run_with(args, 0, weights);
}
static void mixed_in_tiles_of_4(const fd_op_args *args) {
    mixed_by(args, FD_TILES_OUTPUT_STALE, 4);
}
static void mixed_in_4_parts(const fd_op_args *args) {
    mixed_by(args, FD_TILES_ADDED, -4);
}
static void mixed_key_by_key(const fd_op_args *args) {
    mixed_by(args, FD_TILES_OUTPUT_STALE, 1);
}
/* Halves of the step's keys, whatever a row sees of them. */
static void mixed_in_halves(const fd_op_args *args) {
    mixed_by(args, FD_TILES_UNSCALED, (N_PREFILL + 1) / 2);
}
static void key_by_key(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = mixed_key_by_key;
}
static void halves(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = mixed_in_halves;
}
static void tiles_of_4(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = mixed_in_tiles_of_4;
}
static void parts_4(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = mixed_in_4_parts;
}

/* Key 2 of the cache is read from key 1's place. */
static void row_2_from_row_1(const fd_op_args *args) {
    const fd_node *cache = &args->graph->nodes[args->node->input[1]];
    int64_t width = fd_node_width(cache), n = width * args->n_kv;
    float *rows = copy_input(args, 1, n);
    if (args->n_kv > 2) memcpy(rows + 2 * width, rows + width, sizeof *rows * (size_t)width);
    run_with(args, 1, rows);
}
static void other_cache_row(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = row_2_from_row_1;
}

static void third_head_of_scores_halved(const fd_op_args *args) {
    int64_t n_head = args->node->shape[0], n_kv = args->n_kv;
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * n_head * n_kv; i++)
        if (i / n_kv % n_head == 2) ((float *)args->out)[i] *= 0.5f;
}
static void one_head_halved(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = third_head_of_scores_halved;
}

/* The last 20 elements of a row are those of the row before. */
static void tail_not_written(const fd_op_args *args) {
    int64_t width = fd_node_width(args->node);
    run_clean(args);
    for (int64_t r = args->n_pos - 1; r > 0; r--)
        memcpy((float *)args->out + (r + 1) * width - 20, (float *)args->out + r * width - 20, 20 * sizeof(float));
}
static void stale_tail(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = tail_not_written;
}

static void capped_at_12(const fd_op_args *args) {
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++) {
        float *y = (float *)args->out + i;
        *y = 12.0f * tanhf(*y / 12.0f);
    }
}
static void cap_of_12(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = capped_at_12;
}
static void rolled(const fd_op_args *args) {
    int64_t width = fd_node_width(args->node), n = args->n_pos * width;
    run_clean(args);
    float *rows = malloc(sizeof *rows * (size_t)n);
    memcpy(rows, args->out, sizeof *rows * (size_t)n);
    for (int64_t i = 0; i < n; i++) ((float *)args->out)[i] = rows[(i + n - width) % n];
    free(rows);
}
static void rows_rolled(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = rolled;
}

/* Softmax of scores of which those that `hidden` says are -Inf. */
static void softmax_without(const fd_op_args *args, bool (*hidden)(int32_t key, int32_t own)) {
    const int64_t each = (int64_t)args->node->shape[0] * args->n_kv, n = args->n_pos * each;
    float *scores = malloc(sizeof *scores * (size_t)n);
    fd_op_args own = *args;
    memcpy(scores, args->in[0], sizeof *scores * (size_t)n);
    for (int64_t i = 0; i < n; i++)
        if (hidden((int32_t)(i % args->n_kv), args->pos0 + (int32_t)(i / each))) scores[i] = -INFINITY;
    own.in[0] = scores;
    run_clean(&own);
    free(scores);
}
static bool neither_first_nor_last_3(int32_t key, int32_t own) {
    return key >= 1 && key <= own - 3;
}
static bool in_the_lost_page(int32_t key, int32_t own) {
    (void)own;
    return key == 2 || key == 3;
}
static void softmax_of_sinks(const fd_op_args *args) {
    softmax_without(args, neither_first_nor_last_3);
}
static void softmax_without_page(const fd_op_args *args) {
    softmax_without(args, in_the_lost_page);
}
static void sinks_and_window(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = softmax_of_sinks;
}
static void page_lost(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = softmax_without_page;
}

static const guessed bugs[] = {
    {"attn_out", tiles_of_4, "flash_output_not_rescaled", "tiles of 4 keys"},
    {"attn_out", parts_4, "split_kv_added", "4 parts"},
    {"attn_out", key_by_key, "flash_output_not_rescaled", "key by key"},
    {"attn_out", halves, "split_kv_not_rescaled", "each off its own maximum"},
    {"attn_scores", other_cache_row, "cache_row_wrong", "the K row of position 2 is read from that of 1"},
    {"blk.2.attn_scores", one_head_halved, "factor", "head 2 is 0.5 times"},
    {"blk.2.attn_weights", sinks_and_window, "keys_hidden", "all but the first 1 and the last 3 positions"},
    {"blk.2.attn_weights", page_lost, "keys_hidden", "hides positions 2, 3"},
    {"blk.1.ffn_up", stale_tail, "other_rows", "of each row are the right ones of the position 1 earlier"},
    {"logits", cap_of_12, "other_softcap", "softcap of 12,"},
    {"logits", rows_rolled, "other_rows", "around the end of the step"},
};

Test(kernels, kernels_put_together_wrongly_are_named_with_everything_recorded_and_through_spans) {
    bench b = open_bench(models[0], (recording){0});
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++)
        for (int spans = 0; spans < 2; spans++) expect_guess(&b, &bugs[i], spans ? fused : all, "f32", true);
    close_model(&b);
}

/* Scores are recorded before softmax caps them. */
static void softmax_of_capped(const fd_op_args *args) {
    const int64_t n = (int64_t)args->n_pos * args->node->shape[0] * args->n_kv;
    float *scores = copy_input(args, 0, n);
    for (int64_t i = 0; i < n; i++)
        if (isfinite(scores[i])) scores[i] = 12.0f * tanhf(scores[i] / 12.0f);
    run_with(args, 0, scores);
}
static void softmax_caps(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = softmax_of_capped;
}

Test(kernels, scores_that_softmax_caps_itself_are_named_at_its_weights) {
    static const guessed bug = {"attn_weights", softmax_caps, "other_attn_softcap",
                                "softmax caps its scores: a softcap of 12,"};
    bench b = open_bench(models[0], (recording){0});
    expect_guess(&b, &bug, all, "f32", true);
    close_model(&b);
}

/* Masks that write a number where -Inf belongs. */
static void scores_masked_by(const fd_op_args *args, bool (*hidden)(int32_t key, int32_t own), float number) {
    const int64_t each = (int64_t)args->node->shape[0] * args->n_kv;
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * each; i++)
        if (hidden((int32_t)(i % args->n_kv), args->pos0 + (int32_t)(i / each))) ((float *)args->out)[i] = number;
}
static bool older_than_3(int32_t key, int32_t own) {
    return key <= own - 3;
}
static void window_of_zeros(const fd_op_args *args) {
    scores_masked_by(args, older_than_3, 0);
}
static void page_of_ten_thousand(const fd_op_args *args) {
    scores_masked_by(args, in_the_lost_page, -1e4f);
}
static void zeros_in_window(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = window_of_zeros;
}
static void number_in_page(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = page_of_ten_thousand;
}

Test(kernels, a_mask_that_writes_a_number_for_minus_infinity_is_named_at_the_scores) {
    static const guessed masks[] = {
        {"attn_scores", zeros_in_window, "keys_hidden",
         "all but the last 3 positions, and makes their scores 0, not -Inf"},
        {"blk.2.attn_scores", number_in_page, "keys_hidden",
         "hides positions 2, 3, and makes their scores -10000, not -Inf"},
    };
    bench b = open_bench(models[0], (recording){0});
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) expect_guess(&b, &masks[i], all, "f32", true);
    close_model(&b);
}

/* V of the first step zero, for good or until its batch is over: equal there, not in decode. Zero in every step it is the same as a
 * projection that was left out. */
Test(kernels, explanations_that_are_equal_in_a_first_step_are_told_apart_by_later_ones) {
    static const char *const faults[] = {"kv_stale_v@2", "v_first_step_lost@2", "k_never_written@2",
                                         "v_never_written@2"};
    bench b = open_bench(models[0], (recording){0});
    for (int i = 0; i < 4; i++) {
        fd_verdict v = judged(&b, faulted(&b, faults[i]), (recording){.emulated = "f32", .tensors = fused});
        const fd_explanation *e = &v.diagnosis.explanation;
        cr_expect(e->named && e->n_remaining == (i < 3 ? 1 : 2), "%s: %d %s", faults[i], e->n_remaining, unnamed_of(e));
        cr_expect(i < 3 || strcmp(e->remaining[1].name, "zeros") == 0, "%s", e->remaining[1].name);
        cr_expect(i == 3 || e->tells_apart == FD_TELLS_NOTHING, "%s", faults[i]);
        cr_expect_eq(strncmp(e->remaining[0].name, faults[i], strlen(e->remaining[0].name)), 0, "%s: %s", faults[i],
                     e->remaining[0].name);
        fd_verdict_free(&v);
    }
    close_model(&b);
}

enum { FIRST_CHUNK = 2 };

/* The second chunk of the prompt does not write its rows of K. */
static void second_chunk_unwritten(const fd_op_args *args) {
    const int64_t width = fd_node_width(&args->graph->nodes[args->node->input[1]]);
    float *k = malloc(sizeof *k * (size_t)(args->n_kv * width));
    fd_op_args own = *args;
    cr_assert(k);
    memcpy(k, args->in[1], sizeof *k * (size_t)(args->n_kv * width));
    for (int64_t i = FIRST_CHUNK * width; i < N_PREFILL * width && i < args->n_kv * width; i++) k[i] = 0;
    own.in[1] = k;
    run_clean(&own);
    free(k);
}

/* In its own step that is as if attention read K before it is written; decode reads the rows, too. */
Test(kernels, a_chunk_whose_rows_are_not_written_is_told_from_one_that_is_read_too_early) {
    static const char *const recorded[] = {"*", "*norm,*attn_proj,*l_out,logits"};
    bench b = open_bench(models[0], (recording){.first_chunk = FIRST_CHUNK});
    for (int i = 0; i < 4; i++) {
        const bool early = i % 2;
        fd_graph *graph = early ? faulted(&b, "kv_stale_row") : NULL;
        fd_error err = {0};
        if (!early) must(fd_graph_clone(b.graph, &graph, &err), &err);
        for (int32_t k = 0; k < graph->n_node && !early; k++)
            if (graph->nodes[k].op == FD_OP_ATTN_SCORES) graph->nodes[k].override = second_chunk_unwritten;
        fd_verdict v =
            judged(&b, graph, (recording){.emulated = "f32", .tensors = recorded[i / 2], .first_chunk = FIRST_CHUNK});
        const char *name = v.diagnosis.explanation.remaining[0].name;
        const char *expected = early ? "kv_stale_row" : "cache_rows_unwritten";
        cr_expect(v.diagnosis.explanation.named && strcmp(name, expected) == 0, "%s: %s", expected, name);
        fd_verdict_free(&v);
        if (!early) fd_graph_free(graph);
    }
    close_model(&b);
}
