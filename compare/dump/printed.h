/* Values that went through text: printed with a few digits and read back they are binary32 again, but coarser than any bound knows.
 * They show it: each is the number nearest to few digits, as no op's results are. */
#ifndef FD_COMPARE_DUMP_PRINTED_H
#define FD_COMPARE_DUMP_PRINTED_H

#include "compare/attribute/attribution.h"

typedef struct fd_printed {
    int32_t n, n_of; /* tensors that were printed, of so many that were looked at */
    int32_t node;    /* the first of them */
    int32_t digits;  /* decimals ("%.4f"), or significant digits ("%.5g") */
    bool decimals;
} fd_printed;

/* What most of the candidate's tensors say. n 0: they were not printed, or with so many digits that nothing was lost. */
fd_code fd_find_printed(const fd_attribution_options *options, fd_printed *out, fd_error *err);

/* The same of `n` values. 0: not printed. */
int32_t fd_printed_digits(const float *x, int64_t n, bool decimals);

#endif
