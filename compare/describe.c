#include "compare/describe.h"

#include <stdio.h>
#include <string.h>

void fd_shape_text(int32_t n_dim, const int32_t *shape, bool over_kv, char *to, size_t size) {
    size_t at = (size_t)snprintf(to, size, "[");
    for (int32_t i = 0; i < n_dim && at < size; i++) {
        const char *comma = i ? ", " : "";
        if (over_kv && i == n_dim - 1)
            at += (size_t)snprintf(to + at, size - at, "%sn", comma);
        else
            at += (size_t)snprintf(to + at, size - at, "%s%d", comma, shape[i]);
    }
    if (at < size) snprintf(to + at, size - at, "]");
}

void fd_index_text(const char *node, int32_t n_dim, const int64_t *dims, bool over_kv, int64_t index, char *to,
                   size_t size) {
    const char *first = strstr(node, ".ffn_moe_") ? "chosen expert" : "head";
    if (n_dim <= 1) {
        snprintf(to, size, over_kv ? "key position %lld" : "element %lld", (long long)index);
    } else if (n_dim == 2 && dims[1] > 0) {
        snprintf(to, size, "%s %lld · %s %lld", first, (long long)(index / dims[1]),
                 over_kv ? "key position" : "element", (long long)(index % dims[1]));
    } else {
        int64_t at[4] = {0};
        for (int32_t i = n_dim - 1; i >= 0 && i < 4; i--) {
            at[i] = dims[i] > 0 ? index % dims[i] : 0;
            index = dims[i] > 0 ? index / dims[i] : index;
        }
        size_t used = (size_t)snprintf(to, size, "index [%lld", (long long)at[0]);
        for (int32_t i = 1; i < n_dim && used < size; i++)
            used += (size_t)snprintf(to + used, size - used, ", %lld", (long long)at[i]);
        if (used < size) snprintf(to + used, size - used, "]");
    }
}

static void rope_text(const fd_rope *rope, char *to, size_t size) {
    char scaling[96] = "";
    size_t at = 0;
    if (rope->scaling != FD_ROPE_SCALING_NONE)
        at = (size_t)snprintf(scaling, sizeof scaling, ", %s scaling by %g", fd_rope_scaling_name(rope->scaling),
                              rope->factor);
    if (rope->attention_factor != 0 && rope->attention_factor != 1)
        snprintf(scaling + at, sizeof scaling - at, ", attention factor %g", rope->attention_factor);
    if (rope->pairing == FD_ROPE_HALF)
        snprintf(to, size, "pairs (i, i+%d), base %g, %d dims%s", rope->n_rot / 2, rope->base, rope->n_rot, scaling);
    else
        snprintf(to, size, "pairs (2i, 2i+1), base %g, %d dims%s", rope->base, rope->n_rot, scaling);
}

static void scores_text(const fd_graph *graph, const fd_node *node, char *to, size_t size) {
    char window[48] = "", cap[32] = "";
    if (node->window) snprintf(window, sizeof window, ", %s of %d", node->chunked ? "chunks" : "window", node->window);
    if (node->softcap > 0) snprintf(cap, sizeof cap, ", softcap %g", (double)node->softcap);
    snprintf(to, size, "scale %.9g, %d heads on %d K/V heads%s%s", (double)node->scale, graph->hparams.n_head,
             graph->hparams.n_head_kv, window, cap);
}

static const fd_weight *weight_of(const fd_graph *graph, const fd_node *node, int32_t slot) {
    return node->weight[slot] < 0 ? NULL : &graph->weights[node->weight[slot]];
}

