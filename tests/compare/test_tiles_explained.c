/* Loops over tiles, vectors and rows that go wrong in a part alone, or take one part for another. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/compare/guess_bench.h"
#include "tests/compare/said.h"

static float *copy_of(const float *rows, int64_t n) {
    float *copy = malloc(sizeof *copy * (size_t)n);
    cr_assert(copy);
    return memcpy(copy, rows, sizeof *copy * (size_t)n);
}

/* Row r of the result is the right one of `source`, plus that of `added` where it is not below 0. */
static void rows_by(const fd_op_args *args, int64_t (*source)(int64_t r, int64_t n), int64_t (*added)(int64_t r)) {
    const int64_t width = fd_node_width(args->node), n = args->n_pos;
    run_clean(args);
    float *out = args->out, *right = copy_of(out, n * width);
    for (int64_t r = 0; r < n; r++)
        for (int64_t i = 0; i < width; i++) {
            const int64_t more = added ? added(r) : -1;
            out[r * width + i] = right[source(r, n) * width + i] + (more < 0 ? 0 : right[more * width + i]);
        }
    free(right);
}
static int64_t own(int64_t r, int64_t n) {
    return (void)n, r;
}
static int64_t two_earlier(int64_t r) {
    return r - 2;
}
static int64_t pair_exchanged(int64_t r, int64_t n) {
    return r / 2 * 2 + 2 > n ? r : r % 2 == 0 ? r + 1 : r - 1;
}
static int64_t last_first(int64_t r, int64_t n) {
    return n - 1 - r;
}
static void rows_in_pairs_exchanged(const fd_op_args *args) {
    rows_by(args, pair_exchanged, NULL);
}
static void step_reversed(const fd_op_args *args) {
    rows_by(args, last_first, NULL);
}
static void not_cleared(const fd_op_args *args) {
    rows_by(args, own, two_earlier);
}

/* Interleaved rows of a weight, two of every eight in each other's place. */
static void weight_rows_interleaved(const fd_op_args *args) {
    const int64_t width = fd_node_width(args->node);
    run_clean(args);
    for (int64_t at = 0; at < args->n_pos * width; at += 8) {
        float *y = (float *)args->out + at, kept = y[1];
        y[1] = y[2];
        y[2] = kept;
    }
}

/* The vector loop ends sixteen elements early, and its rest forgets the activation. */
static void tail_not_activated(const fd_op_args *args) {
    const int64_t width = fd_node_width(args->node);
    const float *gate = args->in[0], *up = args->in[1];
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * width; i++)
        if (i % width >= width - 16) ((float *)args->out)[i] = gate[i] * up[i];
}

/* `change` of a copy of the first input. */
static void reads(const fd_op_args *args,
                  void (*change)(const fd_op_args *args, float *rows, int64_t n, int64_t stride)) {
    const int64_t stride = fd_node_row_stride(&args->graph->nodes[args->node->input[0]], args->n_kv);
    float *rows = copy_of(args->in[0], args->n_pos * stride);
    fd_op_args changed = *args;
    change(args, rows, args->n_pos, stride);
    changed.in[0] = rows;
    run_clean(&changed);
    free(rows);
}
static void exchange_pairs(const fd_op_args *args, float *rows, int64_t n, int64_t stride) {
    (void)args;
    for (int64_t i = 0; i + 1 < n * stride; i += 2) {
        const float kept = rows[i];
        rows[i] = rows[i + 1];
        rows[i + 1] = kept;
    }
}
static void repeat_first(const fd_op_args *args, float *rows, int64_t n, int64_t stride) {
    (void)args;
    for (int64_t r = 1; r < n; r++) memcpy(rows + r * stride, rows, sizeof *rows * (size_t)stride);
}
static void mask_as_first_of_tile(const fd_op_args *args, float *rows, int64_t n, int64_t stride) {
    for (int64_t i = 0; i < n * stride; i++)
        if (i % args->n_kv > args->pos0 + i / stride - i / stride % 4) rows[i] = -INFINITY;
}
static void raise_to_largest_less_1(const fd_op_args *args, float *rows, int64_t n, int64_t stride) {
    for (int64_t at = 0; at < n * stride; at += args->n_kv) {
        float largest = -INFINITY;
        for (int64_t i = at; i < at + args->n_kv; i++) largest = fmaxf(largest, rows[i]);
        for (int64_t i = at; i < at + args->n_kv; i++)
            if (isfinite(rows[i])) rows[i] = fmaxf(rows[i], largest - 1);
    }
}
static void lane_7_lost(const fd_op_args *args, float *rows, int64_t n, int64_t stride) {
    (void)args;
    for (int64_t i = 7; i < n * stride; i += 8) rows[i] = 0;
}
static void lane_0_twice(const fd_op_args *args, float *rows, int64_t n, int64_t stride) {
    (void)args;
    for (int64_t i = 0; i < n * stride; i += 4) rows[i] *= 2;
}
/* Weights by the sum of whole tiles of four keys. */
static void rest_uncounted(const fd_op_args *args, float *rows, int64_t n, int64_t stride) {
    const int64_t n_head = stride / args->n_kv;
    for (int64_t i = 0; i < n * n_head; i++) {
        const int64_t keys = args->pos0 + i / n_head + 1, counted = keys > 4 ? keys - keys % 4 : keys;
        float *w = rows + i * args->n_kv;
        double sum = 0;
        for (int64_t k = 0; k < counted; k++) sum += (double)w[k];
        for (int64_t k = 0; k < keys; k++) w[k] = (float)((double)w[k] / sum);
    }
}
static void a_lane_lost(const fd_op_args *args) {
    reads(args, lane_7_lost);
}
static void a_lane_twice(const fd_op_args *args) {
    reads(args, lane_0_twice);
}
static void last_tile_uncounted(const fd_op_args *args) {
    reads(args, rest_uncounted);
}
static void pairs_read_exchanged(const fd_op_args *args) {
    reads(args, exchange_pairs);
}
static void stride_of_zero(const fd_op_args *args) {
    reads(args, repeat_first);
}
static void mask_of_tile(const fd_op_args *args) {
    reads(args, mask_as_first_of_tile);
}
static void exponents_clamped(const fd_op_args *args) {
    reads(args, raise_to_largest_less_1);
}

