/* The emulating executor: runs a graph on the CPU with the roundings of a production engine, so that noise is tested
 * against something real.
 *
 * It plays "another engine": a class says what is rounded to which type, and a seed picks the orders of summation. It
 * shares no code with reference_cpu. Everything is computed in binary32 and rounded where such an engine rounds;
 * observers see binary32. Faults (attributes, weights, overridden nodes) are honoured; an overridden node's result is
 * rounded like any other. Numerics FD_NUMERICS_FAST, contract 0: nothing about it is exact, but one class, seed and
 * model give the same bits on one machine, whatever the threads, and whether an observer watches. */
#ifndef FD_EMULATE_EMULATE_H
#define FD_EMULATE_EMULATE_H

#include "exec/exec.h"

typedef enum fd_emulate_type {
    FD_EMULATE_F32,
    FD_EMULATE_TF32, /* 10 bits of mantissa, binary32's exponent */
    FD_EMULATE_F16,  /* overflows to Inf, as it does there */
    FD_EMULATE_BF16,
    /* `product` alone. Activations become what llama.cpp's CPU dot takes with the weight's type (blocks of 32 and NVFP4:
     * Q8_0, or Q8_1, whose values are the same; blocks of 256: Q8_K; F16: F16; BF16: BF16; F32: as they are); weights
     * stay. Source: type_traits_cpu, ggml-cpu.c. */
    FD_EMULATE_OF_WEIGHT,
    /* `product` alone. What llama.cpp's CUDA kernels take with the weight's type (quantised: Q8_1, blocks of 32 with
     * the scale in f16; F16, BF16: that; F32: TF32, the weights too). */
    FD_EMULATE_OF_WEIGHT_CUDA,
} fd_emulate_type;

typedef struct fd_emulate_class {
    const char *name; /* "f16" */
    const char *summary;
    fd_emulate_type product;   /* weights and activations before they are multiplied (MATMUL) */
    fd_emulate_type attention; /* q, k, weights and v before they are multiplied (ATTN_SCORES, ATTN_MIX) */
    fd_emulate_type tensor; /* every tensor between ops, parameter vectors, and what an op of several kernels keeps */
    fd_emulate_type cache;  /* rows of K and V */
    bool f16_sum;           /* the products' sums live in f16; the products of one step are added in binary32 first */
    bool f16_sum_of_f16;    /* those of F16 weights alone, and of ATTN_MIX */
    bool own_angles;        /* rope: frequency, angle, cos and sin in binary32, not the graph's shared tables */
    bool batch_kernels;     /* batches of several tokens sum in other orders than single ones: prefill differs from
                                  decode. In every other class they agree bit by bit */
} fd_emulate_class;

int32_t fd_emulate_class_count(void);
const fd_emulate_class *fd_emulate_class_at(int32_t i);
const fd_emulate_class *fd_emulate_class_find(const char *name); /* NULL when there is none */

typedef struct fd_emulate_options {
    const fd_emulate_class *class_;
    uint64_t seed;    /* picks the orders of summation */
    int32_t n_ctx;    /* positions of K/V cache; ≥ 1 */
    int32_t n_thread; /* 0: all cores. Never changes a bit */
} fd_emulate_options;

/* "f16" or "f16:7" (class and seed, 0 without) into options->class_ and ->seed. FD_ERR_INPUT names the known
 * classes. */
fd_code fd_emulate_parse(const char *text, size_t size, fd_emulate_options *options, fd_error *err);

/* `graph` must outlive the executor, whose numerics_name is "emulate-CLASS" or "emulate-CLASS:SEED". */
fd_code fd_emulate_new(const fd_graph *graph, const fd_emulate_options *options, fd_exec **out, fd_error *err);

#endif
