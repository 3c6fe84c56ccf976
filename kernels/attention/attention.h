/* Attention as three ops, and the decode step's fused form of the same sums.
 *
 * Every order is by absolute position. Query head h reads K/V head h / (n_head / n_head_kv). Rows of scores and weights
 * are [n_head, n_kv], n_kv positions for every row of the batch; past a row's own position, and before its window,
 * scores are -inf, weights +0. */
#ifndef FD_KERNELS_ATTENTION_ATTENTION_H
#define FD_KERNELS_ATTENTION_ATTENTION_H

#include "kernels/elementwise/rope.h"
#include "kernels/gather/gather.h"
#include "kernels/launch_context.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    FD_ATTENTION_BLOCK = 64,
    FD_ATTENTION_MAX_HEAD_DIM = 256,
    FD_ATTENTION_SHORT_CONTEXT = 256, /* positions that one block a head attends to by itself */
};

typedef struct fd_attention {
    int32_t n_head, n_head_kv; /* n_head % n_head_kv == 0 */
    int32_t head_dim;          /* ≤ FD_ATTENTION_MAX_HEAD_DIM */
    int32_t n_tok;             /* rows */
    int32_t n_kv;              /* positions a row of scores has room for; ≥ *pos0 + n_tok */
    const int32_t *pos0;       /* device: position of the first row */
    int32_t window;            /* scores: a row sees so many positions, its own among them; 0: all before it */
    float softcap;             /* scores: after the scale, cap·tanh(s / cap); 0: none */
    bool causal_only;          /* scores, softmax: elements past a row's own position need not be written */
    bool halves;               /* scores, mix: the cache is of uint16_t: binary16; else of float */
    const float *sinks;        /* softmax: device, [n_head], one more score a head that no position has; NULL: none */
} fd_attention;

/* scores [n_tok, n_head, n_kv] = (q·k)·scale; q [n_tok, n_head, head_dim]; cache_k [≥ n_kv, n_head_kv, head_dim]. */
fd_code fd_launch_attn_scores(const fd_launch_context *ctx, const fd_attention *shape, const float *q,
                              const void *cache_k, float scale, float *scores, fd_error *err);

/* weights = softmax(scores), both [n_tok, n_head, n_kv]; uses n_head, n_tok, n_kv, pos0, sinks. Not in place. */
fd_code fd_launch_attn_softmax(const fd_launch_context *ctx, const fd_attention *shape, const float *scores,
                               float *weights, fd_error *err);

/* out [n_tok, n_head, head_dim] = Σ weights·v; cache_v [≥ n_kv, n_head_kv, head_dim]. */
fd_code fd_launch_attn_mix(const fd_launch_context *ctx, const fd_attention *shape, const float *weights,
                           const void *cache_v, float *out, fd_error *err);

/* One position, from q, k, v before RoPE to the mixed values: RoPE of q and k, both cache writes, scores, softmax, mix;
 * in one kernel for a short context (single block), in four for a long one (split-KV). Their grids do not depend on the
 * position, so that a CUDA graph can replay them. Or one position each of several sequences, a row of everything for
 * each: what a row gets does not depend on the others. With ctx->overlap, *pos, the sequences and the cache's rows
 * before it must be complete when the launch before this one begins: they are read before it ends. */
typedef struct fd_attn_decode {
    bool short_context; /* every *pos < FD_ATTENTION_SHORT_CONTEXT, now and whenever this launch is replayed */
    int32_t n_head, n_head_kv, head_dim, n_ctx;
    fd_rope_shape q_rope, k_rope;
    const float *q;          /* [n_head, head_dim] */
    const float *k, *v;      /* [n_head_kv, head_dim] */
    void *cache_k, *cache_v; /* [n_ctx, n_head_kv, head_dim]; row *pos is written */
    bool halves;             /* they are of uint16_t: binary16; else of float */
    const int32_t *pos;      /* device; < n_ctx */
    float scale;
    float *scratch; /* device, fd_attn_decode_scratch bytes, zero before the first launch; one launch at a time */
    float *out;     /* [n_head, head_dim] */
    fd_send send;   /* of one row: out goes to the ranks' pages instead of there */
    int32_t n_seq;  /* rows of q, k, v, pos and out; 0 counts as 1 */
    const int32_t *sequences; /* device, [n_seq]: the sequence of each row, all different; NULL: sequence 0 */
    int64_t cache_stride;     /* elements from one sequence's cache to the next one's */
    int64_t scratch_stride;   /* floats from one row's scratch to the next one's */
    /* The nodes inside, for an observer of one sequence's step; each NULL: not stored. */
    float *q_out;                    /* [n_head, head_dim]: q after RoPE */
    float *k_out;                    /* [n_head_kv, head_dim]: k after RoPE */
    float *scores_out, *weights_out; /* [n_head, n_ctx]: the first *pos + 1 of each row are written */
} fd_attn_decode;

size_t fd_attn_decode_scratch(int32_t n_head, int32_t n_head_kv, int32_t head_dim, int32_t n_ctx);
fd_code fd_launch_attn_decode(const fd_launch_context *ctx, const fd_attn_decode *in, fd_error *err);

#ifdef __cplusplus
}
#endif
#endif
