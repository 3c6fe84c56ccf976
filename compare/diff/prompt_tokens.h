/* Two prompts that differ: what became of the special tokens. The ids and the model's vocabulary show it; no tensor
 * does. */
#ifndef FD_COMPARE_DIFF_PROMPT_TOKENS_H
#define FD_COMPARE_DIFF_PROMPT_TOKENS_H

#include "compare/verdict.h"
#include "model/tokenizer/tokenizer.h"

/* A side's prompt: its ids, the reference's first. */
typedef struct fd_prompt_ids {
    const int32_t *ids;
    int32_t n;
} fd_prompt_ids;

/* Finds what one side did, if it is one of these: the BOS missing (all else is equal), the BOS twice (all else is
 * equal), or a special token split into pieces that spell it, at the first place where the prompts differ; or what both
 * did: the BOS twice. False: none of them. */
bool fd_prompt_tokens_find(const fd_tokenizer *tokenizer, const fd_prompt_ids sides[2], fd_remark *out);

/* Adds it to the verdict as a note. */
void fd_prompt_tokens_note(const fd_tokenizer *tokenizer, const fd_trace *ref, const fd_trace *cand,
                           fd_verdict *verdict);

#endif
