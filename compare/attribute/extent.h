/* Where along the run an error shows at the divergence's node: from a position on, at one alone, in decode steps alone.
 * A fault's name says what is computed; this says when. */
#ifndef FD_COMPARE_ATTRIBUTE_EXTENT_H
#define FD_COMPARE_ATTRIBUTE_EXTENT_H

#include "compare/verdict.h"
#include "dumpers/store/trace.h"

/* z: [n_pos] of the node at each position, as in fd_verdict_map.by_pos (negative: not judged). steps: [n_step] of the
 * trace that was judged. */
fd_verdict_extent fd_extent_of(const float *z, int32_t n_pos, const fd_trace_step *steps, int32_t n_step);

#endif
