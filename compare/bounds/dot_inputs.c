#include "compare/bounds/dot_inputs.h"

#include <stdlib.h>
#include <string.h>

#include "model/gguf/quant.h"

enum { MANY = 1 << 20 }; /* elements from which threads are worth waking */

bool fd_dot_is_product(fd_op op) {
    return op == FD_OP_MATMUL || op == FD_OP_EXPERT_MATMUL || op == FD_OP_HEAD_MATMUL;
}

int64_t fd_dot_block(fd_dot_type type, int64_t n_col) {
    switch (type) {
    case FD_DOT_Q8_0:
    case FD_DOT_INT8_OF_BF16:
    case FD_DOT_INT8: return 32;
    case FD_DOT_INT8_64: return 64;
    case FD_DOT_INT8_128: return 128;
    case FD_DOT_Q8_K: return 256;
    case FD_DOT_INT8_ROW: return n_col;
    default: return 1;
    }
}

bool fd_dot_is_blocks(fd_dot_type type) {
    return fd_dot_block(type, 2) > 1;
}

static fd_dot_type type_of_class(const fd_numerics_class *c) {
    if (c->int8_rows) return FD_DOT_INT8_ROW;
    if (c->tiny_in < 0x1p-24 && c->in_truncates) return FD_DOT_TF32_CUT;
    return c->u_factor > 0x1p-10 ? FD_DOT_BF16 : c->tiny_in < 0x1p-24 ? FD_DOT_TF32 : FD_DOT_F16;
}

bool fd_dot_is_of_integers(const fd_weight *weight) {
    return weight->requantised || fd_dtype_get(weight->dtype)->is_quantised;
}

static fd_dot_type beside(const fd_numerics_class *c, const fd_weight *weight) {
    const fd_dtype_info *info = fd_dtype_get(weight->dtype);
    if (c->plain_products) return FD_DOT_AS_IS;
    const bool of_bf16 = c->own_block && c->u_shown > 0;
    if (of_bf16) return fd_dot_is_of_integers(weight) ? FD_DOT_INT8_OF_BF16 : FD_DOT_BF16;
    if (!fd_dot_is_of_integers(weight))
        return weight->dtype == FD_F16 ? FD_DOT_F16 : weight->dtype == FD_BF16 ? FD_DOT_BF16 : FD_DOT_AS_IS;
    if (c->own_block) return c->own_block == 32 ? FD_DOT_INT8 : c->own_block == 64 ? FD_DOT_INT8_64 : FD_DOT_INT8_128;
    return !c->cuda_kernels && info->block_elements == 256 ? FD_DOT_Q8_K : FD_DOT_Q8_0;
}

bool fd_dot_is_head_or_router(const fd_node *node, const fd_weight *weight) {
    return node->layer < 0 || strstr(weight->name, "ffn_gate_inp");
}

bool fd_dot_repeats_factors(const fd_numerics_class *c, const fd_node *node, const fd_weight *weight) {
    return c->u_factor > 0 && (c->all_products || !fd_dot_is_head_or_router(node, weight));
}

fd_dot_type fd_dot_type_of(const fd_numerics_class *c, const fd_node *node, const fd_weight *weight, int slot) {
    if (!c || !c->replays_inputs || slot != 0) return FD_DOT_AS_IS;
    bool of_class = weight && c->u_factor > 0;
    if (of_class && !fd_dot_repeats_factors(c, node, weight)) return FD_DOT_AS_IS;
    switch (node->op) {
    case FD_OP_MATMUL:
    case FD_OP_HEAD_MATMUL:
    case FD_OP_EXPERT_MATMUL:
        if (of_class) return type_of_class(c);
        return weight ? beside(c, weight) : FD_DOT_AS_IS;
    case FD_OP_ATTN_SCORES:
    case FD_OP_ATTN_MIX:
        if (c->own_attention || (c->sums_in_turn && node->op == FD_OP_ATTN_MIX)) return FD_DOT_AS_IS;
        return c->u_factor > 0 ? type_of_class(c) : c->u_kv > 0 ? FD_DOT_F16 : FD_DOT_AS_IS;
    default: return FD_DOT_AS_IS;
    }
}

