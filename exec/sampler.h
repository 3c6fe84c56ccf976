/* Sampling: repetition penalty, top-k, top-p, min-p, temperature, then a draw from a seeded generator; or greedy.
 * Deterministic: the same logits, options and seed give the same token on every machine (contract exp, no libm).
 *
 * The options apply in this order, each to the candidates that the one before left; "better" is a higher logit, and
 * among equal logits the lower id:
 *   1. repeat_penalty  each distinct id among the last repeat_last tokens once; the rest sees the penalised logits
 *   2. top_k           the k best
 *   3. top_p           the fewest best whose probability (softmax over those left, temperature 1) reaches top_p
 *   4. min_p           those whose probability is at least min_p times the best one's (temperature 1)
 *   5. temperature     weight e^((logit - best) / temperature), and one draw in proportion, counted in rising id
 * Probabilities are integers in steps of 2^-44 of the best one's (numerics/sampling.h), so that no sum depends on an
 * order: kernels/sampling/sample.cu returns the same tokens on the device. Draw n of a sampler depends on the seed and n
 * alone.
 * With temperature 0 the best logit after step 1 is taken: steps 2 to 4 always keep it, and nothing is drawn. */
#ifndef FD_EXEC_SAMPLER_H
#define FD_EXEC_SAMPLER_H

#include <stdint.h>

#include "base/status.h"

typedef struct fd_sampler_options {
    float temperature;    /* 0: greedy (lowest id wins a tie) */
    int32_t top_k;        /* 0: off */
    float top_p;          /* 1: off; nucleus over softmaxed candidates */
    float min_p;          /* 0: off; relative to the best candidate's probability */
    float repeat_penalty; /* 1: off; positive logits divided, negative multiplied */
    int32_t repeat_last;  /* how many last tokens the penalty looks at; -1: all */
    uint64_t seed;
} fd_sampler_options;

fd_sampler_options fd_sampler_defaults(void); /* greedy, everything off, seed 0 */

/* Checks ranges; the message names the option, found and expected. */
fd_code fd_sampler_check(const fd_sampler_options *options, fd_error *err);

typedef struct fd_sampler fd_sampler;
fd_code fd_sampler_new(const fd_sampler_options *options, int32_t n_vocab, fd_sampler **out, fd_error *err);
void fd_sampler_free(fd_sampler *sampler);

/* logits [n_vocab], left unchanged; history [n_history] the tokens so far (ids below n_vocab; NULL when there
 * are none). A logit of -inf is never taken. FD_ERR_INPUT that names the id: a NaN or +inf logit, before or after the
 * penalty, and a history token outside the vocabulary; also when all logits are -inf. A draw is one generator step. */
fd_code fd_sample(fd_sampler *sampler, const float *logits, const int32_t *history, int32_t n_history, int32_t *token,
                  fd_error *err);

/* ---- for backends that sample themselves (the GPU engine) and leave the sampler as fd_sample would ---- */

const fd_sampler_options *fd_sampler_options_of(const fd_sampler *sampler);
uint64_t fd_sampler_draws(const fd_sampler *sampler);  /* so far; none at temperature 0 */
void fd_sampler_skip(fd_sampler *sampler, uint64_t n); /* n draws were made elsewhere */

typedef enum fd_bad_logit {
    FD_LOGIT_GOOD,
    FD_LOGIT_NAN,
    FD_LOGIT_INF,
    FD_LOGIT_NAN_PENALISED,
    FD_LOGIT_INF_PENALISED,
    FD_LOGITS_ALL_MINUS_INF,
} fd_bad_logit;
/* FD_ERR_INPUT and the message with which fd_sample refuses such a logit. */
fd_code fd_sampler_refuse(const fd_sampler *sampler, fd_bad_logit bad, int32_t id, fd_error *err);

#endif
