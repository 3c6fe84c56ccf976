/* ATTN_SCORES, ATTN_SOFTMAX, ATTN_MIX. Rows over positions have room for n_kv of them; past a row's own position scores
 * are -inf and weights 0. A head's own count of positions, not the batch's, decides the order of its sums, so prefill
 * and decode agree where their kernels do. */
#include "emulate/internal.h"
#include "emulate/rounding.h"
#include "model/gguf/quant.h"

/* Multiply-adds that take as long as the lanes of a dot, and as an expf with its sum. */
enum { SHORT_DOT = 64, EXP = 64 };

/* llama.cpp's backends. */
static bool is_ggml(const fd_emulate *e) {
    return e->class_.product == FD_EMULATE_OF_WEIGHT || e->class_.product == FD_EMULATE_OF_WEIGHT_CUDA;
}

/* ggml dots rows of blocks with q in blocks of Q8_0, and mixes rows of V in binary32; elsewhere such rows are
 * dequantised and are as any other. */
static bool meets_blocks(const fd_emulate *e, const fd_node *cache) {
    return fd_dtype_get(cache->kv_type)->block_elements > 1 && is_ggml(e);
}

fd_code fd_emulate_attn_scores(fd_emulate *e, const fd_op_args *args, fd_error *err) {
    const fd_node *q_node = fd_emulate_input(args, 0), *k_node = fd_emulate_input(args, 1);
    int32_t n_head = q_node->shape[0], dim = q_node->shape[1], n_head_kv = k_node->shape[0], n_kv = args->n_kv;
    int32_t group = n_head / n_head_kv; /* query heads that share a K/V head */
    int64_t n_q = (int64_t)args->n_pos * n_head * dim, n_k = (int64_t)n_kv * n_head_kv * dim;
    float *q = fd_emulate_reserve(&e->left, sizeof(float) * (size_t)n_q, err);
    float *k = fd_emulate_reserve(&e->right, sizeof(float) * (size_t)n_k, err);
    if (!q || !k) return FD_ERR_MEMORY;
    const bool blocks = meets_blocks(e, k_node);
    const bool scaled = is_ggml(e) && fd_graph_scales_query(args->graph);
    const float before = scaled ? args->node->scale : 1, after = scaled ? 1 : args->node->scale;
    for (int64_t i = 0; i < n_q; i++) q[i] = ((const float *)args->in[0])[i] * before;
    fd_round_row(blocks ? FD_EMULATE_F32 : e->class_.attention, q, q, n_q);
    fd_round_row(blocks ? FD_EMULATE_F32 : e->class_.attention, args->in[1], k, n_k);
    for (int64_t head = 0; blocks && head < n_q / dim; head++) fd_round_through(FD_Q8_0, q + head * dim, dim);

    float *scores = args->out;
    uint32_t kv_type = fd_emulate_kv_type(e);
    int n_thread = fd_emulate_threads(e, (int64_t)args->n_pos * n_head * n_kv * (dim + SHORT_DOT));
#pragma omp parallel for collapse(2) num_threads(n_thread) schedule(static)
    for (int32_t p = 0; p < args->n_pos; p++)
        for (int32_t h = 0; h < n_head; h++) {
            int64_t head = (int64_t)p * n_head + h;
            float *s = scores + head * n_kv;
            for (int32_t t = 0; t < n_kv; t++) {
                const float *row = k + ((int64_t)t * n_head_kv + h / group) * dim;
                bool hidden = t > args->pos0 + p || t < fd_node_first_seen(args->node, args->pos0 + p);
                float dot = 0;
                if (!hidden) dot = fd_emulate_products(e, FD_OP_ATTN_SCORES, kv_type, q + head * dim, row, dim);
                s[t] = hidden ? -(float)INFINITY : fd_round_to(e->class_.tensor, dot) * after;
                if (!hidden && args->node->softcap > 0)
                    s[t] = fd_emulate_capped(e, fd_round_to(e->class_.tensor, s[t]), args->node->softcap);
            }
        }
    return FD_OK;
}

