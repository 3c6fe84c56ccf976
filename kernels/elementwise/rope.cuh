/* RoPE on the device: the pair that an element belongs to, its angle, and the rotation. */
#ifndef FD_KERNELS_ELEMENTWISE_ROPE_CUH
#define FD_KERNELS_ELEMENTWISE_ROPE_CUH

#include "kernels/elementwise/rope.h"
#include "numerics/contract.h"

/* The pair that element i < n_rot belongs to, and where a pair's elements lie in their head. */
__device__ __forceinline__ int fd_rope_pair_of(const fd_rope_shape &shape, int i) {
    const int half = shape.n_rot / 2;
    return shape.interleaved ? i / 2 : i < half ? i : i - half;
}
__device__ __forceinline__ int2 fd_rope_pair(const fd_rope_shape &shape, int pair) {
    const int first = shape.interleaved ? 2 * pair : pair;
    return make_int2(first, shape.interleaved ? first + 1 : first + shape.n_rot / 2);
}

/* a' = fma(a, c, -(b·s)), b' = fma(a, s, b·c): a product rounded once and a fused multiply-add. */
__device__ __forceinline__ float fd_rope_first(float2 pair, float c, float s) {
    return fmaf(pair.x, c, -(pair.y * s));
}
__device__ __forceinline__ float fd_rope_second(float2 pair, float c, float s) {
    return fmaf(pair.x, s, pair.y * c);
}

/* One element's rotation in three steps, so that angles can be loaded before the head is there. */
struct fd_rope_angle {
    int first, second; /* of the pair; both the element where it is not rotated; -1: there is no such element */
    bool rotates, is_first;
    float cosine, sine;
};

__device__ __forceinline__ fd_rope_angle fd_rope_angle_of(const fd_rope_shape &shape, int i, int head_dim, int pos) {
    if (i >= head_dim) return {-1, -1, false, true, 0.0f, 0.0f};
    if (i >= shape.n_rot) return {i, i, false, true, 0.0f, 0.0f};
    const int pair = fd_rope_pair_of(shape, i);
    const int2 at = fd_rope_pair(shape, pair);
    const int64_t angle = (int64_t)pos * (shape.n_rot / 2) + pair;
    return {at.x, at.y, true, i == at.x, shape.cosine[angle], shape.sine[angle]};
}
__device__ __forceinline__ float2 fd_rope_load(const fd_rope_angle &angle, const float *head) {
    if (angle.first < 0) return make_float2(0.0f, 0.0f);
    return make_float2(__ldcg(head + angle.first), __ldcg(head + angle.second));
}
/* 0 where there is no such element. */
__device__ __forceinline__ float fd_rope_rotate(const fd_rope_angle &angle, float2 pair) {
    if (!angle.rotates) return pair.x;
    return angle.is_first ? fd_rope_first(pair, angle.cosine, angle.sine)
                          : fd_rope_second(pair, angle.cosine, angle.sine);
}
/* Element i of `head` at position `pos`, in one step. */
__device__ __forceinline__ float fd_rope_element(const fd_rope_shape &shape, const float *head, int i, int64_t pos) {
    if (i >= shape.n_rot) return __ldcg(head + i);
    const int pair = fd_rope_pair_of(shape, i);
    const int2 at = fd_rope_pair(shape, pair);
    const float2 x = make_float2(__ldcg(head + at.x), __ldcg(head + at.y));
    const int64_t angle = pos * (shape.n_rot / 2) + pair;
    const float c = shape.cosine[angle], s = shape.sine[angle];
    return i == at.x ? fd_rope_first(x, c, s) : fd_rope_second(x, c, s);
}

#endif
