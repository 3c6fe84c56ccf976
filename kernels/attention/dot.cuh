/* The dot of a query and a key over eight lanes: lane l owns partials 8l … 8l + 7. */
#ifndef FD_KERNELS_ATTENTION_DOT_CUH
#define FD_KERNELS_ATTENTION_DOT_CUH

#include "base/status.h"
#include "kernels/attention/cached.cuh"
#include "kernels/tree.cuh"
#include "numerics/contract.h"

/* Element k of a query in shared memory: of each group of 64 the lanes' first quads, then their second ones, so that
 * eight lanes read 128 bytes in a row. */
__device__ __forceinline__ int fd_query_at(int k) {
    const int quad = k / 4;
    return (quad / 16 * 16 + quad % 2 * 8 + quad % 16 / 2) * 4 + k % 4;
}

/* A lane's share of a key of at most 64·GROUPS elements, as the cache has it: turned into floats where it is used, a load
 * is not waited for before that. Elements past head_dim are not read and stay undefined. */
template <int GROUPS, class Element> struct fd_key_share {
    static constexpr int words = 2 * sizeof(Element); /* of eight elements */
    uint32_t of[GROUPS * words];

    __device__ __forceinline__ void load(const Element *key, int head_dim, int lane) {
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            const int at = g * 64 + lane * 8;
            if (head_dim % 8 != 0) {
                load_elements(key + at, head_dim - at, of + g * words);
            } else if (at < head_dim) {
#pragma unroll
                for (int i = 0; i < words; i += 4) {
                    const uint4 four = __ldcg((const uint4 *)(key + at) + i / 4);
                    of[g * words + i] = four.x, of[g * words + i + 1] = four.y;
                    of[g * words + i + 2] = four.z, of[g * words + i + 3] = four.w;
                }
            }
        }
    }
    static __device__ __forceinline__ void load_elements(const float *from, int n, uint32_t *to) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (i < n) to[i] = __float_as_uint(__ldcg(from + i));
    }
    static __device__ __forceinline__ void load_elements(const uint16_t *from, int n, uint32_t *to) {
#pragma unroll
        for (int i = 0; i < 8; i += 2)
            if (i < n) to[i / 2] = __ldcg(from + i) | (i + 1 < n ? (uint32_t)__ldcg(from + i + 1) << 16 : 0);
    }
    __device__ __forceinline__ void spread(float (&k)[GROUPS * 8]) const {
#pragma unroll
        for (int i = 0; i < GROUPS * 8; i++) {
            if (sizeof(Element) == sizeof(float))
                k[i] = __uint_as_float(of[i]);
            else if (i % 2 == 0)
                k[i] = fd_from_halves(of[i / 2]).x;
            else
                k[i] = fd_from_halves(of[i / 2]).y;
        }
    }
};

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

/* `launch(groups, element)`, likewise, and with the type of the cache's elements. */
template <class Shape, class Launch>
static fd_code fd_with_cached_groups(const Shape *shape, fd_error *err, Launch launch) {
    return fd_with_groups(shape->head_dim, err, [&](auto groups) {
        return fd_with_cached(shape->halves, [&](auto element) { return launch(groups, element); });
    });
}

#endif
