/* z of every node by position and by head, gathered while a trace is judged, for reports that draw it. */
#ifndef FD_COMPARE_REPLAY_Z_MAP_H
#define FD_COMPARE_REPLAY_Z_MAP_H

#include "compare/replay/judge.h"
#include "compare/verdict.h"

fd_code fd_z_map_open(const fd_graph *graph, int32_t n_pos, fd_verdict_map *out, fd_error *err);
void fd_z_map_free(fd_verdict_map *map); /* frees what it owns, not the struct */

/* One judged row, as fd_judge_options.see gets it. */
void fd_z_map_see(fd_verdict_map *map, const fd_node *node, int32_t pos, int64_t stride, const double *candidate,
                const double *replayed, const double *tau);

/* The findings, once all rows were seen. */
void fd_z_map_finish(fd_verdict_map *map, const fd_judgement *judgement);

#endif
