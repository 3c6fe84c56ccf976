/* What the parts of fd_fast_check share. */
#ifndef FD_TESTS_GPU_FAST_CHECK_H
#define FD_TESTS_GPU_FAST_CHECK_H

#include "engine/engine.h"
#include "tests/nmse.h"

/* Factors are off by 2^-12 on average, errors of layers add up; the worst logits seen had NMSE 2.5e-6, the worst
 * node 5.3e-6. */
#define LIMIT 1e-4
/* An int8 block is off by max / 127 / sqrt(12) an element: NMSE 32 / (12·127^2) = 1.7e-4 at most of each product's
 * input, 2.5e-5 where elements are normally distributed; a node hands on those of some tens of products before it. */
#define LIMIT_INT8 1e-3

typedef struct rows { /* a node's tensor over all positions fed */
    float *data;
    size_t n;
} rows;

typedef struct check {
    const fd_graph *graph;
    int32_t n_prefill, n_token;
    int32_t *tokens;
    float *exact, *fast, *again; /* logits, [n_token, n_vocab] */
    rows *seen;                  /* [n_node] of the reference, one forward call */
    double *error, *power;       /* [n_node] sums over calls */
    int32_t n_shown, n_wrong, n_bad_weight, n_failed;
    double limit;       /* LIMIT, or LIMIT_INT8 where there are such products */
    int32_t same_until; /* first position whose experts differ; n_token: none */
    bool wide_margin;   /* and by more than rounding explains */
} check;

/* Zeroed; ends the program where there is none. */
void *room(size_t n, size_t size);

/* Prints a line and counts what does not hold. */
void verdict(check *c, const char *what, bool holds);

size_t n_logits(const check *c);

/* Prints the first element that differs. */
bool same_bits(const char *what, const float *a, const float *b, size_t n);

/* ---- the checks in files of their own ---- */
void check_traced(check *c, fd_exec *cpu, fd_exec *gpu);
void check_sequences(check *c, int32_t n, fd_int8 int8);

#endif
