/* RoPE of q and k and the rows of both caches: a thread a pair of elements of a q, k or v head. */
#include "kernels/elementwise/rope_kv_write.h"

#include "kernels/attention/cached.cuh"
#include "kernels/device.cuh"
#include "kernels/elementwise/rope.cuh"
#include "kernels/launch.cuh"

/* Two elements of a head and where they lie in it. */
struct rotated_pair {
    int first, second;
    float a, b;
};

/* Pair `pair` after RoPE; those past n_rot as they are. */
__device__ __forceinline__ rotated_pair rotate_pair(const fd_rope_shape &shape, const float *head, int pair,
                                                    int64_t pos) {
    const int half = shape.n_rot / 2;
    if (pair >= half) return {2 * pair, 2 * pair + 1, head[2 * pair], head[2 * pair + 1]};
    const int2 at = fd_rope_pair(shape, pair);
    const float2 x = make_float2(head[at.x], head[at.y]);
    const float c = shape.cosine[pos * half + pair], s = shape.sine[pos * half + pair];
    return {at.x, at.y, fd_rope_first(x, c, s), fd_rope_second(x, c, s)};
}

template <class Element> __device__ __forceinline__ void write_pair(void *cache, int64_t at, const rotated_pair &p) {
    Element *to = (Element *)cache + at;
    to[p.first] = fd_to_cached<Element>(p.a);
    to[p.second] = fd_to_cached<Element>(p.b);
}
__device__ __forceinline__ void write_cache(void *cache, bool halves, int64_t at, const rotated_pair &p) {
    if (halves)
        write_pair<uint16_t>(cache, at, p);
    else
        write_pair<float>(cache, at, p);
}

/* Grid: pairs of a row in 256 × rows. */
__global__ void __launch_bounds__(256) rope_kv_write(const fd_rope_kv_write in) {
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const int half = in.q_rope.head_dim / 2, at = (int)(blockIdx.x * 256 + threadIdx.x);
    const int head = at / half, pair = at % half, n_q = in.q_rope.n_head, n_kv = in.k_rope.n_head;
    const int64_t row = blockIdx.y, pos = *in.pos0 + row;
    if (head >= n_q + 2 * n_kv) return;
    if (head < n_q) {
        const int64_t from = (row * n_q + head) * in.q_rope.head_dim;
        const rotated_pair p = rotate_pair(in.q_rope, in.q + from, pair, pos);
        in.q_out[from + p.first] = p.a, in.q_out[from + p.second] = p.b;
        return;
    }
    const bool is_key = head < n_q + n_kv;
    const int own = head - n_q - (is_key ? 0 : n_kv);
    const int64_t from = (row * n_kv + own) * in.k_rope.head_dim, to = (pos * n_kv + own) * in.k_rope.head_dim;
    if (is_key) {
        const rotated_pair p = rotate_pair(in.k_rope, in.k + from, pair, pos);
        if (in.k_out) in.k_out[from + p.first] = p.a, in.k_out[from + p.second] = p.b;
        if (pos < in.n_ctx) write_cache(in.cache_k, in.halves, to, p);
    } else if (pos < in.n_ctx) {
        write_cache(in.cache_v, in.halves, to,
                    {2 * pair, 2 * pair + 1, in.v[from + 2 * pair], in.v[from + 2 * pair + 1]});
    }
}

fd_code fd_launch_rope_kv_write(const fd_launch_context *ctx, const fd_rope_kv_write *in, fd_error *err) {
    const int32_t dim = in->q_rope.head_dim;
    if (in->n_tok < 1 || in->n_tok > 65535 || dim < 2 || dim % 2 != 0 || in->k_rope.head_dim != dim)
        return fd_fail(err, FD_ERR_INPUT, "kernel rope_kv_write: %d rows, heads of %d and %d", in->n_tok, dim,
                       in->k_rope.head_dim);
    const int64_t pairs = (int64_t)(in->q_rope.n_head + 2 * in->k_rope.n_head) * (dim / 2);
    return fd_launch(ctx, "rope_kv_write", rope_kv_write, dim3(fd_blocks(pairs, 256), (unsigned)in->n_tok), 256, 0, err,
                     *in);
}
