/* In which types K and V are kept. */
#ifndef FD_COMPARE_REPLAY_KV_TYPES_H
#define FD_COMPARE_REPLAY_KV_TYPES_H

#include "compare/bounds/numerics_class.h"
#include "dumpers/store/trace.h"

/* As `said` ("q8_0", "q8_0/f16" of K and V), or (NULL) as the trace says; FD_F32: as the class keeps them, binary16 too. */
void fd_kept_types(const fd_numerics_class *numerics, const fd_trace *trace, const char *said, uint32_t *k,
                   uint32_t *v);

/* Of what attention's scores, or its weighted sum, read; FD_F32: of no cache of K or V. */
static inline uint32_t fd_kept_type_of(fd_op reader, uint32_t k, uint32_t v) {
    return reader == FD_OP_ATTN_SCORES ? k : reader == FD_OP_ATTN_MIX ? v : FD_F32;
}

#endif
