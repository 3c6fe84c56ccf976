/* Attention of the fast engine: scores, softmax and mix in one kernel, over K and V in binary16.
 *
 * For many rows on tensor cores: q and e^(s − max) are rounded to binary16, products summed in binary32. For one row in
 * binary32: a block a head in a short context, positions split over blocks in a long one (split-KV). The order of all
 * sums depends on positions and shapes alone, so a repeated launch has the same bits. Shapes and sinks are those of
 * kernels/attention/attention.h. */
#ifndef FD_KERNELS_ATTENTION_ATTENTION_F16_H
#define FD_KERNELS_ATTENTION_ATTENTION_F16_H

#include "kernels/elementwise/rows_f16.h"
#include "kernels/elementwise/rope.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fd_attn_f16 {
    int32_t n_head, n_head_kv; /* n_head % n_head_kv == 0 */
    int32_t
        n_head_kv_whole;  /* of all GPUs that share the model: they say how positions are split, so that a head's bits
                                  do not depend on where it is */
    int32_t head_dim;     /* ≤ FD_ATTENTION_MAX_HEAD_DIM */
    int32_t n_tok;        /* rows */
    int32_t n_ctx;        /* positions of the cache */
    const int32_t *pos0;  /* device: position of the first row; of each row, where they are of several sequences */
    int32_t window;       /* a row sees so many positions, its own among them; 0: all before it */
    float scale, softcap; /* softcap 0: none */
    const float *sinks;   /* device, [n_head]; NULL: none */
    const float *q;       /* [n_tok, n_head, head_dim] */
    uint16_t *cache_k, *cache_v; /* [n_ctx, n_head_kv, head_dim] */
    fd_f16_out out;              /* [n_tok, n_head, head_dim] */
    /* One row only, or one each of several sequences. */
    bool short_context; /* *pos0 < FD_ATTENTION_SHORT_CONTEXT, now and whenever this launch is replayed: a block a query
                           head. For one row of sequence 0 and heads of a multiple of 8; others run as split-KV. */
    fd_rope_shape q_rope, k_rope; /* of q and k, applied on the way in; n_rot 0: they are rotated already */
    /* [n_head_kv, head_dim]: written to row *pos0 of the caches. *pos0 and the rows before it are then read before the
     * predecessor has ended. NULL: the row is there. */
    const float *k, *v;
    float *scratch; /* device, fd_attn_decode_f16_scratch bytes a row, zero before the first launch; one at a time */
    const int32_t *sequences; /* device, [n_tok]: each row's sequence, all different; NULL: one row, of sequence 0 */
    int32_t n_seq;            /* sequences that the caches are of, which says how positions are split; 0: one */
    int64_t cache_stride;     /* elements from one sequence's cache to the next one's */
    int64_t scratch_stride;   /* floats from one row's scratch to the next one's */
} fd_attn_f16;

/* Rows that are in the cache already, any n_tok. */
fd_code fd_launch_attn_fused_f16(const fd_launch_context *ctx, const fd_attn_f16 *in, fd_error *err);

/* One row, or one each of several sequences: what a row gets does not depend on the others, but on `short_context`. The
 * grid does not depend on the positions, so that a CUDA graph can replay it. */
size_t fd_attn_decode_f16_scratch(const fd_launch_context *ctx, const fd_attn_f16 *in); /* of heads and n_ctx */
fd_code fd_launch_attn_decode_f16(const fd_launch_context *ctx, const fd_attn_f16 *in, fd_error *err);

/* The scores inside the fused kernels, computed once more for an observer: [n_tok, n_head, n_kv], -inf where a row does
 * not look. `rounded`: q is rounded to binary16 first, as for many rows. */
fd_code fd_launch_attn_scores_f16(const fd_launch_context *ctx, const fd_attn_f16 *in, int32_t n_kv, bool rounded,
                                  float *out, fd_error *err);

#ifdef __cplusplus
}
#endif
#endif
