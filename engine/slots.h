/* Memory for the results of passes: a block a slot of a plan, or of several plans that never run at the same time. */
#ifndef FD_ENGINE_SLOTS_H
#define FD_ENGINE_SLOTS_H

#include "engine/memory.h"
#include "engine/plan.h"

typedef struct fd_slots {
    fd_block *of[FD_RESULT_COUNT]; /* owned arrays of owned blocks */
    int32_t n[FD_RESULT_COUNT];
} fd_slots;

/* Rows and positions of a pass, by which its results are sized. */
typedef struct fd_extent {
    int32_t n_tok, n_kv;
    int32_t n_tail; /* rows of the nodes outside fd_plan.all_rows */
} fd_extent;

/* Device memory that a pass takes. */
uint64_t fd_slots_bytes(const fd_plan *plan, fd_extent extent);

/* Empty blocks for the plan, and for `other` (NULL: none). */
fd_code fd_slots_make(fd_slots *slots, const fd_plan *plan, const fd_plan *other, fd_error *err);
/* Room for a pass. *moved, which may be NULL: some block did not have it and has another address now. */
fd_code fd_slots_reserve(fd_slots *slots, const fd_plan *plan, fd_extent extent, const char *what, bool *moved,
                         fd_error *err);
void fd_slots_free(fd_slots *slots);

#endif
