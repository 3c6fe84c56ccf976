#include "tests/faults/unlisted.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf/quant.h"
#include "numerics/contract.h"
#include "reference_cpu/reference.h"

static void right_op(const fd_op_args *args) {
    fd_node node = *args->node;
    fd_op_args inner = *args;
    node.override = NULL;
    inner.node = &node;
    fd_reference_op(FD_NUMERICS_EXACT, &inner);
}

static int64_t width(const fd_op_args *args) {
    return fd_node_row_stride(args->node, args->n_kv);
}
static float *row(const fd_op_args *args, int32_t r) {
    return (float *)args->out + r * width(args);
}

static void block_of_a_row_corrupted(const fd_op_args *args) {
    const fd_weight *w = args->weight[0];
    float *values = malloc(sizeof *values * (size_t)w->n_col);
    right_op(args);
    fd_dequantize_row(w->dtype, (const char *)w->data + 5 * fd_dtype_row_bytes(w->dtype, w->n_col), values, w->n_col);
    for (int i = 32; i < 64; i++) values[i] = -values[i];
    for (int32_t r = 0; r < args->n_pos; r++)
        row(args, r)[5] = fd_dot(values, (const float *)args->in[0] + r * w->n_col, w->n_col);
    free(values);
}
static void tile_of_the_previous_position(const fd_op_args *args) {
    right_op(args);
    for (int32_t r = args->n_pos - 1; r > 0; r--) memcpy(row(args, r) + 32, row(args, r - 1) + 32, 16 * sizeof(float));
}
static void all_nan(const fd_op_args *args) {
    for (int64_t i = 0; i < args->n_pos * width(args); i++) ((float *)args->out)[i] = NAN;
}
static void all_zero(const fd_op_args *args) {
    for (int64_t i = 0; i < args->n_pos * width(args); i++) ((float *)args->out)[i] = 0.0f;
}
static void rounded_to_f16(const fd_op_args *args) {
    right_op(args);
    for (int64_t i = 0; i < args->n_pos * width(args); i++)
        ((float *)args->out)[i] = fd_f16_to_f32(fd_f32_to_f16(((float *)args->out)[i]));
}
static void a_hundredth_more(const fd_op_args *args) {
    right_op(args);
    for (int64_t i = 0; i < args->n_pos * width(args); i++) ((float *)args->out)[i] *= 1.01f;
}
static void one_head_a_hundredth_more(const fd_op_args *args) {
    right_op(args);
    for (int32_t r = 0; r < args->n_pos; r++)
        for (int32_t d = 0; d < args->node->shape[1]; d++) row(args, r)[args->node->shape[1] + d] *= 1.01f;
}
static void last_pair_unrotated(const fd_op_args *args) {
    int32_t dim = args->node->shape[1];
    right_op(args);
    for (int32_t r = 0; r < args->n_pos; r++)
        for (int64_t h = 0; h < args->node->shape[0]; h++)
            memcpy(row(args, r) + h * dim + dim - 1, (const float *)args->in[0] + r * width(args) + h * dim + dim - 1,
                   sizeof(float));
}
static void eps_thirty_times(const fd_op_args *args) {
    fd_node node = *args->node;
    fd_op_args inner = *args;
    node.override = NULL;
    node.eps *= 30.0f;
    inner.node = &node;
    fd_reference_op(FD_NUMERICS_EXACT, &inner);
}
static void first_position_ignored(const fd_op_args *args) {
    right_op(args);
    for (int64_t i = 0; i < args->n_pos * args->node->shape[0]; i++) ((float *)args->out)[i * args->n_kv] = 0.0f;
}
static void one_head_unscaled(const fd_op_args *args) {
    right_op(args);
    for (int32_t r = 0; r < args->n_pos; r++)
        for (int32_t t = 0; t < args->n_kv; t++) row(args, r)[t] /= args->node->scale;
}
static void quick_gelu(const fd_op_args *args) {
    for (int64_t i = 0; i < args->n_pos * width(args); i++) {
        float g = ((const float *)args->in[0])[i];
        ((float *)args->out)[i] = g / (1.0f + fd_exp32(-1.702f * g)) * ((const float *)args->in[1])[i];
    }
}
static void half_the_branch(const fd_op_args *args) {
    for (int64_t i = 0; i < args->n_pos * width(args); i++)
        ((float *)args->out)[i] = ((const float *)args->in[0])[i] + 0.5f * ((const float *)args->in[1])[i];
}
static void row_3_repeats_row_2(const fd_op_args *args) {
    right_op(args);
    memcpy(row(args, 3), row(args, 2), sizeof(float) * (size_t)width(args));
}
static void half_never_written(const fd_op_args *args) {
    right_op(args);
    for (int32_t r = 0; r < args->n_pos; r++) memset(row(args, r), 0, sizeof(float) * (size_t)(width(args) / 2));
}
static void one_ulp(const fd_op_args *args) {
    right_op(args);
    row(args, 1)[3] = nextafterf(row(args, 1)[3], INFINITY);
}

const fd_unlisted fd_unlisted_faults[FD_N_UNLISTED] = {
    {"a 32-block of one weight row corrupted", "attn_q", block_of_a_row_corrupted, false, "weight_rows_wrong"},
    {"a 32-block of one logits row corrupted", "logits", block_of_a_row_corrupted, true, "weight_rows_wrong"},
    {"16 rows of the previous position", "ffn_gate", tile_of_the_previous_position, false, "other_rows"},
    {"a product all NaN", "attn_q", all_nan, false},
    {"a product all zero", "attn_v", all_zero, false, "zeros"},
    {"a product rounded to f16", "attn_proj", rounded_to_f16, false, "rounded"},
    {"a product 1 % too large", "ffn_up", a_hundredth_more, false, "factor"},
    {"one head 1 % too large", "attn_out", one_head_a_hundredth_more, false, "factor"},
    {"the last pair of each head unrotated", "attn_k_rope", last_pair_unrotated, false},
    {"eps thirty times too large", "attn_norm", eps_thirty_times, false, "other_eps"},
    {"position 0 ignored without a new sum", "attn_weights", first_position_ignored, false},
    {"one head unscaled", "attn_scores", one_head_unscaled, false, "factor"},
    {"quick GELU", "ffn_act", quick_gelu, false, "gelu_quick"},
    {"half the branch added", "l_out", half_the_branch, false, "input_factor"},
    {"row 3 of the cache repeats row 2", "cache_v", row_3_repeats_row_2, false},
    {"half of the cache never written", "cache_k", half_never_written, false, "zeros"},
    {"the embedding 1 % too large", "token_embd", a_hundredth_more, true, "factor"},
    {"the last norm rounded to f16", "output_norm", rounded_to_f16, true, "rounded"},
    {"one element one ulp off", "ffn_norm", one_ulp, false},
};
