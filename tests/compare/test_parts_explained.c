/* Bugs of a part of a tensor or of an op: rows of a weight, what a norm's weight multiplies, the heads of one rank, a product without its
 * bias, softmax's own weights. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "faults/tiles.h"
#include "model/gguf/quant.h"
#include "tests/compare/guess_bench.h"
#include "tests/compare/said.h"

/* A guessed bug: the node is computed by `how`. */
#define COMPUTED_BY(name, how)                                                                                         \
    static void name(fd_graph *g, fd_node *n) {                                                                        \
        (void)g;                                                                                                       \
        n->override = how;                                                                                             \
    }

static void elements_of_another_weight(const fd_op_args *args, int64_t end) {
    const int64_t width = fd_node_width(args->node), n_in = args->weight[0]->n_col;
    run_clean(args);
    for (int64_t row = 0; row < args->n_pos; row++)
        for (int64_t i = 5; i < end; i++) {
            double sum = 0;
            for (int64_t k = 0; k < n_in; k++)
                sum += (double)((const float *)args->in[0])[row * n_in + k] * 0.01 * sin((double)(i * n_in + k));
            ((float *)args->out)[row * width + i] = (float)sum;
        }
}
static void elements_5_to_7_of_another_weight(const fd_op_args *args) {
    elements_of_another_weight(args, 8);
}
static void element_5_of_another_weight(const fd_op_args *args) {
    elements_of_another_weight(args, 6);
}
COMPUTED_BY(three_rows, elements_5_to_7_of_another_weight)
COMPUTED_BY(one_row, element_5_of_another_weight)

/* To bfloat16, to the nearest. */
static float coarse(float x) {
    return fd_bf16_to_f32(fd_f32_to_bf16(x));
}
static void coarse_before_weight(const fd_op_args *args) {
    const int64_t n = fd_node_width(args->node);
    float *w = malloc(sizeof *w * (size_t)n);
    cr_assert(w);
    fd_dequantize_row(args->weight[0]->dtype, args->weight[0]->data, w, n);
    for (int64_t row = 0; row < args->n_pos; row++) {
        const float *x = (const float *)args->in[0] + row * n;
        double squares = 0;
        for (int64_t i = 0; i < n; i++) squares += (double)x[i] * (double)x[i];
        const double by = sqrt(squares / (double)n + (double)args->node->eps);
        for (int64_t i = 0; i < n; i++) ((float *)args->out)[row * n + i] = coarse((float)((double)x[i] / by)) * w[i];
    }
    free(w);
}
COMPUTED_BY(norm_rounded_inside, coarse_before_weight)

/* Decode does not write the second half of the K/V heads. */
static void half_unwritten(const fd_op_args *args) {
    const fd_node *cache = &args->graph->nodes[args->node->input[1]];
    const int64_t width = fd_node_width(cache), n = width * args->n_kv;
    float *rows = copy_input(args, 1, n);
    for (int64_t i = N_PREFILL * width; i < n; i++)
        if (i % width >= width / 2) rows[i] = 0;
    run_with(args, 1, rows);
}
static void one_rank_unwritten(fd_graph *g, fd_node *n) {
    n->override = half_unwritten;
    for (int32_t i = n->id; i < g->n_node; i++)
        if (g->nodes[i].op == FD_OP_ATTN_MIX && g->nodes[i].layer == n->layer) g->nodes[i].override = half_unwritten;
}

static void activation_rounded(const fd_op_args *args) {
    const float *gate = args->in[0], *up = args->in[1];
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++)
        ((float *)args->out)[i] = coarse((float)((double)gate[i] / (1 + exp(-(double)gate[i])))) * up[i];
}
COMPUTED_BY(coarse_activation, activation_rounded)

/* Element i of a product, to which the bias is added as it should be, is the one at place(i, dim) of its n. */
static void moved_before_bias(const fd_op_args *args, int64_t (*place)(int64_t i, int64_t dim)) {
    const int64_t n = fd_node_width(args->node), dim = args->node->shape[1];
    float *bias = malloc(2 * sizeof *bias * (size_t)n), *row = bias + n;
    cr_assert(bias && args->weight[1]);
    fd_dequantize_row(args->weight[1]->dtype, args->weight[1]->data, bias, n);
    run_clean(args);
    for (int64_t r = 0; r < args->n_pos; r++) {
        float *out = (float *)args->out + r * n;
        for (int64_t i = 0; i < n; i++) row[i] = out[i] - bias[i];
        for (int64_t i = 0; i < n; i++) out[i] = row[place(i, dim) % n] + bias[i];
    }
    free(bias);
}

