/* Which version brought a bug in. Both print every version that they judge, and what they found. */
#ifndef FD_CLI_BISECT_SEARCH_H
#define FD_CLI_BISECT_SEARCH_H

#include "cli/bisect/judge.h"

/* Commits of the repository around the working folder, driven by git bisect in a work tree of its own, which is removed.
 * *status as the command's. */
fd_code fd_bisect_commits(const fd_bisect_how *how, const char *good, const char *bad, int *status, fd_error *err);

/* The folders of `folder` in order of their version numbers; good and bad NULL: the first and the last. */
fd_code fd_bisect_releases(const fd_bisect_how *how, const char *folder, const char *good, const char *bad, int *status,
                           fd_error *err);

/* ---- shared by both ---- */

/* Judges BAD and GOOD: *bug receives what is looked for. *status is 1, and said why, when there is nothing to look for;
 * else 0. */
fd_code fd_bisect_ends(const fd_bisect_how *how, const char *const folders[2], const char *const names[2],
                       fd_bisect_bug *bug, int *status, fd_error *err);
/* "bad   NAME   DIVERGED at …" on standard output; `has`: the bug that is looked for. */
void fd_bisect_say(const char *name, const fd_bisect_result *result, bool has);
void fd_bisect_say_bug(const fd_bisect_bug *bug);

#endif
