/* Sampling on the device: from a row of logits the token that exec/sampler.h defines, by the integer arithmetic of
 * numerics/sampling.h, which has no order. The token goes where the next decode step reads it, and to the host. */
#ifndef FD_KERNELS_SAMPLING_SAMPLE_H
#define FD_KERNELS_SAMPLING_SAMPLE_H

#include "kernels/launch_context.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A sequence's sampler in device memory; the fields are those of fd_sampler_options. */
typedef struct fd_sample_state {
    float temperature, top_p, min_p, repeat_penalty;
    int32_t top_k, repeat_last;
    uint64_t seed;
    uint64_t n_draw;   /* draws made */
    int32_t n_history; /* tokens so far */
    int32_t n_sampled; /* launches since the state was written */
} fd_sample_state;

/* Why there is no token; the order of exec/sampler.h's fd_bad_logit. */
typedef enum fd_sample_bad {
    FD_SAMPLE_GOOD,
    FD_SAMPLE_NAN,
    FD_SAMPLE_INF,
    FD_SAMPLE_NAN_PENALISED,
    FD_SAMPLE_INF_PENALISED,
    FD_SAMPLE_ALL_MINUS_INF,
} fd_sample_bad;

typedef struct fd_sample_result {
    int32_t token; /* -1: none */
    int32_t bad;   /* fd_sample_bad */
    int32_t id;    /* of the bad logit; -1 */
} fd_sample_result;

typedef struct fd_sampling {
    int32_t n_seq;            /* rows of logits, positions, tokens and results: a sequence each */
    const int32_t *sequences; /* device, [n_seq]: whose states and history row r has, all different; NULL: row r's */
    int32_t n_vocab;
    const float *logits;     /* device, [n_seq, n_vocab] */
    fd_sample_state *states; /* device, one a sequence; n_draw, n_history and n_sampled move on */
    int32_t *history;        /* device, [sequences, history_stride]: ids below n_vocab; the token is appended */
    int64_t history_stride;  /* ≥ n_history + 1 */
    int32_t
        *positions[2]; /* device, [n_seq] each: gets the position at which the token will be fed; NULL: not written */
    int32_t *tokens;   /* device, [n_seq]: gets the token (0 when there is none); NULL: not written */
    fd_sample_result *results; /* host or device, [n_result, result_stride]: launch n of a sequence
                                  writes row n mod n_result, at the sequence's place */
    int32_t n_result, result_stride;
} fd_sampling;

/* FD_ERR_UNSUPPORTED: not on this device (fd_sample_fits). */
fd_code fd_launch_sample(const fd_launch_context *ctx, const fd_sampling *in, fd_error *err);

/* True when the device has clusters (sm_90) and so many logits fit their shared memory. */
bool fd_sample_fits(const fd_launch_context *ctx, int32_t n_vocab);

#ifdef __cplusplus
}
#endif
#endif
