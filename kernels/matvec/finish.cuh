/* What becomes of a row's dot: bias, then the product as an observer sees it, silu or the residual. */
#ifndef FD_KERNELS_MATVEC_FINISH_CUH
#define FD_KERNELS_MATVEC_FINISH_CUH

#include "kernels/matvec/stage.cuh"

/* What one lane adds to its row's dot: found, and the bias loaded, before anything of the previous kernel is read. */
struct row_finish {
    float *out, *product; /* out NULL: this lane finishes no row */
    const float *residual_at;
    float bias, residual;
    bool adds_bias, adds_residual;

    /* Row `at` of all parts, for token row `token` of x. */
    __device__ __forceinline__ void begin(const matvec_args &a, int64_t at, bool finishes, int token = 0) {
        out = product = nullptr;
        residual_at = nullptr;
        bias = residual = 0.0f;
        adds_bias = adds_residual = false;
        if (!finishes || at >= a.n_row) return;
        int index;
        const int64_t own = row_of(a, at, &index);
        const matvec_part &part = part_of(a, index);
        const int64_t to = token * part.n_row + own;
        out = part.out + to;
        if (part.product) product = part.product + to;
        adds_residual = part.residual != nullptr;
        if (adds_residual) residual_at = part.residual + to;
        adds_bias = part.bias != nullptr;
        if (adds_bias) bias = __ldg(part.bias + own);
    }
    /* Requests it before the dot is there. */
    __device__ __forceinline__ void load_residual() {
        if (adds_residual) residual = __ldcg(residual_at);
    }

    /* `is_even`: the number of the lane's row is; `apart`: lanes from a row's to the next one's. All lanes call it. */
    __device__ __forceinline__ void end(const matvec_args &a, float y, bool is_even, int apart) const {
        y = settle(y);
        if (a.silu_pair) {
            const float up = __shfl_down_sync(0xffffffffu, y, (unsigned)apart);
            if (out && is_even) leave(a, fd_silu32(y) * up);
        } else {
            leave_sum(a, y);
        }
    }

    /* Of a lane that has the rows of even and odd number of a pair. */
    static __device__ __forceinline__ void end_both(const matvec_args &a, const row_finish (&of)[2],
                                                    const float (&sums)[2]) {
        const float even = of[0].settle(sums[0]), odd = of[1].settle(sums[1]);
        if (a.silu_pair) {
            if (of[0].out) of[0].leave(a, fd_silu32(even) * odd);
        } else {
            of[0].leave_sum(a, even);
            of[1].leave_sum(a, odd);
        }
    }

    /* With the bias, as an observer sees it. */
    __device__ __forceinline__ float settle(float y) const {
        if (adds_bias) y = y + bias;
        if (product) *product = y;
        return y;
    }

    __device__ __forceinline__ void leave_sum(const matvec_args &a, float y) const {
        if (out) leave(a, adds_residual ? residual + y : y);
    }

    __device__ __forceinline__ void leave(const matvec_args &a, float y) const {
        if (a.send.n_rank > 0)
            fd_send_element(a.send, out - a.part[0].out, y);
        else
            *out = y;
    }
};

#endif
