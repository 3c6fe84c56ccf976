/* After a fix: did the first divergence move later? Whether the text improved says little, and with several bugs at once a fix
 * of one leaves the output as wrong as before; the first divergence moves all the same. */
#ifndef FD_COMPARE_REPORT_BASELINE_H
#define FD_COMPARE_REPORT_BASELINE_H

#include "compare/verdict.h"

/* Where an earlier verdict saw the first divergence. */
typedef struct fd_baseline {
    bool diverged;
    bool in_weights; /* at a weight that `node` reads first */
    char weight[128];
    char node[128]; /* "" for tokens */
    int32_t step;
    char name[64]; /* of the fault; "" not named */
} fd_baseline;

/* From a report of `--json`, schema firstdiff-verdict 1. FD_ERR_INPUT for anything else; `where` names it in messages. */
fd_code fd_baseline_parse(const char *data, size_t size, const char *where, fd_baseline *out, fd_error *err);
fd_code fd_baseline_read(const char *path, fd_baseline *out, fd_error *err);

/* Fills verdict->moved and verdict->since. Weights come before every op, as in the verdict; then what is earlier in `order`
 * (a trace of the model: its nodes in order of execution), in an earlier step first. */
void fd_baseline_apply(const fd_baseline *since, const fd_trace *order, fd_verdict *verdict);

const char *fd_moved_name(fd_moved moved); /* "later" */

#endif
