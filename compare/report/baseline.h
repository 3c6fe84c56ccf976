/* The baseline: an earlier verdict. After a fix, did the first divergence move later? Whether the text improved says
 * little, and with several bugs at once a fix of one leaves the output as wrong as before; the first divergence
 * moves all the same. */
#ifndef FD_COMPARE_REPORT_BASELINE_H
#define FD_COMPARE_REPORT_BASELINE_H

#include "compare/verdict.h"

/* From a report of `--json`, schema firstdiff-verdict 1. FD_ERR_INPUT for anything else; `where` names it in
 * messages. */
fd_code fd_baseline_parse(const char *data, size_t size, const char *where, fd_baseline *out, fd_error *err);
fd_code fd_baseline_read(const char *path, fd_baseline *out, fd_error *err);

/* Fills verdict->moved and verdict->baseline. Weights come before every op, as in the verdict; then what is earlier in
 * `order` (a trace of the model: its nodes in order of execution), in an earlier step first. */
void fd_baseline_apply(const fd_baseline *baseline, const fd_trace *order, fd_verdict *verdict);

const char *fd_moved_name(fd_moved moved); /* "later" */

/* "moved later: from blk.0.attn_q step 0 to blk.0.attn_q_rope step 0"; "" when nothing was asked. */
void fd_baseline_text(const fd_verdict *verdict, char *to, size_t size);

#endif
