#include "compare/measure/step_health.h"

#include <stdlib.h>

fd_code fd_measures_take_health(const fd_trace *ref, const fd_trace *cand, fd_measures *m, fd_error *err) {
    const fd_trace *sides[] = {ref, cand};
    m->health = calloc(2 * (size_t)m->n_pos + 1, sizeof *m->health);
    if (!m->health) return fd_fail(err, FD_ERR_MEMORY, "health of %d positions: out of memory", m->n_pos);
    for (int side = 0; side < 2; side++)
        for (int32_t p = 0; p < m->n_pos && p < fd_trace_n_pos(sides[side]); p++) {
            const fd_trace_health *h = fd_trace_health_at(sides[side], p);
            if (h)
                m->health[side * m->n_pos + p] =
                    (fd_position_health){true, h->n_kv, h->loop_length, h->logit_range, h->top1_probability};
        }
    return FD_OK;
}
