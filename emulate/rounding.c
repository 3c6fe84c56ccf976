#include "emulate/rounding.h"

#include "base/clones.h"

FD_FOR_EACH_CPU void fd_round_row(fd_emulate_type type, const float *x, float *out, int64_t n) {
    switch (type) {
    case FD_EMULATE_TF32:
        for (int64_t i = 0; i < n; i++) out[i] = fd_round_tf32(x[i]);
        return;
    case FD_EMULATE_F16:
        for (int64_t i = 0; i < n; i++) out[i] = fd_round_f16(x[i]);
        return;
    case FD_EMULATE_BF16:
        for (int64_t i = 0; i < n; i++) out[i] = fd_round_bf16(x[i]);
        return;
    case FD_EMULATE_F32:
    case FD_EMULATE_OF_WEIGHT:
    case FD_EMULATE_OF_WEIGHT_CUDA: break;
    }
    for (int64_t i = 0; i < n; i++) out[i] = x[i];
}
