#include "engine/slots.h"

#include <stdlib.h>

static size_t slot_bytes(const fd_plan *plan, fd_result type, int32_t slot, fd_extent extent) {
    size_t most = 0, element = type == FD_HALF ? sizeof(uint16_t) : sizeof(float);
    for (int32_t i = 0; i < plan->graph->n_node; i++) {
        if (plan->slot_of[type][i] != slot) continue;
        size_t bytes = element * (size_t)fd_node_row_stride(&plan->graph->nodes[i], extent.n_kv) *
                       (size_t)(plan->all_rows[i] ? extent.n_tok : extent.n_tail);
        if (bytes > most) most = bytes;
    }
    return most;
}

uint64_t fd_slots_bytes(const fd_plan *plan, fd_extent extent) {
    uint64_t bytes = 0;
    for (int t = 0; t < FD_RESULT_COUNT; t++)
        for (int32_t s = 0; s < plan->n_slot[t]; s++) bytes += fd_align(slot_bytes(plan, (fd_result)t, s, extent));
    return bytes;
}

fd_code fd_slots_make(fd_slots *slots, const fd_plan *plan, const fd_plan *other, fd_error *err) {
    for (int t = 0; t < FD_RESULT_COUNT; t++) {
        int32_t n = other && other->n_slot[t] > plan->n_slot[t] ? other->n_slot[t] : plan->n_slot[t];
        slots->of[t] = calloc((size_t)n + 1, sizeof *slots->of[t]);
        if (!slots->of[t]) return fd_fail(err, FD_ERR_MEMORY, "engine: out of memory for %d blocks", n);
        slots->n[t] = n;
    }
    return FD_OK;
}

fd_code fd_slots_reserve(fd_slots *slots, const fd_plan *plan, fd_extent extent, const char *what, bool *moved,
                         fd_error *err) {
    for (int t = 0; t < FD_RESULT_COUNT; t++)
        for (int32_t s = 0; s < plan->n_slot[t]; s++) {
            size_t bytes = slot_bytes(plan, (fd_result)t, s, extent);
            if (bytes > slots->of[t][s].size && moved) *moved = true;
            FD_TRY(fd_device_reserve(&slots->of[t][s], bytes, what, err));
        }
    return FD_OK;
}

void fd_slots_free(fd_slots *slots) {
    for (int t = 0; t < FD_RESULT_COUNT; t++) {
        for (int32_t s = 0; s < slots->n[t]; s++) fd_device_free(&slots->of[t][s]);
        free(slots->of[t]);
    }
    *slots = (fd_slots){0};
}
