#include "compare/attribute/extent.h"

static bool is_beyond(float z) {
    return !(z <= 1);
}

fd_verdict_extent fd_extent_of(const float *z, int32_t n_pos, const fd_trace_step *steps, int32_t n_step) {
    fd_verdict_extent e = {.first = -1, .last = -1, .first_step = -1, .last_step = -1};
    int32_t beyond[2] = {0, 0}, right[2] = {0, 0}; /* in prefill and verify steps, in decode steps */
    for (int32_t s = 0; s < n_step; s++) {
        bool decode = steps[s].kind == FD_STEP_DECODE;
        for (int32_t pos = steps[s].pos0; pos < steps[s].pos0 + steps[s].n_pos && pos < n_pos; pos++) {
            if (z[pos] < 0) continue;
            e.n_judged++;
            if (!is_beyond(z[pos])) {
                right[decode] += pos > 0; /* many bugs do not show at position 0 */
                continue;
            }
            beyond[decode]++;
            if (e.first < 0) e.first = pos, e.first_step = s;
            e.last = pos, e.last_step = s;
        }
    }
    e.n_beyond = beyond[0] + beyond[1];
    if (beyond[1] > 0 && beyond[0] == 0 && right[0] > 0) e.only = FD_ONLY_IN_DECODE;
    if (beyond[0] > 0 && beyond[1] == 0 && right[1] > 0) e.only = FD_ONLY_IN_PREFILL;
    return e;
}
