/* Between rounding_engine.c and its ops of experts, heads and recurrent layers. */
#ifndef FD_TESTS_COMPARE_ROUNDING_OPS_H
#define FD_TESTS_COMPARE_ROUNDING_OPS_H

#include "tests/compare/rounding_engine.h"

/* ---- rounding_engine.c ---- */

double rounding_kernel_u(const fd_numerics_class *c);
void rounding_shuffle(int32_t *order, int32_t n);
double rounding_sum_products(const double *a, const double *b, int32_t n, double u_acc);
void rounding_matmul_inputs(const fd_numerics_class *c, uint32_t dtype, const double *x, double *out, int32_t n);
void rounding_matmul(const fd_op_args *a, const fd_numerics_class *c, double *out);
double rounding_dot(const double *a, const double *b, int64_t n, double u);

/* ---- rounding_experts.c ---- */

void rounding_softmax_of(const double *x, double *out, int64_t n, const fd_numerics_class *c);
void rounding_top_k(const fd_op_args *a, double *out);
void rounding_expert_weights(const fd_op_args *a, const fd_numerics_class *c, double *out);
void rounding_expert_matmul(const fd_op_args *a, const fd_numerics_class *c, double *out);
void rounding_expert_sum(const fd_op_args *a, const fd_numerics_class *c, double *out);
void rounding_head_matmul(const fd_op_args *a, const fd_numerics_class *c, double *out);

/* ---- rounding_recurrent.c ---- */

void rounding_conv(const fd_op_args *a, const fd_numerics_class *c, double *out);
void rounding_scan(const fd_op_args *a, const fd_numerics_class *c, double *out);
void rounding_token_shift(const fd_op_args *a, const fd_numerics_class *c, double *out);
void rounding_delta(const fd_op_args *a, const fd_numerics_class *c, double *out);
void rounding_wkv(const fd_op_args *a, const fd_numerics_class *c, double *out);

#endif
