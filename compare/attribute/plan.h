/* Which nodes an attribution replays, at which positions: those that are judged, and what these are computed from
 * where it was not recorded. A sample leaves most layers out, whose inside is then computed by nobody. */
#ifndef FD_COMPARE_ATTRIBUTE_PLAN_H
#define FD_COMPARE_ATTRIBUTE_PLAN_H

#include "compare/attribute/attribution.h"

typedef struct fd_replay_plan {
    int32_t n_pos;         /* positions [0, n_pos) are replayed */
    int32_t gap, gap_end;  /* [gap, gap_end) is not judged: its caches alone are needed. A sample's; else none: n_pos */
    int32_t most;          /* positions replayed together */
    bool *judged;          /* [n_node] where it was recorded; owned */
    bool *needed, *in_gap; /* [n_node] to be replayed: where nodes are judged, and in the gap; owned */
    bool *whole;           /* [n_node] recorded at every position, and read as recorded; owned */
} fd_replay_plan;

/* Of options->sample, ->n_pos, ->ignored and the candidate's trace. FD_ERR_MEMORY; freed with fd_replay_plan_free also
 * then. */
fd_code fd_replay_plan_make(const fd_attribution_options *options, fd_replay_plan *out, fd_error *err);
void fd_replay_plan_free(fd_replay_plan *plan);

/* How many positions from pos0 on go together. */
int32_t fd_replay_plan_range(const fd_replay_plan *plan, int32_t pos0);

/* Elements that all nodes have over n_pos positions. */
double fd_replay_plan_outputs(const fd_graph *graph, int32_t n_pos);

#endif
