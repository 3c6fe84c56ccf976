/* States that a pass takes over from the one before. */
#ifndef FD_KERNELS_RECURRENT_STATE_CUH
#define FD_KERNELS_RECURRENT_STATE_CUH

#include "kernels/recurrent/recurrent.h"

/* The first row that an item has to take in: 0, or *pos0 where its kept state has taken in those before. */
__device__ __forceinline__ int64_t fd_first_row(const fd_kept_state &kept, int64_t item, int64_t pos0) {
    return kept.position && kept.position[item] == pos0 ? pos0 : 0;
}

static inline fd_code fd_recurrent_check(const char *name, const fd_recurrent_rows *rows, int64_t n, int32_t n_state,
                                         fd_error *err) {
    if (rows->n_tok >= 1 && rows->n_tok <= 65535 && n >= 1 && n <= INT32_MAX && n_state >= 1 &&
        n_state <= FD_RECURRENT_MAX_STATE)
        return FD_OK;
    return fd_fail(err, FD_ERR_INPUT, "kernel %s: %d rows of %lld, states of %d", name, rows->n_tok, (long long)n,
                   n_state);
}

#endif
