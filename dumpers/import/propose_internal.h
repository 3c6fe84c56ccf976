/* Shared by propose.c (names, lines) and propose_score.c (values). */
#ifndef FD_DUMPERS_IMPORT_PROPOSE_INTERNAL_H
#define FD_DUMPERS_IMPORT_PROPOSE_INTERNAL_H

#include "dumpers/import/propose.h"

enum { FD_PROPOSE_POSITIONS = 6, FD_PROPOSE_KEEP = 4, FD_PROPOSE_MAX_OPS = 96 };

typedef struct fd_candidate {
    int32_t node;                 /* of the reference; -1: none */
    double away;                  /* 1 - |cosine|; 0: the same direction */
    double factor;                /* reference ≈ factor · candidate */
    char ops[FD_PROPOSE_MAX_OPS]; /* "axis=-2 heads=4 interleave" */
} fd_candidate;

typedef struct fd_scorer fd_scorer;
/* Reads the reference's rows at the sampled positions. */
fd_code fd_scorer_new(const fd_import_plan *plan, const fd_trace *ref, fd_scorer **out, fd_error *err);
void fd_scorer_free(fd_scorer *scorer);
/* The nearest nodes of the tensor, best first, each node once: best [FD_PROPOSE_KEEP]; `slice` "" or an operation that takes a
 * part of the tensor. `tensors` [n]: its occurrences over the steps. */
fd_code fd_scorer_rank(fd_scorer *scorer, const size_t *tensors, size_t n, const char *slice, fd_candidate *best,
                       fd_error *err);

#endif
