/* What is recorded of tensors, computed where they lie: fingerprints (numerics/fingerprint.h), statistics, entropy of
 * attention, the best logits (numerics/summary.h), with the bits that scalar C gets from the same elements. */
#ifndef FD_KERNELS_OBSERVE_SUMMARY_H
#define FD_KERNELS_OBSERVE_SUMMARY_H

#include "kernels/launch_context.h"
#include "numerics/fingerprint.h"
#include "numerics/summary.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of a tensor in device memory. Row r is of position pos0 + r. */
typedef struct fd_row_view {
    const void *data;   /* device: row 0; of a cache: position 0 */
    bool halves;        /* data is of uint16_t: binary16; a row has no runs then; else of float */
    int64_t row_stride; /* elements between rows, or a cache's positions */
    int32_t n;          /* elements of a row; along the positions: 0 */
    int32_t n_run;      /* along the positions: runs of pos0 + r + 1 elements each, a head's one; else 0 */
    int64_t run_stride; /* elements between runs */
    bool by_position;   /* a cache: row r lies at position pos0 + r */
    float *copy;        /* device: row 0 is copied there, its runs without gaps; NULL: not */
    int64_t first;      /* of the row's blocks of FD_SUM_BLOCK elements among all tensors' */
} fd_row_view;

/* The same rows of several tensors, or of one. */
typedef struct fd_row_views {
    const fd_row_view *table; /* device, [n]; NULL: `one` */
    int32_t n;
    int32_t pos0, n_row; /* position of the first row; rows of each tensor */
    int64_t n_block;     /* blocks of FD_SUM_BLOCK elements that a row of all tensors together has */
    fd_row_view one;
} fd_row_views;

/* Bytes of scratch for `n_block` blocks in each of `n_row` rows. */
size_t fd_summary_scratch(int64_t n_block, int32_t n_row);

/* prints and stats [views->n, views->n_row], device; stats NULL: not computed. `copy`: rows are copied where their
 * views say so. Two launches. */
fd_code fd_launch_summary(const fd_launch_context *ctx, const fd_row_views *views, bool copy, void *scratch,
                          fd_fingerprint *prints, fd_stats *stats, fd_error *err);

/* Attention weights: entropy and sink [views->n, views->n_row, n_head]; every tensor has n_head runs. */
fd_code fd_launch_entropy(const fd_launch_context *ctx, const fd_row_views *views, int32_t n_head, float *entropy,
                          float *sink, fd_error *err);

size_t fd_top_scratch(int64_t n_vocab, int32_t n_row);

/* logits [n_row, n_vocab] → top [n_row]. Three launches. */
fd_code fd_launch_top_logits(const fd_launch_context *ctx, const float *logits, int64_t n_vocab, int32_t n_row,
                             void *scratch, fd_top_logits *top, fd_error *err);

#ifdef __cplusplus
}
#endif
#endif
