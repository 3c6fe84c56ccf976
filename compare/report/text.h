/* The text report in two parts: report_text.c has the frame and what two traces say in bits, report_text_judged.c what a model
 * adds to that: weights, replay, explanations, the choice of tokens. */
#ifndef FD_COMPARE_REPORT_TEXT_H
#define FD_COMPARE_REPORT_TEXT_H

#include <stdio.h>

#include "compare/verdict.h"

/* ---- report_text.c ---- */
/* "  head        text"; control characters of the text come out as "?". */
void fd_line(FILE *to, const char *head, const char *format, ...) FD_PRINTF(3, 4);
const char *fd_plural(int64_t n); /* "s", or "" for 1 */

/* ---- report_text_judged.c: each prints its lines, and none where there is nothing to say ---- */
void fd_report_weights(FILE *to, const fd_verdict *v);       /* those that differ */
void fd_report_equal_weights(FILE *to, const fd_verdict *v); /* where none does */
void fd_report_replay(FILE *to, const fd_verdict *v);
void fd_report_explanation(FILE *to, const fd_explanation *e);
void fd_report_causes(FILE *to, const fd_causes *r);
void fd_report_flip(FILE *to, const fd_verdict *v);

#endif
