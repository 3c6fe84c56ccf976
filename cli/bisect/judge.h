/* One version of an engine, built, run and judged. */
#ifndef FD_CLI_BISECT_JUDGE_H
#define FD_CLI_BISECT_JUDGE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct fd_bisect_how {
    const char *build, *run; /* for a shell; build NULL: there is nothing to build */
    const char *trace; /* where `run` leaves its trace or dump, in the version's folder or absolute; NULL: in the file
                                that $FIRSTDIFF_TRACE names */
    const char *model, *ref; /* absolute: the model, or a trace to agree with in every bit; the other is NULL */
    const char *candidate, *map, *tokens; /* as in firstdiff check; NULL: not given */
    const char *bug;                      /* the name of the one of BAD's bugs to look for; NULL: its first */
    bool verbose;                         /* show what build and run print */
} fd_bisect_how;

enum { FD_BISECT_MAX_BUGS = 8 };

/* A bug is the same when it has the same name, or, not named, when it begins at the same tensor of a layer. */
typedef struct fd_bisect_bug {
    char name[64]; /* "" not named */
    char node[128];
    char summary[192];
} fd_bisect_bug;

typedef struct fd_bisect_result {
    bool judged;   /* false: it did not build, or run, or could not be judged */
    char why[128]; /* then */
    char status[16];
    fd_bisect_bug bugs[FD_BISECT_MAX_BUGS]; /* the first divergence, then the others */
    int32_t n_bug;
} fd_bisect_result;

/* The version lies in `folder`. Fails only when nothing can be run at all. */
fd_code fd_bisect_judge(const fd_bisect_how *how, const char *folder, fd_bisect_result *out, fd_error *err);

bool fd_bisect_has(const fd_bisect_result *result, const fd_bisect_bug *bug);

#endif
