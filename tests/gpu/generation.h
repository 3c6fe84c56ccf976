/* Tokens that the engine generates, alone and beside others, against those of the CPU reference. */
#ifndef FD_TESTS_GPU_GENERATION_H
#define FD_TESTS_GPU_GENERATION_H

#include "exec/exec.h"

typedef struct generation_test {
    fd_exec *cpu, *gpu;          /* of the same graph, room for n_token positions */
    const int32_t *tokens;       /* [n_token] */
    const float *logits;         /* of the reference, [n_token, n_vocab] */
    int32_t n_prompt, n_token;
} generation_test;

int generation_samplers(void);
const char *generation_sampler_name(int sampler);

/* From the prompt until the context is full: in one go, and stopped half way and gone on. */
bool generation_equals_cpu(const generation_test *t, int sampler);

/* n sequences, sequence i a longer and longer part of `tokens`, and all of them fed the next tokens step by step. */
bool sequences_have_logits(const generation_test *t, int32_t n);

/* n sequences with prompts, samplers and ends of their own. */
bool sequences_generate_alone(const generation_test *t, int32_t n);

#endif
