/* Where a bug has no name: why, and what would tell the explanations apart. */
#ifndef FD_COMPARE_REPORT_UNNAMED_H
#define FD_COMPARE_REPORT_UNNAMED_H

#include "compare/verdict.h"

enum { FD_UNNAMED_SIZE = 256 };

/* Each writes "" where there is nothing to say, and returns `to`. */
const char *fd_unnamed_text(const fd_explanation *explanation, char to[FD_UNNAMED_SIZE]);
const char *fd_tells_apart_text(const fd_explanation *explanation, char to[FD_UNNAMED_SIZE]);

/* Weights that differ: whose rows they are, and why no fault is named. */
const char *fd_weights_match_text(const fd_verdict_weights *weights, char to[FD_UNNAMED_SIZE]);
const char *fd_weights_unnamed_text(const fd_verdict_weights *weights, char to[FD_UNNAMED_SIZE]);

#endif
