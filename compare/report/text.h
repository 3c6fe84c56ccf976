/* The parts of the text report that a model adds (text_model.c, text_measures.c, text_map.c): each prints its lines, and none where
 * there is nothing to say. */
#ifndef FD_COMPARE_REPORT_TEXT_H
#define FD_COMPARE_REPORT_TEXT_H

#include <stdio.h>

#include "compare/report/report.h"

void fd_report_weights(FILE *to, const fd_verdict *v);       /* those that differ */
void fd_report_equal_weights(FILE *to, const fd_verdict *v); /* where none does */
void fd_report_replayed(FILE *to, const fd_verdict *v);      /* the divergence by replay, in a line */
void fd_report_extent(FILE *to, const fd_verdict_replay *p); /* where along the run it is */
void fd_report_replay(FILE *to, const fd_verdict *v);        /* everything else */
void fd_report_numbers(FILE *to, const fd_verdict *v);       /* text_measures.c */
void fd_report_layer_bars(FILE *to, const fd_verdict *v);    /* text_map.c */
void fd_report_map(FILE *to, const fd_verdict *v, fd_report_colour colour);
void fd_report_explanation(FILE *to, const fd_explanation *e);
void fd_report_tells_apart(FILE *to, const fd_explanation *e);
void fd_report_causes(FILE *to, const fd_causes *causes);
void fd_report_flip(FILE *to, const fd_verdict *v);

#endif