void fd_node_attributes(const fd_graph *graph, const fd_node *node, char *to, size_t size) {
    const fd_weight *w = weight_of(graph, node, 0), *bias = weight_of(graph, node, 1);
    const fd_dtype_info *type = w ? fd_dtype_get(w->dtype) : NULL;
    const char *type_name = type ? type->name : "?";
    to[0] = '\0';
    switch (node->op) {
    case FD_OP_EMBED:
        if (w) snprintf(to, size, "%.48s, %s, row of each token", w->name, type_name);
        break;
    case FD_OP_RMS_NORM:
        snprintf(to, size, "eps %g, mean over %d%s", (double)node->eps, node->shape[node->n_dim - 1],
                 node->n_dim == 2 ? ", each head by itself" : "");
        break;
    case FD_OP_LAYER_NORM:
        snprintf(to, size, "eps %g, mean over %d%s%s", (double)node->eps, node->shape[node->n_dim - 1],
                 node->n_dim == 2 ? ", each head by itself" : "",
                 bias ? ", with bias"
                 : w  ? ""
                      : ", without weights");
        break;
    case FD_OP_ADD_POSITION:
    case FD_OP_ADD_VECTOR:
        if (w) snprintf(to, size, "%.48s, %s", w->name, type_name);
        break;
    case FD_OP_ATTN_ALIBI: snprintf(to, size, "largest bias %g", (double)node->max_bias); break;
    case FD_OP_ATTN_TEMPERATURE: snprintf(to, size, "scale %.9g, length %d", (double)node->scale, node->length); break;
    case FD_OP_CLAMP: snprintf(to, size, "limit %g", (double)node->limit); break;
    case FD_OP_EXPERT_MATMUL:
    case FD_OP_HEAD_MATMUL:
    case FD_OP_MATMUL:
        if (w)
            snprintf(to, size, "%.48s, %s, %lld × %lld%s", w->name, type_name, (long long)w->n_row, (long long)w->n_col,
                     bias ? ", with bias" : "");
        break;
    case FD_OP_ROPE: rope_text(&node->rope, to, size); break;
    case FD_OP_KV_WRITE:
        if (node->row_offset) snprintf(to, size, "rows written at position %+d", node->row_offset);
        break;
    case FD_OP_ATTN_SCORES: scores_text(graph, node, to, size); break;
    case FD_OP_ATTN_SOFTMAX:
        if (w) snprintf(to, size, "with the sinks %.48s", w->name);
        break;
    case FD_OP_SCALE: snprintf(to, size, "factor %.9g", (double)node->scale); break;
    case FD_OP_SOFTCAP: snprintf(to, size, "cap %g", (double)node->softcap); break;
    case FD_OP_SWIGLU_CLAMP: snprintf(to, size, "slope %g, limit %g", (double)node->slope, (double)node->limit); break;
    case FD_OP_CONV:
        if (w) snprintf(to, size, "%.48s, over %lld positions", w->name, (long long)w->n_col);
        break;
    case FD_OP_SSM_SCAN:
        snprintf(to, size, "%d heads of %d, a state of %d", node->shape[0], node->shape[1],
                 graph->nodes[node->input[1]].shape[1]);
        break;
    case FD_OP_SLICE: {
        const fd_node *x = &graph->nodes[node->input[0]];
        int64_t n_head = x->n_dim == 2 ? x->shape[0] : 1;
        snprintf(to, size, "%lld elements from %d", (long long)(fd_node_width(node) / n_head), node->first);
        break;
    }
    case FD_OP_MUL_VECTOR:
    case FD_OP_TOKEN_SHIFT:
        if (w) snprintf(to, size, "%.48s", w->name);
        break;
    case FD_OP_L2_NORM: snprintf(to, size, "eps %g, over %d", (double)node->eps, node->shape[node->n_dim - 1]); break;
    case FD_OP_GATED_DELTA:
        snprintf(to, size, "%d heads of %d, keys of %d, scale %.9g", node->shape[0], node->shape[1],
                 graph->nodes[node->input[1]].shape[1], (double)node->scale);
        break;
    case FD_OP_WKV7: snprintf(to, size, "%d heads of %d", node->shape[0], node->shape[1]); break;
    case FD_OP_TOP_K: {
        int at = snprintf(to, size, "%d of %d", node->shape[0], graph->nodes[node->input[0]].shape[0]);
        if (node->n_group > 0)
            snprintf(to + at, size - (size_t)at, ", in %d of %d groups", node->n_group_used, node->n_group);
        break;
    }
    case FD_OP_EXPERT_WEIGHTS: snprintf(to, size, "%s", fd_gating_summary(node->gating)); break;
    default: break;
    }
}

void fd_divergence_at(const fd_graph *graph, const fd_node *node, int32_t step, fd_step_kind step_kind, int32_t pos,
                      fd_divergence *out) {
    out->kind = FD_DIVERGED_VALUES;
    out->layer = node->layer;
    out->step = step;
    out->step_kind = step_kind;
    out->pos = pos;
    out->n_dim = node->n_dim;
    out->over_kv = node->over_kv;
    snprintf(out->node, sizeof out->node, "%s", node->name);
    snprintf(out->op, sizeof out->op, "%s", fd_op_name(node->op));
    fd_node_attributes(graph, node, out->attributes, sizeof out->attributes);
    for (int32_t i = 0; i < node->n_dim; i++) out->dims[i] = node->shape[i];
    if (node->over_kv) out->dims[node->n_dim - 1] = pos + 1;
    fd_shape_text(node->n_dim, node->shape, node->over_kv, out->ref_shape, sizeof out->ref_shape);
    memcpy(out->cand_shape, out->ref_shape, sizeof out->cand_shape);
}

void fd_layers_text(const bool *layers, int32_t n, char *to, size_t size) {
    size_t at = 0;
    to[0] = '\0';
    for (int32_t i = 0; i < n; i++) {
        int32_t last = i;
        if (!layers[i]) continue;
        while (last + 1 < n && layers[last + 1]) last++;
        if (at + 16 > size) {
            snprintf(to + at, size - at, ", …");
            return;
        }
        at += (size_t)snprintf(to + at, size - at, last > i ? "%s%d…%d" : "%s%d", at ? ", " : "", i, last);
        i = last;
    }
}
