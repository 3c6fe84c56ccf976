/* Tensors whose values all have a 16-bit form, though the class keeps them in binary32 and others show it: an engine that rounds
 * them, its residual stream for one, or a dump that was saved so. The bounds of a class of int8 blocks or of coarse sums have room
 * for that, the values do not. */
#ifndef FD_COMPARE_DUMP_NARROW_H
#define FD_COMPARE_DUMP_NARROW_H

#include "compare/attribute/attribution.h"

typedef struct fd_narrow {
    int32_t n;      /* such tensors */
    int32_t node;   /* the first */
    uint32_t dtype; /* of the first: FD_F16 or FD_BF16 */
} fd_narrow;

/* options->numerics is the class. n 0: none, or all of them are so, which the trace's own type says better. `saved_so`: tensors that
 * the trace holds in 16 bits count too, even where all of them are. */
fd_code fd_find_narrow(const fd_attribution_options *options, bool saved_so, fd_narrow *out, fd_error *err);

/* The type that holds all of `n` values, FD_F16 or FD_BF16; FD_F32: neither does, or too few are there to say. */
uint32_t fd_narrow_type(const float *x, int64_t n);

#endif
