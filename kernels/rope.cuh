/* One element after ROPE, shared by the kernel of its own and the attention kernel of the decode step. */
#ifndef FD_KERNELS_ROPE_CUH
#define FD_KERNELS_ROPE_CUH

#include "kernels/rope.h"
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

#endif
