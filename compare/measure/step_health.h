/* The health of both runs, position by position, as their traces have it. */
#ifndef FD_COMPARE_MEASURE_STEP_HEALTH_H
#define FD_COMPARE_MEASURE_STEP_HEALTH_H

#include "compare/measure/measures.h"
#include "dumpers/store/trace.h"

/* Fills measures->health. FD_ERR_MEMORY alone. */
fd_code fd_measures_take_health(const fd_trace *ref, const fd_trace *cand, fd_measures *measures, fd_error *err);

#endif
