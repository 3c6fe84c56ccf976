/* What a recorded tensor holds where it is not what its op gives: whose values they are. */
#ifndef FD_COMPARE_DUMP_HELD_VALUES_H
#define FD_COMPARE_DUMP_HELD_VALUES_H

#include "compare/attribute/attribution.h"

enum { FD_HELD_SIZE = 96 };

/* A row of a trace in binary64; `row` has room for twice as many elements. */
fd_code fd_held_row(const fd_trace *trace, const fd_node *node, int32_t pos, double *row, bool *present, fd_error *err);

/* The tensor of the reference that is nearest to what stands at `f`, another one or its own of another position; *name is left as it
 * is where none is near: a sound engine's are the reference's but for rounding. */
fd_code fd_held_alike(const fd_attribution_options *o, const fd_node_finding *f, char name[FD_HELD_SIZE],
                      fd_error *err);

/* Each head's scores or weights are the reference's, in another order of the keys: that of pages, for one. */
fd_code fd_held_in_other_order(const fd_attribution_options *o, const fd_node_finding *f, bool *yes, fd_error *err);

#endif
