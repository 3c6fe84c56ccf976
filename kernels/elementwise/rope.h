/* ROPE: every pair of a head is rotated by the angle of its position. */
#ifndef FD_KERNELS_ELEMENTWISE_ROPE_H
#define FD_KERNELS_ELEMENTWISE_ROPE_H

#include <stdbool.h>

#include "kernels/launch_context.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fd_rope_shape {
    int32_t n_head, head_dim;
    int32_t n_rot;       /* leading elements of a head that are rotated; the rest is copied */
    bool interleaved;    /* pairs (2i, 2i + 1); else (i, i + n_rot/2) */
    const float *cosine; /* device, [n_ctx, n_rot/2] from position 0 */
    const float *sine;
} fd_rope_shape;

/* x, out [n_tok, n_head, head_dim]; *pos0 (device) is the first row's position. `out` is not `x`. */
fd_code fd_launch_rope(const fd_launch_context *ctx, const fd_rope_shape *shape, const float *x, int32_t n_tok,
                       const int32_t *pos0, float *out, fd_error *err);

#ifdef __cplusplus
}
#endif
#endif
