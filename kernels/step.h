/* The whole decode step as one persistent kernel: a list of ops that all blocks walk through together, a barrier over
 * the grid where one op needs what another wrote.
 *
 * What it is for: between kernels, and at every barrier, memory stands still. Here each warp streams its share of the
 * weights of this op and of those to come through a ring in shared memory, so that the next weights arrive while the
 * grid waits. The sums are those of the kernels it replaces, in the same order. */
#ifndef FD_KERNELS_STEP_H
#define FD_KERNELS_STEP_H

#include "kernels/attention.h"
#include "kernels/matmul.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fd_step fd_step;

/* An empty list with room for `max_op`. FD_ERR_UNSUPPORTED: the device is older than sm_90. */
fd_code fd_step_new(const fd_queue *queue, int32_t max_op, fd_step **out, fd_error *err);
void fd_step_free(fd_step *step);

/* Append an op; order is the order of calls. FD_ERR_UNSUPPORTED when the persistent kernel cannot run it: n_col not a
 * multiple of 64, more than one token, a type without a kernel, heads too wide. Pointers must stay valid. */
fd_code fd_step_add_embed(fd_step *step, const fd_device_matrix *table, float *out, fd_error *err);
fd_code fd_step_add_matvec(fd_step *step, const fd_matvec *in, fd_error *err);
fd_code fd_step_add_attention(fd_step *step, const fd_attn_decode *in, fd_error *err); /* in->pos is not used */

/* Uploads the list: nothing may be added afterwards. FD_ERR_UNSUPPORTED: x does not fit a block's shared memory. */
fd_code fd_step_finish(fd_step *step, fd_error *err);

/* Positions it can decode at: 0 … the count − 1. */
int32_t fd_step_positions(const fd_step *step);

/* One token at position `pos`. One launch of a step at a time. `token_at`: device; the token is there when the kernel
 * runs; NULL: it is `token`. */
fd_code fd_launch_step(const fd_queue *queue, const fd_step *step, int32_t token, const int32_t *token_at, int32_t pos,
                       fd_error *err);

#ifdef __cplusplus
}
#endif
#endif
