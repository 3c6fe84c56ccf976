/* A small model in memory, made with the GGUF writer: 2 layers, width 64, 4 heads, 2 K/V heads, vocabulary 32. */
#ifndef FD_TESTS_GRAPH_SMALL_MODEL_H
#define FD_TESTS_GRAPH_SMALL_MODEL_H

#include "model/graph.h"

typedef struct small_model_options {
    const char *arch;     /* "llama" or "qwen2" */
    const char *skip;     /* a tensor to leave out, or NULL */
    const char *widen;    /* a tensor whose first dimension gets 32 more, or NULL */
    const char *extra;    /* an additional tensor of 32 elements, or NULL */
    const char *drop_key; /* a metadata key (without the architecture) to leave out, or NULL */
    const char *set_key;  /* a u32 key (without the architecture) to set to `set_value`, or NULL */
    uint32_t set_value;
    const char *extra_key; /* an additional f32 key (without the architecture) of value `extra_value`, or NULL */
    float extra_value;
    const char *scaling; /* rope.scaling.type, or NULL */
    float scaling_factor;
    bool tied; /* no output.weight */
} small_model_options;

/* Its file has no name any more. Lives until the end of the test. */
fd_gguf *small_model(const small_model_options *options);

#endif