/* The matrix's rows begin one head late, the bias does not. */
static int64_t a_head_on(int64_t i, int64_t dim) {
    return i + dim;
}
static void a_head_late(const fd_op_args *args) {
    moved_before_bias(args, a_head_on);
}
COMPUTED_BY(matrix_a_head_late, a_head_late)

/* A vector's lanes are stored even ones first: of every eight. */
static int64_t even_ones_first(int64_t i, int64_t dim) {
    (void)dim;
    return i / 8 * 8 + (i % 8 < 4 ? i % 8 * 2 : i % 8 * 2 - 7);
}
static void lanes_before_bias(const fd_op_args *args) {
    moved_before_bias(args, even_ones_first);
}
COMPUTED_BY(lanes, lanes_before_bias)

/* A tile of the matrix was read three rows late. */
static int64_t three_on_in_a_tile(int64_t i, int64_t dim) {
    (void)dim;
    return i >= 16 && i < 48 ? i + 3 : i;
}
static void tile_before_bias(const fd_op_args *args) {
    moved_before_bias(args, three_on_in_a_tile);
}
COMPUTED_BY(tile_late, tile_before_bias)

static void scaled_by_position(const fd_op_args *args) {
    const int64_t stride = args->node->shape[0] * args->n_kv;
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * stride; i++)
        ((float *)args->out)[i] *= 1 + logf((float)(args->pos0 + i / stride + 1)) / 4;
}
COMPUTED_BY(scores_by_position, scaled_by_position)

static void stale_in_tiles_of_4(const fd_op_args *args) {
    const int64_t n_head = args->node->shape[0];
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * n_head; i++)
        fd_tile_weights(FD_TILES_BOTH_STALE, 4, (float *)args->out + i * args->n_kv,
                        args->pos0 + (int32_t)(i / n_head) + 1);
}
COMPUTED_BY(weights_of_tiles, stale_in_tiles_of_4)

/* The last row of a step has none after it. */
static void a_row_early(const fd_op_args *args) {
    const int64_t width = fd_node_width(args->node);
    run_clean(args);
    memmove(args->out, (float *)args->out + width, sizeof(float) * (size_t)((args->n_pos - 1) * width));
}
COMPUTED_BY(rows_a_row_early, a_row_early)

static void output_tied(fd_graph *g, fd_node *n) {
    n->weight[0] = g->nodes[fd_graph_find(g, "token_embd")].weight[0];
}

/* RoPE turns the second half of K's heads by the next position. */
static void half_turned_further(const fd_op_args *args) {
    const int64_t width = fd_node_width(args->node), half = args->node->rope.n_rot / 2;
    float *right = malloc(sizeof *right * (size_t)(args->n_pos * width));
    cr_assert(right);
    run_clean(args);
    memcpy(right, args->out, sizeof *right * (size_t)(args->n_pos * width));
    fd_op_args later = *args; /* the tables hold a row a position, and one more */
    later.rope_cos = (const float *)args->rope_cos + half;
    later.rope_sin = (const float *)args->rope_sin + half;
    run_clean(&later);
    for (int64_t i = 0; i < args->n_pos * width; i++)
        if (i % width < width / 2) ((float *)args->out)[i] = right[i];
    free(right);
}
COMPUTED_BY(k_of_one_rank_further, half_turned_further)

/* Of four ranks' sums the third's alone. */
static void third_rank_alone(const fd_op_args *args) {
    const int64_t n_in = args->weight[0]->n_col, n = args->n_pos * n_in;
    float *rows = copy_input(args, 0, n);
    for (int64_t i = 0; i < n; i++)
        if (i % n_in * 4 / n_in != 2) rows[i] = 0;
    run_with(args, 0, rows);
}
COMPUTED_BY(not_reduced, third_rank_alone)