#define EDIT(override_)                                                                                                \
    static void edit_##override_(fd_graph *g, fd_node *n) {                                                            \
        (void)g;                                                                                                       \
        n->override = override_;                                                                                       \
    }
EDIT(rows_in_pairs_exchanged)
EDIT(step_reversed)
EDIT(not_cleared)
EDIT(weight_rows_interleaved)
EDIT(tail_not_activated)
EDIT(a_lane_lost)
EDIT(a_lane_twice)
EDIT(pairs_read_exchanged)
EDIT(stride_of_zero)
EDIT(mask_of_tile)
EDIT(exponents_clamped)

static void expect_all(const guessed *bugs, size_t n, const char *tensors) {
    bench b = open_bench(models[0], (recording){0});
    for (size_t i = 0; i < n; i++) expect_guess(&b, &bugs[i], tensors, "f32", true);
    close_model(&b);
}

Test(tiles, what_stands_in_the_place_of_what_is_said_block_by_block) {
    static const guessed bugs[] = {
        {"ffn_up", edit_weight_rows_interleaved, "other_order", "of every 8 elements 1, 2 are the right ones of 2, 1"},
        {"blk.2.attn_v", edit_rows_in_pairs_exchanged, "other_rows",
         "of every 2 rows of a step 0, 1 are the right ones of 1, 0"},
        {"attn_proj", edit_step_reversed, "other_rows", "the rows of a step stand in reverse"},
        {"blk.1.ffn_down", edit_not_cleared, "other_rows", "the row of 2 positions earlier is added to each"},
        {"attn_q", edit_pairs_read_exchanged, "other_input_order", "the elements of each pair exchanged"},
        {"ffn_inp", edit_stride_of_zero, "strides_ignored", "of the step's first position is read for all of them"},
    };
    expect_all(bugs, sizeof bugs / sizeof *bugs, all);
}

Test(tiles, a_fault_of_the_table_in_some_elements_alone_is_named_with_them) {
    static const guessed bugs[] = {
        {"ffn_act", edit_tail_not_activated, "activation_missing", "767 alone)"},
    };
    expect_all(bugs, sizeof bugs / sizeof *bugs, all);
}

Test(tiles, lanes_of_sums_are_named) {
    static const guessed bugs[] = {
        {"attn_q", edit_a_lane_lost, "sum_cut_short", "element 7 of every 8 of its sums is left out"},
        {"blk.2.ffn_down", edit_a_lane_twice, "sum_counts_twice", "element 0 of every 4 of its sums is counted twice"},
    };
    expect_all(bugs, sizeof bugs / sizeof *bugs, all);
}

/* Of five to seven keys the four that are counted are the first tile, too. */
Test(tiles, a_last_tile_that_is_not_counted_is_listed_beside_the_first_sum) {
    bench b = open_bench(models[0], (recording){0});
    fd_graph *faulty = spoiled_everywhere(&b, "attn_out", last_tile_uncounted);
    fd_verdict v = judged(&b, faulty, (recording){.emulated = "f32", .tensors = all, .n_prompt = 7});
    const fd_explanation *e = &v.diagnosis.explanation;
    bool last = false, first = false;
    cr_assert(e->named, "%s", unnamed_of(e));
    for (int32_t i = 0; i < e->n_remaining; i++) {
        last |= strcmp(e->remaining[i].name, "flash_last_tile_uncounted") == 0;
        first |= strcmp(e->remaining[i].name, "split_kv_first_sum") == 0;
    }
    cr_expect(last && first, "%d: %s", e->n_remaining, e->remaining[0].summary);
    fd_verdict_free(&v);
    fd_graph_free(faulty);
    close_model(&b);
}

Test(tiles, masks_of_tiles_and_clamped_exponents_are_named_at_weights_and_through_fused_attention) {
    static const guessed bugs[] = {
        {"attn_weights", edit_mask_of_tile, "keys_hidden", "a tile of 4 rows has the mask of its first one"},
        {"attn_weights", edit_exponents_clamped, "clamped", "exponents are clamped from below at -1"},
    };
    expect_all(bugs, sizeof bugs / sizeof *bugs, all);
    expect_all(bugs, sizeof bugs / sizeof *bugs, fused);
}
