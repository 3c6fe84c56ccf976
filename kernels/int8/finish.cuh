/* What becomes of a row's dot: bias, then the product as it is kept, silu or the residual. */
#ifndef FD_KERNELS_INT8_FINISH_CUH
#define FD_KERNELS_INT8_FINISH_CUH

#include "kernels/int8/ring.cuh"

/* What one lane adds to its row's dot: found, and the bias loaded, before anything of the previous kernel is read. */
struct q8_finish {
    float *out, *product; /* out NULL: this lane finishes no row */
    const float *residual_at;
    float bias, residual;
    bool adds_bias, is_even;

    __device__ __forceinline__ void begin(const q8_matvec_args &a, int64_t at, bool finishes) {
        out = product = nullptr;
        residual_at = nullptr;
        bias = residual = 0.0f;
        adds_bias = false;
        is_even = at % 2 == 0;
        if (!finishes || at >= a.n_row) return;
        int index;
        const int64_t own = row_of(a, at, &index);
        const matvec_part &part = part_of(a, index);
        out = part.out + own;
        if (part.product) product = part.product + own;
        if (part.residual) residual_at = part.residual + own;
        adds_bias = part.bias != nullptr;
        if (adds_bias) bias = __ldg(part.bias + own);
    }
    /* On its way before the dot is there. */
    __device__ __forceinline__ void load_residual() {
        if (residual_at) residual = __ldcg(residual_at);
    }

    /* `apart`: lanes from a row's to the next one's. All lanes call it. */
    __device__ __forceinline__ void end(const q8_matvec_args &a, float y, int apart) const {
        if (adds_bias) y = y + bias;
        if (product) *product = y;
        if (a.silu_pair) {
            const float up = __shfl_down_sync(0xffffffffu, y, (unsigned)apart);
            if (out && is_even) *out = fd_silu32(y) * up;
        } else if (out) {
            *out = residual_at ? residual + y : y;
        }
    }
};

#endif
