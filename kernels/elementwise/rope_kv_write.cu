/* RoPE of q and k and the rows of both caches: a thread a pair of elements of a q, k or v head. */
#include "kernels/elementwise/rope_kv_write.h"

#include <cuda_fp16.h>

#include "kernels/device.cuh"
#include "kernels/launch.cuh"
#include "numerics/contract.h"

/* Pair `pair` of a head: where its elements are, and both after RoPE. */
struct rotated_pair {
    int first, second;
    float a, b;
};

__device__ __forceinline__ rotated_pair rotate_pair(const fd_rope_shape &shape, const float *head, int pair,
                                                    int64_t pos) {
    const int half = shape.n_rot / 2;
    rotated_pair p;
    if (pair >= half) { /* past the elements that turn */
        p.first = 2 * pair, p.second = 2 * pair + 1;
        p.a = head[p.first], p.b = head[p.second];
        return p;
    }
    p.first = shape.interleaved ? 2 * pair : pair, p.second = shape.interleaved ? 2 * pair + 1 : pair + half;
    const float a = head[p.first], b = head[p.second];
    const float c = shape.cosine[pos * half + pair], s = shape.sine[pos * half + pair];
    p.a = fmaf(a, c, -(b * s)), p.b = fmaf(a, s, b * c);
    return p;
}

__device__ __forceinline__ void keep(void *cache, bool halves, int64_t at, const rotated_pair &p) {
    if (halves) {
        uint16_t *to = (uint16_t *)cache + at;
        to[p.first] = __half_as_ushort(__float2half_rn(p.a));
        to[p.second] = __half_as_ushort(__float2half_rn(p.b));
    } else {
        float *to = (float *)cache + at;
        to[p.first] = p.a, to[p.second] = p.b;
    }
}

/* Grid: pairs of a row in 256 × rows. */
__global__ void __launch_bounds__(256) turn(const fd_rope_kv_write t) {
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const int half = t.q_rope.head_dim / 2, at = (int)(blockIdx.x * 256 + threadIdx.x);
    const int head = at / half, pair = at % half, n_q = t.q_rope.n_head, n_kv = t.k_rope.n_head;
    const int64_t row = blockIdx.y, pos = *t.pos0 + row;
    if (head >= n_q + 2 * n_kv) return;
    if (head < n_q) {
        const int64_t from = (row * n_q + head) * t.q_rope.head_dim;
        const rotated_pair p = rotate_pair(t.q_rope, t.q + from, pair, pos);
        t.q_out[from + p.first] = p.a, t.q_out[from + p.second] = p.b;
        return;
    }
    const bool is_key = head < n_q + n_kv;
    const int own = head - n_q - (is_key ? 0 : n_kv);
    const int64_t from = (row * n_kv + own) * t.k_rope.head_dim, to = (pos * n_kv + own) * t.k_rope.head_dim;
    if (is_key) {
        const rotated_pair p = rotate_pair(t.k_rope, t.k + from, pair, pos);
        if (t.k_out) t.k_out[from + p.first] = p.a, t.k_out[from + p.second] = p.b;
        if (pos < t.n_ctx) keep(t.cache_k, t.halves, to, p);
    } else if (pos < t.n_ctx) {
        keep(t.cache_v, t.halves, to, {2 * pair, 2 * pair + 1, t.v[from + 2 * pair], t.v[from + 2 * pair + 1]});
    }
}

fd_code fd_launch_rope_kv_write(const fd_launch_context *ctx, const fd_rope_kv_write *in, fd_error *err) {
    const int32_t dim = in->q_rope.head_dim;
    if (in->n_tok < 1 || in->n_tok > 65535 || dim < 2 || dim % 2 != 0 || in->k_rope.head_dim != dim)
        return fd_fail(err, FD_ERR_INPUT, "kernel turn: %d rows, heads of %d and %d", in->n_tok, dim,
                       in->k_rope.head_dim);
    const int64_t pairs = (int64_t)(in->q_rope.n_head + 2 * in->k_rope.n_head) * (dim / 2);
    return fd_launch(ctx, "turn", turn, dim3(fd_blocks(pairs, 256), (unsigned)in->n_tok), 256, 0, err, *in);
}