fd_dot_type fd_dot_type_beside_cache(const fd_numerics_class *c, const fd_node *node, uint32_t kv_type) {
    const bool scores = node->op == FD_OP_ATTN_SCORES;
    if (!c || kv_type == FD_F32 || (!scores && node->op != FD_OP_ATTN_MIX)) return fd_dot_type_of(c, node, NULL, 0);
    if (kv_type == FD_BF16) { /* flash attention widens V */
        const bool rounds = c->replays_inputs && !c->own_attention && (scores || !(c->u_mix > 0x1p-24));
        return rounds ? FD_DOT_BF16 : FD_DOT_AS_IS;
    }
    if (scores && (c->q8_activations || c->replays_inputs)) return FD_DOT_Q8_0;
    return fd_dot_type_of(c, node, NULL, 0);
}

const fd_weight *fd_dot_weight(const fd_op_args *args) {
    const int32_t id = args->node->weight[0];
    return id >= 0 && args->weight[0] ? &args->graph->weights[id] : args->weight[0];
}

/* The widest block that products of the model read; 0: none rounds what it reads. */
static int64_t widest_block(const fd_numerics_class *c, const fd_graph *graph) {
    int64_t widest = 0;
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        const fd_weight *weight = node->weight[0] < 0 ? NULL : &graph->weights[node->weight[0]];
        fd_dot_type type = weight ? fd_dot_type_of(c, node, weight, 0) : FD_DOT_AS_IS;
        if (type != FD_DOT_AS_IS && fd_dot_block(type, weight->n_col) > widest)
            widest = fd_dot_block(type, weight->n_col);
    }
    return widest;
}

bool fd_class_makes_blocks(const fd_numerics_class *c, const fd_graph *graph) {
    return widest_block(c, graph) > 1;
}

/* A product that ggml's kernels multiply otherwise. */
static bool has_other_factors(const fd_numerics_class *c, const fd_graph *graph) {
    const fd_numerics_class ggml = {.replays_inputs = true};
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        if (node->weight[0] < 0) continue;
        const fd_weight *weight = &graph->weights[node->weight[0]];
        fd_dot_type type = fd_dot_type_of(c, node, weight, 0);
        if ((c->plain_products || type != FD_DOT_AS_IS) && type != beside(&ggml, weight)) return true;
    }
    return false;
}

bool fd_class_is_another(const fd_numerics_class *c, const fd_graph *graph) {
    if (c->u_factor > 0) return c->u_shown > 0 || c->several_rows || has_other_factors(c, graph);
    if (c->plain_products) return has_other_factors(c, graph);
    return !c->own_attention || widest_block(c, graph) > (c->own_block ? 1 : 0);
}

bool fd_gelu_is_table(const fd_numerics_class *c, const fd_node *node) {
    if (!c || !c->replays_inputs || c->own_attention || c->u_factor > 0 || c->plain_products || c->cuda_kernels)
        return false;
    return node->op == FD_OP_GELU || node->op == FD_OP_GELU_MUL;
}

void fd_dot_widen_weight(fd_dot_type type, const fd_weight *weight, float *rows) {
    const int64_t row_bytes = fd_dtype_row_bytes(weight->dtype, weight->n_col);
#pragma omp parallel for if (weight->n_row * weight->n_col > MANY)
    for (int64_t r = 0; r < weight->n_row; r++) {
        float *row = rows + r * weight->n_col;
        fd_dequantize_row(weight->dtype, (const char *)weight->data + r * row_bytes, row, weight->n_col);
        fd_dot_round(type, row, 1, weight->n_col);
    }
}

fd_code fd_dot_round_weight(const fd_numerics_class *c, const fd_node *node, const fd_weight *weight, fd_weight *out,
                            fd_error *err) {
    *out = *weight;
    out->data = NULL;
    fd_dot_type type = fd_dot_type_of(c, node, weight, 0);
    bool fits = (type == FD_DOT_F16 && weight->dtype == FD_F16) || (type == FD_DOT_BF16 && weight->dtype == FD_BF16);
    fits |= (type == FD_DOT_TF32 || type == FD_DOT_TF32_CUT) && (weight->dtype == FD_F16 || weight->dtype == FD_BF16);
    fits |= c->int8_rows && !c->int8_weights;
    if (type == FD_DOT_AS_IS || !(c->u_factor > 0) || fits) return FD_OK;
    out->dtype = FD_F32;
    out->bytes = sizeof(float) * (uint64_t)(weight->n_row * weight->n_col);
    float *rows = malloc(out->bytes);
    if (!rows) return fd_fail(err, FD_ERR_MEMORY, "%s: rounding it: out of memory", weight->name);
    fd_dot_widen_weight(type, weight, rows);
    out->data = rows;
    return FD_OK;
}
