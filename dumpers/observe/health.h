/* Per-position health of a run: attention entropy and sink share per head, the best logits, loops in the tokens. Sums
 * are binary64, logarithms and exponentials the contract's, so that every host writes the same numbers. */
#ifndef FD_DUMPERS_OBSERVE_HEALTH_H
#define FD_DUMPERS_OBSERVE_HEALTH_H

#include "dumpers/store/trace.h"

/* Attention weights of one row: `weights` [n_head, head_stride], the first n_kv of each head are looked at; dtype
 * FD_F32 or FD_F64. entropy [n_head] = -Σ p ln p in nats with 0 ln 0 = 0; sink [n_head] = weight on position 0.
 * Entropy is NaN when a weight is NaN, infinite or negative. */
void fd_health_attention(uint32_t dtype, const void *weights, int32_t n_head, int64_t head_stride, int32_t n_kv,
                         float *entropy, float *sink);

/* Best logits of one row [n_vocab]. Lowest id first among equals; -0 and +0 are equal. */
void fd_health_logits(uint32_t dtype, const void *logits, int64_t n_vocab, fd_top_logits *out);

/* The logits' part of a position's health. */
void fd_health_note(const fd_top_logits *top, fd_trace_health *out);

/* All of the above as not recorded: NaN, -1, loop_length and n_kv 0. */
void fd_health_clear(fd_trace_health *out);

/* Smallest period p for which the last max(3p, 6) of tokens [n] repeat with p; 0 when there is none. */
int32_t fd_health_loop(const int32_t *tokens, int32_t n);

#endif
