/* A class of the engine's own: all its products, its cache or its embedding in 16 bits, and the rest as the class that was
 * inferred. That is a choice, not a bug, as far as anybody can tell who was not told the class. */
#ifndef FD_COMPARE_CLASS_MIXED_H
#define FD_COMPARE_CLASS_MIXED_H

#include "compare/diagnose/diagnose.h"

/* Beyond the bound by so little, where this has room for most of an error: the same in other layers may be within. */
#define FD_LITTLE_BEYOND 2.0

/* Each tensor of the finding's kind that was judged departs; through unrecorded ones, half of them, or by little. */
bool fd_departs_in_all_layers(const fd_graph *graph, const fd_attribution *of, const fd_node_finding *finding);

/* Of the tensors of that node's kind that were judged more depart than do not. */
bool fd_departs_in_most_layers(const fd_graph *graph, const fd_attribution *of, int32_t node);

/* The kinds of products that depart are most of those that were judged. */
bool fd_most_products_depart(const fd_graph *graph, const fd_attribution *of);

/* What reads a recorded cache after the first step: other steps' rows may be kept in fewer bits than a step's own. */
bool fd_reads_earlier_steps(const fd_graph *graph, const fd_node_finding *finding);

/* It departs in the first step, and reads a cache, by itself or through unrecorded nodes. */
bool fd_reads_cache_in_first_step(const fd_graph *graph, const fd_trace *trace, const fd_node_finding *finding);

/* Does every kind of tensor that departs do so in all layers where it was judged (through unrecorded tensors, in half, or by
 * little), and may an engine keep it as it likes? Only then the explanation is worth asking for. */
bool fd_may_be_mixed_class(const fd_graph *graph, const fd_attribution *of);

/* `e`: of ask->finding, the first. Is it rounded to 16 bits, and are all others that depart, by the same rule? Or are the factors of the
 * logits' product, or of all routers', and nothing else? *other: not all, but most of
 * a cache's rows are so, and this node is the first that is not: the place of a bug; else -1. */
fd_code fd_is_mixed_class(const fd_diagnose_options *ask, const fd_attribution *of, const fd_explanation *e, bool *yes,
                          int32_t *other, fd_error *err);

/* Nothing is named, what comes nearest of all is such a rounding, and all that departs does so by about as much in each layer: so may others
 * be, which nobody listed. */
fd_code fd_rounds_as_well(const fd_diagnose_options *ask, const fd_attribution *of, const fd_explanation *e, bool *yes,
                          fd_error *err);

/* A cache that is kept in fewer bits in every layer (`e` names the first finding so) is the engine's choice whatever else departs: the first
 * node that is no part of it and reads no cache that was not recorded; -1: there is none, or no such cache. */
fd_code fd_find_beside_cache(const fd_diagnose_options *ask, const fd_attribution *of, const fd_explanation *e,
                             int32_t *other, fd_error *err);

/* Where nothing explains them: products that are off in every row and in every part of it alike, by little and in no direction: sums of
 * rounded parts, int8 activations. Of an engine of 16-bit tensors; or most kinds of products, alone or through unrecorded tensors, where the
 * inferred class is one of bounds that have room, or where single rows alone, in all layers, depart: decode has kernels of its own. *error: the largest, relative to the result. */
fd_code fd_is_own_way(const fd_diagnose_options *ask, const fd_attribution *of, double *error, bool *yes,
                      fd_error *err);

#endif
