/* How engines quantise weights as they load them: integers of a few bits, in groups along a row that share a scale, and perhaps an
 * offset. What they multiply is what the integers stand for, which follows from the file's weights alone. */
#ifndef FD_COMPARE_WEIGHTS_REQUANTISE_H
#define FD_COMPARE_WEIGHTS_REQUANTISE_H

#include "base/status.h"
#include "model/graph.h"

typedef enum fd_requantise_rule {
    FD_REQUANTISE_LARGEST,      /* the largest value is 2^(bits-1) - 1 steps: torchao, bitsandbytes, llama2.c */
    FD_REQUANTISE_LARGEST_WIDE, /* 2^(bits-1), cut to one less */
    FD_REQUANTISE_LARGEST_HALF, /* 2^(bits-1) - 1/2: GPTQ's symmetric grid */
    FD_REQUANTISE_SIGNED,       /* the largest, with its sign, is -2^(bits-1): ggml's Q4_0 and Q5_0 */
    FD_REQUANTISE_ZERO_POINT,   /* from the least to the most, and zero is an integer: GPTQ, AWQ, torchao */
    FD_REQUANTISE_MINIMUM,      /* from the least to the most, the least is kept: HQQ's start, ggml's Q4_1 */
    FD_REQUANTISE_EDGE,         /* the end that is farther from zero is kept, and zero is an integer: MLX */
    FD_REQUANTISE_NF4,          /* the 16 quantiles of a normal distribution: bitsandbytes */
    FD_REQUANTISE_RULES
} fd_requantise_rule;

typedef struct fd_requantisation {
    fd_requantise_rule rule;
    int32_t bits;
    int32_t group;  /* elements; 0: a row */
    uint32_t dtype; /* FD_F32, FD_F16 or FD_BF16: of scales and offsets, and of the weights before */
    bool narrow;    /* integer · scale and the sum with the offset are rounded to it, too */
} fd_requantisation;

/* Those that engines have, scales in binary32, the likelier ones first; false past the end. */
bool fd_requantisation_at(int32_t i, fd_requantisation *out);

/* The same with numbers of other types: way 0 is binary32. */
enum { FD_REQUANTISATION_WAYS = 5 };
void fd_requantisation_keep(fd_requantisation *q, int32_t way);

/* Can rows of so many elements have it? */
bool fd_requantisation_fits(const fd_requantisation *q, int64_t n_col);

/* As the grid's type holds it. */
float fd_requantisation_kept(const fd_requantisation *q, float x);

/* In place: a row of n_col elements. Groups with NaN or Inf stay. */
void fd_requantise_row(const fd_requantisation *q, float *row, int64_t n_col);

/* The whole weight in binary32, under its name. out->data is malloc'ed, and the caller's. */
fd_code fd_requantise_weight(const fd_requantisation *q, const fd_weight *weight, fd_weight *out, fd_error *err);

/* "4 bits in groups of 64, each with a scale and an offset"; returns `to`. */
enum { FD_REQUANTISATION_SIZE = 96 };
const char *fd_requantisation_text(const fd_requantisation *q, char to[FD_REQUANTISATION_SIZE]);

#endif
