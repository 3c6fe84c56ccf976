/* Faults that no row of the table covers: they must be located, and named by what they do or not at all. */
#ifndef FD_TESTS_FAULTS_UNLISTED_H
#define FD_TESTS_FAULTS_UNLISTED_H

#include "exec/exec.h"

typedef struct fd_unlisted {
    const char *name, *node; /* node: with "blk.N." before it, but for `outside` */
    fd_override_fn override;
    bool outside;
    const char *guess; /* the guess that says what it does; NULL: none may be named */
} fd_unlisted;

enum { FD_N_UNLISTED = 19 };
extern const fd_unlisted fd_unlisted_faults[FD_N_UNLISTED];

#endif