/* libm's exp, and one division for the row: weights are multiplied by the sum's reciprocal. A sink is one more score,
 * ahead of the sum's. */
fd_code fd_emulate_attn_softmax(fd_emulate *e, const fd_op_args *args, fd_error *err) {
    const fd_weight *sinks = args->weight[0];
    float *sink = sinks ? fd_emulate_reserve(&e->left, sizeof(float) * (size_t)sinks->n_col, err) : NULL;
    if (sinks && !sink) return FD_ERR_MEMORY;
    if (sinks) fd_emulate_vector(e, sinks, sink);
    int32_t n_head = args->node->shape[0], n_kv = args->n_kv;
    const float *scores = args->in[0];
    float *weights = args->out;
    int n_thread = fd_emulate_threads(e, (int64_t)args->n_pos * n_head * n_kv * EXP);
#pragma omp parallel for collapse(2) num_threads(n_thread) schedule(static)
    for (int32_t p = 0; p < args->n_pos; p++)
        for (int32_t h = 0; h < n_head; h++) {
            const float *s = scores + ((int64_t)p * n_head + h) * n_kv;
            float *w = weights + ((int64_t)p * n_head + h) * n_kv;
            int32_t n = args->pos0 + p + 1;
            float max = sinks && sink[h] > s[0] ? sink[h] : s[0];
            for (int32_t t = 1; t < n; t++) max = s[t] > max ? s[t] : max;
            for (int32_t t = 0; t < n; t++) w[t] = expf(s[t] - max);
            float sum = fd_emulate_sum(fd_emulate_order_of(e, FD_OP_ATTN_SOFTMAX), w, n);
            float inverse = 1.0f / (sinks ? expf(sink[h] - max) + sum : sum);
            for (int32_t t = 0; t < n; t++) w[t] = w[t] * inverse;
            for (int32_t t = n; t < n_kv; t++) w[t] = 0;
        }
    return FD_OK;
}

/* V is laid out by element first, so that the sum over positions is a dot of two rows. */
fd_code fd_emulate_attn_mix(fd_emulate *e, const fd_op_args *args, fd_error *err) {
    const fd_node *v_node = fd_emulate_input(args, 1);
    int32_t n_head = args->node->shape[0], dim = args->node->shape[1], n_head_kv = v_node->shape[0], n_kv = args->n_kv;
    int32_t group = n_head / n_head_kv, v_width = n_head_kv * dim;
    int64_t n_weight = (int64_t)args->n_pos * n_head * n_kv;
    float *weights = fd_emulate_reserve(&e->left, sizeof(float) * (size_t)n_weight, err);
    float *v = fd_emulate_reserve(&e->right, sizeof(float) * (size_t)n_kv * (size_t)v_width, err);
    if (!weights || !v) return FD_ERR_MEMORY;
    const fd_emulate_type type = meets_blocks(e, v_node) ? FD_EMULATE_F32 : e->class_.attention;
    fd_round_row(type, args->in[0], weights, n_weight);
    const float *cache = args->in[1];
    uint32_t kv_type = fd_emulate_kv_type(e);
    for (int32_t t = 0; t < n_kv; t++)
        for (int32_t c = 0; c < v_width; c++)
            v[(int64_t)c * n_kv + t] = fd_round_to(type, cache[(int64_t)t * v_width + c]);

    float *y = args->out;
    int n_thread = fd_emulate_threads(e, (int64_t)args->n_pos * n_head * dim * (n_kv + SHORT_DOT));
#pragma omp parallel for collapse(2) num_threads(n_thread) schedule(static)
    for (int32_t p = 0; p < args->n_pos; p++)
        for (int32_t h = 0; h < n_head; h++) {
            int64_t head = (int64_t)p * n_head + h;
            for (int32_t d = 0; d < dim; d++) {
                const float *column = v + ((int64_t)(h / group) * dim + d) * n_kv;
                y[head * dim + d] =
                    fd_emulate_products(e, FD_OP_ATTN_MIX, kv_type, weights + head * n_kv, column, args->pos0 + p + 1);
            }
        }
    return FD_OK;
}
