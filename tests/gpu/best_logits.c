#include "tests/gpu/best_logits.h"

#include <math.h>
#include <stdbool.h>

void best_logits(const float *x, int32_t n, fd_top_logits *out) {
    fd_sum64 sum = {0};
    int32_t n_best = 0;
    for (int i = 0; i < FD_TOP_K; i++) out->logit[i] = NAN, out->id[i] = -1;
    out->range = out->probability = NAN;
    for (int32_t i = 0; i < n; i++)
        if (isnan(x[i])) {
            out->id[0] = i;
            return;
        }
    for (; n_best < FD_TOP_K && n_best < n; n_best++) {
        int32_t best = -1;
        for (int32_t i = 0; i < n; i++) {
            bool taken = false;
            for (int32_t k = 0; k < n_best; k++) taken = taken || out->id[k] == i;
            if (!taken && (best < 0 || x[i] > x[best])) best = i;
        }
        out->id[n_best] = best;
        out->logit[n_best] = x[best];
    }
    for (int32_t i = 0; i < n; i++) fd_sum64_add(&sum, fd_share64((double)x[i] - (double)out->logit[0]));
    if (!isinf(out->logit[0])) out->probability = (float)(1.0 / fd_sum64_end(&sum));
    if (n_best == FD_TOP_K) out->range = (float)((double)out->logit[0] - (double)out->logit[FD_TOP_K - 1]);
}
