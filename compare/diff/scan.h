/* Finds which tensors of two traces differ: several threads read the elements of many nodes and positions raw and
 * compare them. Used inside compare/ only.
 *
 * Where both files have the same chunks, equal bytes are equal tensors, and nothing else is compared. Only where
 * bytes differ are elements compared as in tensor_diff.h (another NaN or another element type is not a difference).
 * What cannot be read raw comes through the HDF5 library, row by row.
 *
 * With pair->peers every process looks at its share of the pairs, and all get what was found. */
#ifndef FD_COMPARE_DIFF_SCAN_H
#define FD_COMPARE_DIFF_SCAN_H

#include "compare/diff/trace_pair.h"

typedef struct fd_scanned {    /* one node in one range of positions, up to the first that differs */
    int32_t n_seen, n_unknown; /* positions compared, and not recorded on both sides; the differing one is seen */
    int32_t differs;           /* first position that differs; -1: none */
    bool read;                 /* elements were compared, not only fingerprints */
} fd_scanned;

/* Compares pairs [first, first + n) of pair->align at positions [pos, end). out [n]. FD_ERR_INPUT when a file cannot be
 * read, FD_ERR_MEMORY. */
fd_code fd_scan(fd_trace_pair *pair, int32_t first, int32_t n, int32_t pos, int32_t end, fd_scanned *out,
                fd_error *err);

/* How many pairs one call should be given for that many positions, so that its lists stay within pair->memory. */
int32_t fd_scan_batch(const fd_trace_pair *pair, int32_t n_pos);

#endif
