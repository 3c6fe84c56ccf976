#include "dumpers/observe/health.h"

#include <math.h>
#include <string.h>

static double element(uint32_t dtype, const void *data, int64_t i) {
    return dtype == FD_F64 ? ((const double *)data)[i] : (double)((const float *)data)[i];
}

/* Many fused multiply-adds: a call of libm's fma for each unless the machine's own instruction may be used. Both are
 * correctly rounded, so the bits are the same. (clang 14 emits clones that other files cannot call; under
 * ThreadSanitizer clones are chosen before it runs, and crash.) */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
__attribute__((target_clones("fma", "default")))
#endif
void fd_health_attention(uint32_t dtype, const void *weights, int32_t n_head, int64_t head_stride, int32_t n_kv,
                         float *entropy, float *sink) {
    for (int32_t head = 0; head < n_head; head++) {
        int64_t first = head * head_stride;
        fd_sum64 sum = {0};
        for (int32_t k = 0; k < n_kv; k++) fd_sum64_add(&sum, fd_plogp(element(dtype, weights, first + k)));
        entropy[head] = (float)(0.0 - fd_sum64_end(&sum)); /* +0 for a single certain position, not -0 */
        sink[head] = (float)element(dtype, weights, first);
    }
}

static void no_logits(fd_top_logits *out) {
    for (int i = 0; i < FD_TOP_K; i++) {
        out->logit[i] = NAN;
        out->id[i] = -1;
    }
    out->probability = out->range = NAN;
}

void fd_health_logits(uint32_t dtype, const void *logits, int64_t n_vocab, fd_top_logits *out) {
    double best[FD_TOP_K];
    int n_best = 0;
    int32_t id[FD_TOP_K];
    no_logits(out);
    for (int64_t i = 0; i < n_vocab; i++) {
        double x = element(dtype, logits, i);
        if (isnan(x)) {
            out->id[0] = (int32_t)i;
            return;
        }
        if (n_best == FD_TOP_K && !(x > best[FD_TOP_K - 1])) continue;
        int at = n_best < FD_TOP_K ? n_best++ : FD_TOP_K - 1;
        for (; at > 0 && x > best[at - 1]; at--) {
            best[at] = best[at - 1];
            id[at] = id[at - 1];
        }
        best[at] = x;
        id[at] = (int32_t)i;
    }
    for (int i = 0; i < n_best; i++) {
        out->logit[i] = (float)best[i];
        out->id[i] = id[i];
    }
    if (n_best == 0) return;
    fd_sum64 sum = {0};
    for (int64_t i = 0; i < n_vocab; i++) fd_sum64_add(&sum, fd_share64(element(dtype, logits, i) - best[0]));
    out->probability = isinf(best[0]) ? NAN : (float)(1.0 / fd_sum64_end(&sum));
    if (n_best == FD_TOP_K) out->range = (float)(best[0] - best[FD_TOP_K - 1]);
}

void fd_health_note(const fd_top_logits *top, fd_trace_health *out) {
    memcpy(out->top_logit, top->logit, sizeof out->top_logit);
    memcpy(out->top_id, top->id, sizeof out->top_id);
    out->top1_probability = top->probability;
    out->logit_range = top->range;
}

void fd_health_clear(fd_trace_health *out) {
    fd_top_logits none;
    memset(out, 0, sizeof *out);
    no_logits(&none);
    fd_health_note(&none, out);
}

int32_t fd_health_loop(const int32_t *tokens, int32_t n) {
    for (int32_t period = 1; period <= n / 3; period++) {
        int32_t span = 3 * period < 6 ? 6 : 3 * period, same = period;
        if (span > n) continue;
        while (same < span && tokens[n - 1 - (same - period)] == tokens[n - 1 - same]) same++;
        if (same == span) return period;
    }
    return 0;
}
