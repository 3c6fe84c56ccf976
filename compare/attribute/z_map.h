/* z of every node by position and by head, gathered during error attribution, for reports that draw it. */
#ifndef FD_COMPARE_ATTRIBUTE_Z_MAP_H
#define FD_COMPARE_ATTRIBUTE_Z_MAP_H

#include "compare/attribute/attribution.h"
#include "compare/verdict.h"

fd_code fd_z_map_open(const fd_graph *graph, int32_t n_pos, fd_verdict_map *out, fd_error *err);
void fd_z_map_free(fd_verdict_map *map); /* frees what it owns, not the struct */

void fd_z_map_add(fd_verdict_map *map, const fd_attribution_row *row);

/* Adds the findings, once all rows were added. */
void fd_z_map_finish(fd_verdict_map *map, const fd_attribution *attribution);

#endif
