#include "kernels/attention/scores_wide.h"

#include "kernels/attention/cached.cuh"
#include "kernels/device.cuh"
#include "kernels/launch.cuh"
#include "kernels/tree.cuh"
#include "numerics/contract.h"

enum { WARPS = 8, GROUPS = FD_ATTENTION_WIDEST_HEAD / 64 };

/* A warp a position: it holds the key, of which lane l has partials 2l and 2l + 1, and meets every query head of one
 * token that shares it. */
template <class Element>
__global__ void __launch_bounds__(WARPS * 32)
    attn_scores_wide(const fd_attention a, const float *q, const Element *cache_k, float scale, float *scores) {
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const int lane = (int)threadIdx.x % 32, position = (int)blockIdx.x * WARPS + (int)threadIdx.x / 32;
    if (position >= a.n_kv) return;
    const int sharing = a.n_head / a.n_head_kv, kv_head = (int)blockIdx.y;
    const int64_t token = blockIdx.z, own = *a.pos0 + token;
    const bool seen = position <= own && (a.window == 0 || position > own - a.window);
    const Element *key = cache_k + ((int64_t)position * a.n_head_kv + kv_head) * a.head_dim;
    float held[2 * GROUPS];
#pragma unroll
    for (int i = 0; i < 2 * GROUPS; i++) {
        const int k = i / 2 * 64 + 2 * lane + i % 2;
        held[i] = k < a.head_dim && seen ? fd_from_cached(key[k]) : 0.0f;
    }
    for (int i = 0; i < sharing; i++) {
        const int64_t row = token * a.n_head + kv_head * sharing + i;
        const float *query = q + row * a.head_dim;
        float partial[2] = {0.0f, 0.0f};
#pragma unroll
        for (int j = 0; j < 2 * GROUPS; j++) {
            const int k = j / 2 * 64 + 2 * lane + j % 2;
            if (k < a.head_dim) partial[j % 2] = fmaf(query[k], held[j], partial[j % 2]);
        }
        float score = fd_tree_lanes<32>(fd_tree(partial)) * scale;
        if (a.softcap > 0.0f) score = fd_softcap32(score, a.softcap);
        if (lane == 0) scores[row * a.n_kv + position] = seen ? score : -(float)INFINITY;
    }
}

fd_code fd_launch_attn_scores_wide(const fd_launch_context *ctx, const fd_attention *shape, const float *q,
                                   const void *cache_k, float scale, float *scores, fd_error *err) {
    if (shape->head_dim < 1 || shape->head_dim > FD_ATTENTION_WIDEST_HEAD || shape->n_tok > 65535)
        return fd_fail(err, FD_ERR_INPUT, "kernel attn_scores_wide: heads of %d elements, %d rows", shape->head_dim,
                       shape->n_tok);
    const dim3 grid(fd_blocks(shape->n_kv, WARPS), (unsigned)shape->n_head_kv, (unsigned)shape->n_tok);
    return fd_with_cached(shape->halves, [&](auto element) {
        using Element = typename decltype(element)::type;
        return fd_launch(ctx, "attn_scores_wide", attn_scores_wide<Element>, grid, WARPS * 32, 0, err, *shape, q,
                         (const Element *)cache_k, scale, scores);
    });
}
