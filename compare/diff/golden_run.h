/* Recording and checking goldens: an exact run against recorded fingerprints, logits and tokens, tolerance zero. */
#ifndef FD_COMPARE_DIFF_GOLDEN_RUN_H
#define FD_COMPARE_DIFF_GOLDEN_RUN_H

#include "dumpers/store/golden.h"

/* Runs one prompt from position 0 (the executor is reset): prefill of ids [n_prompt], then n_generate greedy tokens,
 * the last of which is chosen but not fed. Fills *out with memory of its own, to be freed with fd_golden_prompt_clear
 * or as part of the golden. out->text is left NULL. */
fd_code fd_golden_record(fd_exec *exec, const int32_t *ids, int32_t n_prompt, int32_t n_generate, fd_golden_prompt *out,
                         fd_error *err);
void fd_golden_prompt_clear(fd_golden_prompt *prompt);

/* Whether the golden can be checked against this model at all: another model's hash is FD_ERR_INPUT; another contract,
 * numerics or list of nodes is FD_ERR_INCOMPLETE, because nothing could be compared. */
fd_code fd_golden_usable(const fd_golden *golden, const fd_graph *graph, const char *model_hash, fd_error *err);

typedef enum fd_golden_kind { FD_GOLDEN_SAME, FD_GOLDEN_TENSOR, FD_GOLDEN_LOGITS, FD_GOLDEN_CHOICE } fd_golden_kind;

typedef struct fd_golden_result { /* of one prompt */
    fd_golden_kind kind;          /* of the first difference */
    int64_t n_same;               /* tensors (node and step) identical before it; all of them when there is none */
    char node[64];                /* FD_GOLDEN_TENSOR; "logits" for FD_GOLDEN_LOGITS */
    int32_t step, pos;
    bool logits_differ; /* in the step of the first difference: the first that does */
    int32_t logit_pos, logit_id;
    float logit_golden, logit_now;
    int64_t n_logit_differ;
    bool choice_differs; /* the greedy token after that step */
    int32_t choice_golden, choice_now;
} fd_golden_result;

/* Runs the prompt again with the same split (one prefill, then single tokens), feeding the recorded tokens, and stops
 * after the step in which something differs. Fails only when the executor fails. */
fd_code fd_golden_check(fd_exec *exec, const fd_golden *golden, int32_t prompt, fd_golden_result *out, fd_error *err);

#endif
