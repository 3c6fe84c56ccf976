/* RMS_NORM, vectorised, for weights stored as binary32 (as norms are); others go to the scalar kernel. */
#include "reference_cpu/simd_dot.h"

void SCALAR(rms_norm)(const fd_op_args *args, int64_t begin, int64_t end);

void SIMD(rms_norm)(const fd_op_args *args, int64_t begin, int64_t end) {
    const fd_weight *weight = args->weight[0];
    int64_t n = weight->n_col, whole = n - n % VL, rest = n - whole;
    if (weight->dtype != FD_F32) {
        SCALAR(rms_norm)(args, begin, end);
        return;
    }
    const float *weights = weight->data;
    for (int64_t row = begin; row < end; row++) {
        const float *x = (const float *)args->in[0] + row * n;
        const float *w = weights + row % weight->n_row * n;
        float *y = (float *)args->out + row * n;
        float r = 1.0f / sqrtf(dot_one(x, x, n) / (float)n + args->node->eps);
        for (int64_t i = 0; i < whole; i += VL) v_store(y + i, (v_load(x + i) * r) * v_load(w + i));
        v_store_part(y + whole, (v_load_part(x + whole, rest) * r) * v_load_part(w + whole, rest), rest);
    }
}
