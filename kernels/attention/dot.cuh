/* The dot of a query and a key over eight lanes: lane l owns partials 8l … 8l + 7. */
#ifndef FD_KERNELS_ATTENTION_DOT_CUH
#define FD_KERNELS_ATTENTION_DOT_CUH

#include "base/status.h"
#include "kernels/tree.cuh"
#include "numerics/contract.h"

/* Element k of a query in shared memory: of each group of 64 the lanes' first quads, then their second ones, so that
 * eight lanes read 128 bytes in a row. */
__device__ __forceinline__ int fd_query_at(int k) {
    const int quad = k / 4;
    return (quad / 16 * 16 + quad % 2 * 8 + quad % 16 / 2) * 4 + k % 4;
}

/* A lane's share of a key of at most 64·GROUPS elements. Elements past head_dim are not read and stay undefined. */
template <int GROUPS>
__device__ __forceinline__ void fd_load_key(const float *key, int head_dim, int lane, float (&k)[GROUPS * 8]) {
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        const int at = g * 64 + lane * 8;
        if (head_dim % 8 == 0) {
            if (at < head_dim) {
                const float4 a = __ldcg((const float4 *)(key + at)), b = __ldcg((const float4 *)(key + at + 4));
                k[g * 8 + 0] = a.x, k[g * 8 + 1] = a.y, k[g * 8 + 2] = a.z, k[g * 8 + 3] = a.w;
                k[g * 8 + 4] = b.x, k[g * 8 + 5] = b.y, k[g * 8 + 6] = b.z, k[g * 8 + 7] = b.w;
            }
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (at + i < head_dim) k[g * 8 + i] = __ldcg(key + at + i);
        }
    }
}

/* All eight lanes get the dot; the whole warp must call it. `query` is in the order of fd_query_at. */
template <int GROUPS>
__device__ __forceinline__ float fd_query_dot(const float *query, const float (&k)[GROUPS * 8], int head_dim,
                                              int lane) {
    float acc[8] = {};
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        const int at = g * 64 + lane * 8;
        const float4 a = ((const float4 *)query)[g * 16 + lane], b = ((const float4 *)query)[g * 16 + 8 + lane];
        const float q[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        if ((g + 1) * 64 <= head_dim) {
#pragma unroll
            for (int i = 0; i < 8; i++) acc[i] = fmaf(q[i], k[g * 8 + i], acc[i]);
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (at + i < head_dim) acc[i] = fmaf(q[i], k[g * 8 + i], acc[i]);
        }
    }
    return fd_tree_lanes<8>(fd_tree(acc));
}

/* Calls `launch(groups)` with a compile-time count of groups of 64 that hold head_dim. */
template <int GROUPS> struct fd_groups { static constexpr int value = GROUPS; };
template <class Launch> static fd_code fd_with_groups(int32_t head_dim, fd_error *err, Launch launch) {
    if (head_dim < 1) return fd_fail(err, FD_ERR_INPUT, "attention: heads of %d elements", head_dim);
    if (head_dim <= 64) return launch(fd_groups<1>());
    if (head_dim <= 128) return launch(fd_groups<2>());
    if (head_dim <= 256) return launch(fd_groups<4>());
    return fd_fail(err, FD_ERR_UNSUPPORTED, "attention: heads of %d elements, the kernels take 256 at most", head_dim);
}

#endif
