/* One element after ROPE, shared by the kernel of its own and the attention kernel of the decode step. */
#ifndef FD_KERNELS_ELEMENTWISE_ROPE_CUH
#define FD_KERNELS_ELEMENTWISE_ROPE_CUH

#include "kernels/elementwise/rope.h"
#include "numerics/contract.h"

/* Element i of `head` [head_dim] turned; cosine and sine are the position's rows [n_rot/2].
 * a' = fma(a, c, -(b·s)), b' = fma(a, s, b·c): a product rounded once and a fused multiply-add. */
__device__ __forceinline__ float fd_rope_element(const fd_rope_shape &shape, const float *head, int i,
                                                 const float *cosine, const float *sine) {
    if (i >= shape.n_rot) return __ldcg(head + i);
    const int half = shape.n_rot / 2;
    const int pair = shape.interleaved ? i / 2 : i < half ? i : i - half;
    const bool first = shape.interleaved ? i % 2 == 0 : i < half;
    const float a = __ldcg(head + (shape.interleaved ? 2 * pair : pair));
    const float b = __ldcg(head + (shape.interleaved ? 2 * pair + 1 : pair + half));
    const float c = cosine[pair], s = sine[pair];
    return first ? fmaf(a, c, -(b * s)) : fmaf(a, s, b * c);
}

/* The same in two steps, so that angles are there before the head: element i's pair, its angles, and the turn. */
struct fd_rope_angle {
    int first, second; /* of the pair; both the element where it does not turn; -1: there is no such element */
    bool turns, is_first;
    float cosine, sine;
};

__device__ __forceinline__ fd_rope_angle fd_rope_angle_of(const fd_rope_shape &shape, int i, int head_dim, int pos) {
    if (i >= head_dim) return {-1, -1, false, true, 0.0f, 0.0f};
    if (i >= shape.n_rot) return {i, i, false, true, 0.0f, 0.0f};
    const int half = shape.n_rot / 2;
    const int pair = shape.interleaved ? i / 2 : i < half ? i : i - half;
    const int first = shape.interleaved ? 2 * pair : pair, second = shape.interleaved ? first + 1 : first + half;
    const int64_t at = (int64_t)pos * half + pair;
    return {first, second, true, i == first, shape.cosine[at], shape.sine[at]};
}
__device__ __forceinline__ float2 fd_rope_load(const fd_rope_angle &turn, const float *head) {
    if (turn.first < 0) return make_float2(0.0f, 0.0f);
    return make_float2(__ldcg(head + turn.first), __ldcg(head + turn.second));
}
/* 0 where there is no such element. */
__device__ __forceinline__ float fd_rope_rotate(const fd_rope_angle &turn, float2 pair) {
    if (!turn.turns) return pair.x;
    return turn.is_first ? fmaf(pair.x, turn.cosine, -(pair.y * turn.sine))
                         : fmaf(pair.x, turn.sine, pair.y * turn.cosine);
}

#endif
