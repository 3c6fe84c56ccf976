/* ATTN_SCORES of heads that are wider than the other kernels take: latent attention's. */
#ifndef FD_KERNELS_ATTENTION_SCORES_WIDE_H
#define FD_KERNELS_ATTENTION_SCORES_WIDE_H

#include "kernels/attention/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FD_ATTENTION_WIDEST_HEAD = 1024 };

/* As fd_launch_attn_scores, for head_dim ≤ FD_ATTENTION_WIDEST_HEAD. */
fd_code fd_launch_attn_scores_wide(const fd_launch_context *ctx, const fd_attention *shape, const float *q,
                                   const void *cache_k, float scale, float *scores, fd_error *err);

#ifdef __cplusplus
}
#endif
#endif
