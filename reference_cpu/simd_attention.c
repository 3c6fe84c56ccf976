/* ATTN_SCORES, ATTN_SOFTMAX, ATTN_MIX, vectorised. Scores are dots of cache rows with the query; the mix keeps several
 * vectors of a head's output in registers over all positions. */
#include "reference_cpu/simd_dot.h"
#include "model/weight_rows.h"

/* Elements [VL·g, VL·g + VL) of n; those past them are 0. */
FD_INLINE vf v_load_some(const float *from, int g, int64_t n) {
    int64_t m = n - VL * g;
    return m >= VL ? v_load(from + VL * g) : m > 0 ? v_load_part(from + VL * g, m) : (vf){0};
}

/* score[t] of positions [t, n), heads of at most VL·groups elements: of the 64 partial sums of a dot only those vectors are
 * not 0, so that v_pair_sums reduces more rows at once. The last addition is the tree's, of zeros: -0 becomes 0. */
FD_INLINE void short_scores(int groups, const float *q, const float *k, int64_t stride, int64_t head_dim, int64_t t,
                            int64_t n, float scale, float *score) {
    const int rows = VL / groups;
    vf x[VL], acc[VL];
    for (int g = 0; g < groups; g++) x[g] = v_load_some(q, g, head_dim);
    for (; t < n; t += rows) {
        float total[VL]; /* [rows][groups] */
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            const float *row = k + (t + r < n ? t + r : n - 1) * stride;
#pragma GCC unroll 4
            for (int g = 0; g < groups; g++) acc[r * groups + g] = v_fma(v_load_some(row, g, head_dim), x[g], (vf){0});
        }
        v_store(total, v_pair_sums(acc));
        for (int r = 0; r < rows && t + r < n; r++) {
            float *part = total + r * groups;
            for (int m = groups; m > 1; m /= 2)
                for (int i = 0; i < m / 2; i++) part[i] = part[2 * i] + part[2 * i + 1];
            score[t + r] = (part[0] + 0.0f) * scale;
        }
    }
}

void SIMD(attn_scores)(const fd_op_args *args, int64_t begin, int64_t end) {
    const fd_node *q_node = fd_ref_input(args, 0), *k_node = fd_ref_input(args, 1);
    int32_t n_head = q_node->shape[0], head_dim = q_node->shape[1], n_head_kv = k_node->shape[0];
    float scale = args->node->scale, cap = args->node->softcap;

    for (int64_t item = begin; item < end; item++) {
        int64_t n = args->pos0 + item / n_head + 1, first = fd_node_first_seen(args->node, (int32_t)n - 1);
        int64_t kv_head = item % n_head / (n_head / n_head_kv);
        const float *q = (const float *)args->in[0] + item * head_dim;
        const float *k = (const float *)args->in[1] + kv_head * head_dim;
        float *score = (float *)args->out + item * args->n_kv;
        for (int64_t t = 0; t < first; t++) score[t] = (float)-INFINITY;
        int64_t done = first, stride = (int64_t)n_head_kv * head_dim;
        if (head_dim <= VL)
            short_scores(1, q, k, stride, head_dim, first, done = n, scale, score);
        else if (head_dim <= 2 * VL)
            short_scores(2, q, k, stride, head_dim, first, done = n, scale, score);
        for (int64_t t = done; t < n; t += DOT_ROWS) {
            const char *rows[DOT_ROWS];
            float dots[DOT_ROWS];
            for (int r = 0; r < DOT_ROWS; r++) rows[r] = (const char *)(k + (t + r < n ? t + r : n - 1) * stride);
            dot_rows(FD_F32, rows, q, head_dim, dots);
            for (int r = 0; r < DOT_ROWS && t + r < n; r++) score[t + r] = dots[r] * scale;
        }
        for (int64_t t = first; t < n && cap > 0.0f; t++) score[t] = fd_softcap32(score[t], cap);
        for (int64_t t = n; t < args->n_kv; t++) score[t] = (float)-INFINITY;
    }
}

