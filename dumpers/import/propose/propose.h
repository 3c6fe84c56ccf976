/* --map auto: a map proposed from shapes, values and names. Values decide: every foreign tensor is compared with every
 * node of the model that has as many elements, in every layout that engines use, and their directions are compared
 * (the cosine of the elements at some positions, so that a constant factor does not matter). A node is taken only when
 * it fits and the next best one is clearly further away; else the line is an `ask`. How small a difference is never
 * decides between two. */
#ifndef FD_DUMPERS_IMPORT_PROPOSE_PROPOSE_H
#define FD_DUMPERS_IMPORT_PROPOSE_PROPOSE_H

#include <stdio.h>

#include "dumpers/import/import.h"

typedef struct fd_proposal {
    size_t n_sure, n_ask, n_unmatched; /* names of tensors, over all steps */
    size_t n_by_name; /* their values do not decide, but names of the same form in at least two other layers */
    size_t n_differ;  /* of these: their values are clear, but fit another rule than most other layers' (# ask) */
    size_t n_missing; /* nodes of the reference that no name is */
    double
        agreement; /* of the names that values decide with their nodes: squares of digits beyond the second, summed */
} fd_proposal;

/* A name of every layer that no values decide, and a node that it may be by its size. */
typedef struct fd_propose_choice {
    char source[300]; /* "L{layer}_mid" */
    char node[96];    /* "blk.{layer}.ffn_inp" */
    char ops[96];     /* how the array is read: "axis=-2" */
} fd_propose_choice;

/* The choices that a proposed map leaves open (its lines "ask … by size alone"), in its order: *out [*n], the caller frees it. */
fd_code fd_propose_choices(const char *map, fd_propose_choice **out, size_t *n, fd_error *err);

/* `options->graph` is needed; `options->map`: names that it knows are left out, NULL: none. `ref`: a full trace of the model on the same
 * tokens; `own`: its values follow from those that this map takes of the source, NULL: from the model alone. The map is written to `out`;
 * each line's comment gives a confidence from 0 to 1. */
fd_code fd_propose_map(const fd_source *source, const fd_import_options *options, const fd_trace *ref,
                       const fd_name_map *own, FILE *out, fd_proposal *proposal, fd_error *err);

/* A plan without a map: tokens, steps and the model's sizes. Freed with fd_import_plan_free. */
fd_code fd_import_begin_plan(const fd_source *source, const fd_import_options *options, fd_import_plan *out,
                             fd_error *err);

#endif
