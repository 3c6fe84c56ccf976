/* The planner's parts: plan_names.c (rules against names), plan_positions.c (tokens and steps), plan_sizes.c (tokens of each step from the shapes), plan_axis.c (how an array lies in its step), plan_saved.c (one that was saved otherwise), plan.c (shapes, and the whole). */
#ifndef FD_DUMPERS_IMPORT_PLAN_INTERNAL_H
#define FD_DUMPERS_IMPORT_PLAN_INTERNAL_H

#include "dumpers/import/import.h"

typedef struct fd_planner {
    fd_import_plan *plan;
    const fd_import_options *options;
    fd_import_match *all; /* every match of every rule */
    size_t n, room;
    bool *touched;            /* [n tensors] some rule names it */
    bool *claimed;            /* [n tensors] a rule with arch= does: it is none of those without */
    fd_import_match *misfits; /* of a built-in map: matches of arrays that have another size than the node */
    size_t n_misfit, misfit_room;
    int32_t last; /* last layer that a {layer} found; -1 */
    fd_error *err;
} fd_planner;

/* Fills plan->matches (without axes), unmatched, allowed and n_skipped. */
fd_code fd_plan_names(fd_planner *p);
/* Which arrays are which weights. */
fd_code fd_plan_weights(fd_planner *p);
/* A name that the map skips, or that it or the caller allows to stay unmatched. */
bool fd_plan_is_allowed(const fd_planner *p, const char *name);
/* Tokens, and the positions of every step. */
fd_code fd_plan_steps(fd_planner *p);
/* Tokens of each step [n_step], as most arrays' shapes say; -1: they do not. n_recorded of the steps have tensors. FD_ERR_MEMORY. */
fd_code fd_plan_sizes(const fd_planner *p, int32_t n_recorded, int32_t *sizes, fd_error *err);
/* Is the array of a built-in map's name, whose rank and shape are set, a flat one or the last token's row alone? Then sets rank, shape, axis. */
bool fd_plan_place_saved(const fd_import_plan *plan, fd_import_match *match);
/* Where the axis of the rule's axis= lies; negative when the array has too few. */
int fd_plan_rule_axis(const fd_name_map_rule *rule, int rank, const int64_t *shape);
/* The same, where the node's heads stand apart in the array and the rule's axis= is theirs: [n_tok, n_head, d] of a name whose module returns
 * [1, n_tok, n]. */
int fd_plan_rows_axis(const fd_graph *graph, const fd_name_map_rule *rule, const char *node, int rank,
                      const int64_t *shape);

/* Is a whole cache of so many rows the one of a windowed layer that keeps what the next query may see besides itself, window - 1 positions,
 * the last one last (transformers' DynamicSlidingWindowLayer)? A ring has `window` rows or more. */
bool fd_plan_keeps_window(const fd_graph *graph, const fd_import_step *step, int64_t n_row);

#endif