/* The largest of n, passing over NaN as fmaxf does; -inf for none. */
static float largest(const float *x, int64_t n) {
    vf max = v_all((float)-INFINITY);
    float lanes[VL], m = (float)-INFINITY;
    int64_t whole = n - n % VL;
    for (int64_t t = 0; t < whole; t += VL) {
        vf v = v_load(x + t);
        max = v_select(v > max, v, max);
    }
    v_store(lanes, max);
    for (int i = 0; i < VL; i++) m = lanes[i] > m ? lanes[i] : m;
    for (int64_t t = whole; t < n; t++) m = x[t] > m ? x[t] : m;
    return m;
}

void SIMD(attn_softmax)(const fd_op_args *args, int64_t begin, int64_t end) {
    int32_t n_head = args->node->shape[0];
    const fd_weight *sinks = args->weight[0];

    for (int64_t item = begin; item < end; item++) {
        int64_t n = args->pos0 + item / n_head + 1, whole = n - n % VL, rest = n - whole;
        float sink = sinks ? fd_weight_element(sinks, item % n_head) : (float)-INFINITY;
        const float *score = (const float *)args->in[0] + item * args->n_kv;
        float *weight = (float *)args->out + item * args->n_kv;
        float max = fmaxf(sink, largest(score, n));
        for (int64_t t = 0; t < whole; t += VL) v_store(weight + t, v_exp(v_load(score + t) - max));
        v_store_part(weight + whole, v_exp(v_load_part(score + whole, rest) - max), rest);
        float sum = sum_one(weight, n);
        if (sinks) sum = sum + fd_exp32(sink - max);
        for (int64_t t = 0; t < whole; t += VL) v_store(weight + t, v_load(weight + t) / sum);
        v_store_part(weight + whole, v_load_part(weight + whole, rest) / sum, rest);
        for (int64_t t = n; t < args->n_kv; t++) weight[t] = 0.0f;
    }
}

enum { MIX_VECTORS = 4, MIX_BLOCK = 64 };

/* y[0 … width) of one head, width ≤ MIX_VECTORS·VL of its elements; `stride` floats from position to position. */
FD_INLINE void mix(const float *p, const float *v, int64_t stride, int64_t n, int vectors, int64_t width, float *y) {
    vf total[MIX_VECTORS];
#pragma GCC unroll 4
    for (int i = 0; i < vectors; i++) total[i] = (vf){0};
    for (int64_t block = 0; block < n; block += MIX_BLOCK) {
        int64_t stop = n < block + MIX_BLOCK ? n : block + MIX_BLOCK;
        vf acc[MIX_VECTORS];
#pragma GCC unroll 4
        for (int i = 0; i < vectors; i++) acc[i] = (vf){0};
        for (int64_t t = block; t < stop; t++) {
            vf pv = v_all(p[t]);
#pragma GCC unroll 4
            for (int i = 0; i < vectors; i++) {
                const float *from = v + t * stride + i * VL;
                acc[i] = v_fma(pv, width < VL ? v_load_part(from, width) : v_load(from), acc[i]);
            }
        }
#pragma GCC unroll 4
        for (int i = 0; i < vectors; i++) total[i] = total[i] + acc[i];
    }
    if (width < VL)
        v_store_part(y, total[0], width);
    else
#pragma GCC unroll 4
        for (int i = 0; i < vectors; i++) v_store(y + i * VL, total[i]);
}

void SIMD(attn_mix)(const fd_op_args *args, int64_t begin, int64_t end) {
    int32_t n_head = args->node->shape[0], head_dim = args->node->shape[1];
    int32_t n_head_kv = fd_ref_input(args, 1)->shape[0];
    int64_t stride = (int64_t)n_head_kv * head_dim;

    for (int64_t item = begin; item < end; item++) {
        int64_t n = args->pos0 + item / n_head + 1, kv_head = item % n_head / (n_head / n_head_kv), d = 0;
        const float *p = (const float *)args->in[0] + item * args->n_kv;
        const float *v = (const float *)args->in[1] + kv_head * head_dim;
        float *y = (float *)args->out + item * head_dim;
        for (; d + MIX_VECTORS * VL <= head_dim; d += MIX_VECTORS * VL)
            mix(p, v + d, stride, n, MIX_VECTORS, MIX_VECTORS * VL, y + d);
        for (; d + VL <= head_dim; d += VL) mix(p, v + d, stride, n, 1, VL, y + d);
        if (d < head_dim) mix(p, v + d, stride, n, 1, head_dim - d, y + d);
    }
}
