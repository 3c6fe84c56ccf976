/* RoPE of q and k, and the rows of k and v into the caches: all that attention of many rows needs before it, in one
 * kernel. */
#ifndef FD_KERNELS_ELEMENTWISE_ROPE_KV_WRITE_H
#define FD_KERNELS_ELEMENTWISE_ROPE_KV_WRITE_H

#include "kernels/elementwise/rope.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Heads of an even number of elements, as many in q as in k. */
typedef struct fd_rope_kv_write {
    fd_rope_shape q_rope, k_rope;
    int32_t n_tok, n_ctx;
    const int32_t *pos0;     /* device: position of the first row */
    const float *q, *k, *v;  /* [n_tok, n_head or n_head_kv, head_dim] */
    float *q_out;            /* [n_tok, n_head, head_dim] */
    float *k_out;            /* [n_tok, n_head_kv, head_dim]; NULL: not stored */
    bool halves;             /* the caches are uint16_t: binary16; else float */
    void *cache_k, *cache_v; /* [n_ctx, n_head_kv, head_dim] */
} fd_rope_kv_write;
fd_code fd_launch_rope_kv_write(const fd_launch_context *ctx, const fd_rope_kv_write *in, fd_error *err);

#ifdef __cplusplus
}
#endif
#endif
