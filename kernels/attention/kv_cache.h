/* KV_WRITE: rows into the cache at their positions. */
#ifndef FD_KERNELS_ATTENTION_KV_CACHE_H
#define FD_KERNELS_ATTENTION_KV_CACHE_H

#include "kernels/launch_context.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fd_kv_write {
    const float *x; /* device, [n_tok, width] */
    int32_t n_tok;
    int64_t width;
    const int32_t *pos0; /* device: position of the first row */
    int32_t row_offset;  /* row r goes to cache row *pos0 + r + row_offset; it is dropped outside [0, n_ctx) */
    bool halves;         /* the cache is uint16_t: binary16; else float */
    void *cache;         /* device, [n_ctx, width] */
    int32_t n_ctx;
} fd_kv_write;
fd_code fd_launch_kv_write(const fd_launch_context *ctx, const fd_kv_write *in, fd_error *err);

#ifdef __cplusplus
}
#endif
#endif
