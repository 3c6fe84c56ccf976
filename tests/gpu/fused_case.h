/* Fused products of one kernel launch (fd_matvec), for the checks of every kernel that takes them. */
#ifndef FD_TESTS_GPU_FUSED_CASE_H
#define FD_TESTS_GPU_FUSED_CASE_H

#include "kernels/matmul/matmul.h"
#include "tests/gpu/gpu_case.h"

typedef struct fused_case {
    int n_part;
    int64_t n_row[FD_MATVEC_PARTS], n_col;
    bool norm, silu, residual;
} fused_case;

/* For every kernel that takes one row. */
enum { N_FUSED_CASE = 8, FUSED_MOST = 4096 };
extern const fused_case fused_cases[N_FUSED_CASE];

/* What the products of one row read. */
typedef struct fused_inputs {
    float x[FUSED_MOST]; /* [n_col] as the matrices get it: normed where the case says so */
    float bias[FUSED_MOST], residual[FUSED_MOST];
    float *device_x, *device_norm, *device_bias, *device_residual;
} fused_inputs;

/* Random ones, and `in` without its parts. */
void fused_open(gpu_test *test, const fused_case *f, fused_inputs *inputs, fd_matvec *in);

/* "PREFIX_TYPE_ROWSxCOLUMNS_part_P_of_N", then what is fused; "" behind it ends the name of the case. */
void fused_name(char *to, size_t size, const char *prefix, uint32_t dtype, const fused_case *f, int p,
                const char *behind);

/* Part p of `in`, for in->n_tok rows: a random weight, the bias (but for part 1), the residual, an output that is
 * poisoned. Returns the weight as a file holds it, and its rows in binary32. */
void *fused_part(gpu_test *test, uint32_t dtype, const fused_case *f, int p, const float *bias, const float *residual,
                 fd_matvec *in, float **dequantised);

/* RMS norm in the contract's order. */
void host_norm(const float *x, const float *weight, int64_t n, float eps, float *out);

#endif
