/* Gathers the measures of two runs during error attribution. */
#ifndef FD_COMPARE_MEASURE_MEASURE_H
#define FD_COMPARE_MEASURE_MEASURE_H

#include "compare/attribute/attribution.h"
#include "compare/measure/measures.h"

/* tokens [n_pos] are copied; NULL: not recorded. */
fd_code fd_measures_open(const fd_graph *graph, const int32_t *tokens, int32_t n_pos, fd_measures *out, fd_error *err);

/* One judged row. of_reference: it is the reference's trace that is judged, and row->reference is the candidate's. Runs
 * out of memory silently: what does not fit is not shown. */
void fd_measures_add(fd_measures *measures, const fd_attribution_row *row, bool of_reference);

#endif
