/* How far a right candidate may be from the replayed value: one τ per element, from the data and the candidate's class.
 *
 * For a dot product y = Σ x_k w_k of length n (docs/verdicts.md):
 *
 *     τ = λ·u_acc·√n·Σ|x_k w_k|  +  λ·√Σ(w_k e_k)²  +  2·u_out·max(|c|, |ŷ|)
 *
 * n is the longest chain of additions any order can have; ŷ is replayed in binary64, so the reference adds no chain of its
 * own. e_k is how far the value that the candidate multiplied may be from the one it recorded: its rounding of inputs
 * (u·|x_k|, or 0 where x_k already has that form), the step of int8 blocks (Δ/√12), and the type a trace stores.
 * (Roundings in tensors that were not recorded are replay.h's.) Every other op states its bound beside its function. */
#ifndef FD_COMPARE_BOUNDS_BOUNDS_H
#define FD_COMPARE_BOUNDS_BOUNDS_H

#include <math.h>

#include "compare/bounds/numerics_class.h"
#include "compare/products/memo.h"

/* A τ that stands for "could be anything"; finite, so that its products with 0 are 0. */
#define FD_BOUND_UNKNOWN 1e30

typedef struct fd_bound_args {
    const fd_op_args *op; /* as it ran in binary64: inputs, weights, tables, and the replayed rows in op->out. KV_WRITE:
                             the cache from position 0 */
    const double *in_error[FD_MAX_INPUTS]; /* ≥ 0, laid out as op->in[i]; NULL: recorded just as it was used */
    const double *candidate; /* rows, laid out as op->out (KV_WRITE: [n_pos, width]); NULL: not recorded */
    uint32_t stored;         /* element type in which the candidate's rows were recorded; FD_F64: as is */
    /* FD_Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL: cache rows are blocks of that type, as op->out has them; else not quantised */
    uint32_t kv_type;
    const fd_numerics_class *numerics;
    double n_output;           /* elements that the whole comparison judges, for λ */
    const fd_products *device; /* computes the sums of large products; NULL: the CPU does */
    fd_product_memo *memo;     /* of these sums; NULL: none */
} fd_bound_args;

/* Cache types whose rounding replay repeats. */
static inline bool fd_kv_is_quantised(uint32_t kv_type) {
    return kv_type == FD_Q8_0 || kv_type == FD_Q4_0 || kv_type == FD_Q4_1 || kv_type == FD_Q5_0 || kv_type == FD_Q5_1 ||
           kv_type == FD_IQ4_NL;
}

/* Adds to `to` what n elements in blocks of such a type may be off when the rounding is repeated: x [n] are known to within e
 * [n]; two steps where an element is so near to the middle between two that an engine's own arithmetic may take the other, and what
 * the block's scale and minimum, kept in binary16, may be off by. */
void fd_bound_kv_flips(const double *x, const double *e, int64_t n, uint32_t type, double *to);
/* The same of bfloat16, element by element. */
void fd_bound_bf16_flips(const double *x, const double *e, int64_t n, double *to);

/* tau: rows, laid out as `candidate`; ≥ 0, 0 throughout for an exact class, NaN where inputs are. FD_ERR_MEMORY, or the
 * device's failure. */
fd_code fd_bound(const fd_bound_args *args, double *tau, fd_error *err);

/* |c − ŷ| / τ: 0 when they are equal or the same Inf, +Inf when τ is 0 or one alone is NaN or Inf, and 0 when both are
 * NaN. Beyond the bound is !(z <= 1). */
static inline double fd_bound_z(double candidate, double replayed, double tau) {
    bool nan_c = isnan(candidate), nan_y = isnan(replayed);
    if (nan_c || nan_y) return nan_c && nan_y ? 0 : INFINITY;
    if (candidate == replayed) return 0;
    if (isinf(candidate) || isinf(replayed)) return INFINITY;
    return fabs(candidate - replayed) / tau;
}

/* Adds to `to` what n elements rounded to blocks may be off: nothing, for replay repeats the rounding, or two steps
 * where x, known to within e, is so near to the middle between two that an engine's own arithmetic may take the other.
 * A block's largest magnitude is 127 steps. */
void fd_bound_flips(const double *x, const double *e, int64_t n, int64_t block, double *to);

#endif
