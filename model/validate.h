/* Between validate.c and validate_mixers.c: a shape rule for each op, and what rules ask. */
#ifndef FD_MODEL_VALIDATE_H
#define FD_MODEL_VALIDATE_H

#include "model/graph.h"

typedef struct fd_checker {
    const fd_graph *graph;
    const fd_node *node;
    fd_error *err;
} fd_checker;

const fd_node *fd_checker_input(const fd_checker *c, int i);
bool fd_checker_same_shape(const fd_node *a, const fd_node *b);
/* FD_ERR_INPUT, with the node's name. */
fd_code fd_checker_broken(const fd_checker *c, const char *what);
/* Weight slot i holds n_row × n_col; -1 (absent) passes only when optional. */
fd_code fd_checker_weight(const fd_checker *c, int i, int64_t n_row, int64_t n_col, bool optional);

/* A rule for each op of ops.def, and those that several share. */
#define FD_OP(ENUM, name, n_input, summary) fd_code fd_check_##name(const fd_checker *c);
#include "model/ops.def"
#undef FD_OP
fd_code fd_check_elementwise(const fd_checker *c);
fd_code fd_check_like_input(const fd_checker *c);
fd_code fd_check_as_wide(const fd_checker *c); /* it may make heads of its input */

/* An op whose rule is another's. */
#define RULE(op, rule)                                                                                                 \
    fd_code fd_check_##op(const fd_checker *c) {                                                                       \
        return fd_check_##rule(c);                                                                                     \
    }

#endif
