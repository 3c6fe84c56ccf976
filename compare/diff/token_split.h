/* Where two runs were fed different tokens, and whose doing that was. */
#ifndef FD_COMPARE_DIFF_TOKEN_SPLIT_H
#define FD_COMPARE_DIFF_TOKEN_SPLIT_H

#include "compare/verdict.h"

/* The first position that both have and were fed different tokens at; -1: none. */
int32_t fd_tokens_part(const fd_trace *ref, const fd_trace *cand);

/* True when that is in the prompt of a side: no choice of a run made the difference. */
bool fd_tokens_part_in_prompt(const fd_trace *ref, const fd_trace *cand);

/* True when it is there although both prompts are recorded as the same text: a tokenizer is wrong. */
bool fd_tokens_of_one_text(const fd_trace *ref, const fd_trace *cand);

/* Makes these tokens the verdict's divergence. */
void fd_tokens_diverge(const fd_trace *ref, const fd_trace *cand, fd_verdict *verdict);

/* Where the tokens part inside a prompt: two different texts are no comparison, which is a reason for INCOMPLETE. Equal
 * texts with different tokens stay a divergence, the tokenizers'. Where a text is not recorded this cannot be told: a
 * reason too. */
void fd_tokens_of_prompts(const fd_trace *ref, const fd_trace *cand, fd_verdict *verdict);

#endif