static const struct {
    guessed bug;
    bool spans; /* through fused attention */
    int model;
    const char *tensors; /* NULL: as `spans` says */
} bugs[] = {
    {{"ffn_act", coarse_activation, "rounded", "what up is multiplied by is rounded to bfloat16"}, false},
    {{"attn_q", matrix_a_head_late, "other_order", "1 head too early, but for the bias"}, false, 1},
    {{"attn_q", lanes, "other_order", "the right ones of 2, 4, 6, 1, 3, 5, but for the bias"}, false, 1},
    {{"attn_v", tile_late, "other_order", "elements 16…47 are the right ones of 19…50, but for the bias"}, false, 1},
    {{"attn_scores", scores_by_position, "row_factor", "a scale that depends on the position"}, false},
    {{"blk.1.attn_weights", weights_of_tiles, "flash_not_rescaled", "tiles of 4 keys"}, false},
    {{"blk.2.ffn_up", rows_a_row_early, "other_rows", "each row is the right one of the position 1 later"}, false},
    {{"logits", output_tied, "other_weight", "token_embd.weight where output.weight"}, false, 0, "logits"},
    {{"blk.1.attn_v", three_rows, "weight_rows_wrong", "elements 5…7 are others in every row, and nothing else"},
     false},
    {{"blk.1.ffn_up", three_rows, "weight_rows_wrong", "rows of blk.1.ffn_gate.weight or blk.1.ffn_up.weight"},
     false,
     0,
     "*norm,*attn_*,*ffn_act,*down,*inp,*l_out,logits"},
    {{"blk.1.ffn_up", one_row, "weight_rows_wrong", "element 5 of what blk.1.ffn_down.weight multiplies is another in"},
     true},
    {{"ffn_norm", norm_rounded_inside, "rounded", "what its weight multiplies is rounded to bfloat16"}, false},
    {{"blk.1.attn_k_rope", k_of_one_rank_further, "rope_k_one_further", "(on rank 1 of 2 ranks alone)"},
     false,
     0,
     "token_embd,*l_out,logits"},
    {{"blk.1.ffn_down", not_reduced, "tp_not_reduced",
      "only the partial sum of rank 2 of 4 ranks is there: no all-reduce"},
     false,
     0,
     "token_embd,*l_out,logits"},
    {{"attn_scores", one_rank_unwritten, "cache_rows_unwritten", "from position 6 on are read as zeros"}, true},
};

Test(parts, rows_of_a_weight_what_a_weight_multiplies_and_heads_of_a_rank_are_named) {
    bench b[] = {open_bench(models[0], (recording){0}), open_bench(models[1], (recording){0})};
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++)
        expect_guess(&b[bugs[i].model], &bugs[i].bug,
                     bugs[i].tensors ? bugs[i].tensors
                     : bugs[i].spans ? fused
                                     : all,
                     "f32", true);
    close_model(&b[0]);
    close_model(&b[1]);
}

/* ---- blocks decoded otherwise, in an engine that multiplies them by int8 blocks ---- */

/* A row of blocks of Q8_0, each with the scale of the first of four neighbours. */
static void by_one_scale_of_four(const fd_weight *w, int64_t row, float *to) {
    enum { BYTES = 34 };
    const uint8_t *line = (const uint8_t *)w->data + row * (w->n_col / 32) * BYTES;
    for (int64_t i = 0; i < w->n_col; i++) {
        uint16_t scale;
        memcpy(&scale, line + i / 32 / 4 * 4 * BYTES, sizeof scale);
        to[i] = fd_f16_to_f32(scale) * (float)(int8_t)line[i / 32 * BYTES + 2 + i % 32];
    }
}
static void one_scale_of_four(const fd_op_args *args) {
    const fd_weight *w = args->weight[0];
    const int64_t n = w->n_col;
    float line[1024];
    char blocks[2048];
    cr_assert_leq(n, 1024);
    for (int32_t row = 0; row < args->n_pos; row++) {
        float x[1024];
        if (args->node->op == FD_OP_EMBED) {
            by_one_scale_of_four(w, args->tokens[row], (float *)args->out + row * n);
            continue;
        }
        fd_quantize_row(FD_Q8_0, (const float *)args->in[0] + row * n, blocks, n);
        fd_dequantize_row(FD_Q8_0, blocks, x, n);
        for (int64_t i = 0; i < w->n_row; i++) {
            double sum = 0;
            by_one_scale_of_four(w, i, line);
            for (int64_t k = 0; k < n; k++) sum += (double)x[k] * (double)line[k];
            ((float *)args->out)[row * w->n_row + i] = (float)sum;
        }
    }
}

Test(parts_explained, blocks_decoded_otherwise_are_named_beside_rows_of_int8_blocks_and_in_the_embeddings) {
    bench b = open_bench(models[0], (recording){0}); /* of Q8_0 */
    static const char *const recorded[] = {NULL, "*l_out,logits"};
    for (int i = 0; i < 3; i++) {
        fd_graph *faulty = spoiled(&b, i < 2 ? "blk.1.ffn_gate" : "token_embd", one_scale_of_four);
        fd_verdict v =
            judged(&b, faulty, (recording){.emulated = "q8", .numerics = "ggml-cpu-f32kv", .tensors = recorded[i % 2]});
        const fd_explanation *e = &v.diagnosis.explanation;
        cr_expect(e->named && strcmp(e->remaining[0].name, "one_scale_for_four") == 0, "%d: %s: %s", i,
                  v.divergence.node, e->named ? e->remaining[0].summary : unnamed_of(e));
        fd_verdict_free(&v);
        forget(&b);
    }
    close_model(&b);
}
