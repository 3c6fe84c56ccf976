/* Did the engine quantise the file's weights again, as it loaded them? Where the candidate recorded no hashes of its weights, its
 * values say so: with d = (what the op gives with weights that were quantised) − (with the file's) and r = candidate − (with the
 * file's), Σ r·d / Σ d² is 1 for the right bits and groups, and 0 for all others, because two grids round independently.
 * Activations that are rounded too make r larger and leave the slope as it is. */
#ifndef FD_COMPARE_WEIGHTS_REQUANTISED_H
#define FD_COMPARE_WEIGHTS_REQUANTISED_H

#include "compare/weights/internal.h"
#include "compare/weights/requantise.h"

typedef struct fd_requantised_options {
    const fd_graph *graph;
    const fd_trace *cand;
    fd_op_fn op;
    int32_t n_pos; /* positions that may be looked at */
} fd_requantised_options;

/* By the candidate's values. Where some were: verdict->weights is filled, and `loaded` has the graph with the weights as the engine
 * had them; of those that no recorded tensor tells, as of their like. */
fd_code fd_weights_find_requantised(const fd_requantised_options *options, fd_verdict_weights *verdict,
                                    fd_loaded_weights *loaded, fd_error *err);

/* By their hashes (requantised_graph.c). explained [list->n]: a grid has every hash; verdict->named: one has those of the first. */
fd_code fd_weights_match_requantised(const fd_graph *graph, const fd_weight_differences *list,
                                     fd_verdict_weights *verdict, fd_loaded_weights *loaded, bool *explained,
                                     fd_error *err);

/* The name and what it says. */
void fd_requantised_say(const fd_requantisation *q, fd_verdict_weights *verdict);

/* Weight `w` of the graph in loaded->graph, a clone made when there is none, as the engine had it. */
fd_code fd_requantised_hold(const fd_graph *graph, int32_t w, const fd_requantisation *q, fd_loaded_weights *loaded,
                            fd_error *err);

#endif
