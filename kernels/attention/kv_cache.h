/* KV_WRITE: rows into the cache at their positions. */
#ifndef FD_KERNELS_ATTENTION_KV_CACHE_H
#define FD_KERNELS_ATTENTION_KV_CACHE_H

#include "kernels/queue.h"

#ifdef __cplusplus
extern "C" {
#endif

/* x [n_tok, width] goes to rows *pos0 + row_offset … of cache [n_ctx, width]; rows outside it are dropped. All device.
 */
fd_code fd_launch_kv_write(const fd_queue *queue, const float *x, int32_t n_tok, int64_t width, const int32_t *pos0,
                           int32_t row_offset, float *cache, int32_t n_ctx, fd_error *err);

#ifdef __cplusplus
}
#endif
#endif
