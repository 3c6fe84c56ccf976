#include "emulate/order.h"

#include "base/clones.h"
#include "emulate/rounding.h"
#include "numerics/fingerprint.h"

enum { MAX_LANES = 32 };

fd_emulate_order fd_emulate_order_pick(uint64_t seed, uint32_t kernel) {
    static const int32_t lanes[] = {1, 4, 8, 16, 32}, blocks[] = {0, 64, 96, 128, 256, 512}, steps[] = {4, 8, 16};
    uint64_t bits = fd_mix64(fd_mix64(seed + 1) + kernel);
    return (fd_emulate_order){
        .lanes = lanes[bits % 5], .block = blocks[(bits >> 8) % 6], .f16_step = steps[(bits >> 16) % 3]};
}

static inline float join(float *lane, int lanes) {
    for (int m = lanes / 2; m > 0; m /= 2)
        for (int j = 0; j < m; j++) lane[j] = lane[j] + lane[j + m];
    return lane[0];
}

/* `lanes` is a constant at every call, so that the inner loop becomes vector instructions. */
static inline __attribute__((always_inline)) float dot_lanes(const float *w, const float *x, int64_t n, int lanes) {
    float lane[MAX_LANES] = {0};
    int64_t k = 0;
    for (; k + lanes <= n; k += lanes)
        for (int j = 0; j < lanes; j++) lane[j] = lane[j] + w[k + j] * x[k + j];
    for (int j = 0; k + j < n; j++) lane[j] = lane[j] + w[k + j] * x[k + j];
    return join(lane, lanes);
}

FD_FOR_EACH_CPU static float dot_block(const float *w, const float *x, int64_t n, int32_t lanes) {
    switch (lanes) {
    case 4: return dot_lanes(w, x, n, 4);
    case 8: return dot_lanes(w, x, n, 8);
    case 16: return dot_lanes(w, x, n, 16);
    case 32: return dot_lanes(w, x, n, 32);
    default: return dot_lanes(w, x, n, 1);
    }
}

float fd_emulate_dot(const fd_emulate_order *order, const float *w, const float *x, int64_t n) {
    int64_t block = order->block ? order->block : n;
    float total = 0;
    for (int64_t at = 0; at < n; at += block)
        total = total + dot_block(w + at, x + at, n - at < block ? n - at : block, order->lanes);
    return total;
}

float fd_emulate_sum(const fd_emulate_order *order, const float *x, int64_t n) {
    int64_t block = order->block ? order->block : n;
    float total = 0;
    for (int64_t at = 0; at < n; at += block) {
        float lane[MAX_LANES] = {0};
        int64_t end = at + block < n ? at + block : n;
        for (int64_t k = at; k < end; k++) lane[(k - at) % order->lanes] += x[k];
        total = total + join(lane, order->lanes);
    }
    return total;
}

float fd_emulate_dot_f16(const fd_emulate_order *order, const float *w, const float *x, int64_t n) {
    float total = 0;
    for (int64_t at = 0; at < n; at += order->f16_step) {
        int64_t end = at + order->f16_step < n ? at + order->f16_step : n;
        float step = 0;
        for (int64_t k = at; k < end; k++) step = step + w[k] * x[k];
        total = fd_round_f16(total + step);
    }
    return total;
}

FD_FOR_EACH_CPU void fd_emulate_dots_f16(const fd_emulate_order *order, const float *w,
                                         const float *const x[FD_EMULATE_DOTS], int64_t n, float out[FD_EMULATE_DOTS]) {
    float total[FD_EMULATE_DOTS] = {0};
    for (int64_t at = 0; at < n; at += order->f16_step) {
        int64_t end = at + order->f16_step < n ? at + order->f16_step : n;
        float step[FD_EMULATE_DOTS] = {0};
        for (int64_t k = at; k < end; k++)
            for (int i = 0; i < FD_EMULATE_DOTS; i++) step[i] = step[i] + w[k] * x[i][k];
        for (int i = 0; i < FD_EMULATE_DOTS; i++) total[i] = fd_round_f16(total[i] + step[i]);
    }
    for (int i = 0; i < FD_EMULATE_DOTS; i++) out[i] = total[i];
}
