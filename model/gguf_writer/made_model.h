/* Models of random weights of any architecture, in any type of weights: for CI, tests and benchmarks.
 *
 * What the file holds is not written down here: the architecture's own graph builder is asked which weights it needs
 * (fd_graph_weights). No weight is held in memory: each is a function of (seed, tensor's name, element), computed while
 * the file is written, so the same description gives the same bytes on every machine and with any number of threads.
 *
 * Matrices are ~ N(0, 1/inputs), so that activations keep their size through the layers; norms are near 1. The text
 * such a model writes is noise, its arithmetic is not: no value overflows, nothing is zero. */
#ifndef FD_MODEL_MADE_MODEL_H
#define FD_MODEL_MADE_MODEL_H

#include "model/gguf/gguf.h"

typedef struct fd_made_model {
    const char *arch; /* general.architecture */
    uint64_t seed;
    /* 0: what the architecture's small file has, else 2 layers of width 256, 4 heads, 2 K/V heads, an FFN of 512, 320
     * tokens and 512 positions. */
    int32_t n_layer, n_embd, n_head, n_head_kv, n_ff, n_vocab, n_ctx;
    uint32_t dtype; /* of the matrices, fd_can_make; vectors, norms and routers are F32 as in published files */
    bool mixed;     /* Q4_K_M: FD_Q4_K, some matrices in Q6_K */
    bool tied;      /* no output.weight: the embedding is used again */
    const char
        *keys[4]; /* "NAME=VALUE …" below the architecture's prefix, the first that has a name counts; NULL: none */
    const char *with; /* optional weights, as for fd_graph_weights; NULL: none */
} fd_made_model;

/* Types of matrices: those that fd_quantize_row writes, and every quantised type, as random blocks. Rows that are no
 * whole blocks get a type of smaller blocks, as llama.cpp's quantiser does: Q5_0 for Q4_K, Q5_1 for Q5_K, Q8_0 for Q6_K,
 * IQ4_NL for others of 256, F16 where 32 does not fit either. */
bool fd_can_make(uint32_t dtype);

/* FD_ERR_UNSUPPORTED for an unknown architecture (named, with the known ones), FD_ERR_INPUT for keys and sizes that its
 * graph refuses. From 259 tokens on the file has a vocabulary: bytes, and words that no text holds. */
fd_code fd_made_model_write(const fd_made_model *what, const char *path, fd_error *err);
fd_code fd_made_model_open(const fd_made_model *what, fd_gguf **out, fd_error *err); /* from a file without a name */

#endif
