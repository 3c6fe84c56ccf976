/* What the products of experts have in common, whatever their numerics. */
#ifndef FD_KERNELS_MATVEC_EXPERT_MATMUL_CUH
#define FD_KERNELS_MATVEC_EXPERT_MATMUL_CUH

#include "kernels/matvec/experts.h"

/* -1 when the real names none of [0, n). */
__device__ __forceinline__ int64_t fd_expert_id(float id, int64_t n) {
    return id >= 0.0f && id < (float)n && id == (float)(int64_t)id ? (int64_t)id : -1;
}

/* Whose matrix multiplies this item, a row and a rank; -1: no expert's. */
__device__ __forceinline__ int64_t fd_expert_of_item(const fd_expert_matmul &a, int64_t item) {
    return a.ids ? fd_expert_id(a.ids[item], a.weight.n_row / a.n_out) : item % a.k;
}

static inline fd_code fd_expert_matmul_check(const fd_expert_matmul *in, fd_error *err) {
    if (in->n_row < 1 || in->n_row > INT32_MAX || in->n_out < 1 || in->n_out > INT32_MAX || in->k < 1 || in->k > 65535)
        return fd_fail(err, FD_ERR_INPUT, "kernel expert_matmul: %lld rows of %lld, %d chosen", (long long)in->n_row,
                       (long long)in->n_out, in->k);
    if (in->weight.n_row % in->n_out != 0)
        return fd_fail(err, FD_ERR_INPUT, "kernel expert_matmul: %lld rows, %lld an expert",
                       (long long)in->weight.n_row, (long long)in->n_out);
    if (!in->ids && in->weight.n_row / in->n_out != in->k)
        return fd_fail(err, FD_ERR_INPUT, "kernel expert_matmul: %lld matrices for %d ranks",
                       (long long)(in->weight.n_row / in->n_out), in->k);
    return FD_OK;
}

/* Calls launch(part, rows · ranks of it) for as many rows at a time as a grid has blocks in y: 65,535 items. */
template <class Launch> static fd_code fd_expert_matmul_parts(const fd_expert_matmul *in, Launch launch) {
    const int64_t at_once = 65535 / in->k;
    for (int64_t row = 0; row < in->n_row; row += at_once) {
        fd_expert_matmul part = *in;
        part.n_row = in->n_row - row < at_once ? in->n_row - row : at_once;
        part.x += row * (in->x_each ? in->k : 1) * in->weight.n_col;
        if (part.ids) part.ids += row * in->k;
        part.out += row * in->k * in->n_out;
        const fd_code code = launch(part, (unsigned)(part.n_row * in->k));
        if (code != FD_OK) return code;
    }
    return FD_OK;
}

#endif
