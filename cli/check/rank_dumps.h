/* The dumps of a tensor-parallel engine's ranks, as one candidate. */
#ifndef FD_CLI_CHECK_RANK_DUMPS_H
#define FD_CLI_CHECK_RANK_DUMPS_H

#include "compare/remark.h"
#include "dumpers/import/ranks/ranks.h"

/* The dumps at `path` put together by the map of `how`, or, where it has none, as names without sizes are (dumpers/import/ranks).
 * Closes what *source was before. */
fd_code fd_cli_join_rank_dumps(const char *path, const fd_import_options *how, fd_source **source, fd_error *err);

/* Do copies differ that every rank should have alike? Then a reference says which is wrong. */
bool fd_cli_copies_differ(const fd_source *joined);

/* Where ranks contradict each other: *remark says it. `ref` may be NULL where no copies differ; else the source then gives the
 * copies that are farthest from it. False: nowhere. */
fd_code fd_cli_judge_ranks(fd_source *joined, const fd_trace *ref, fd_remark *remark, bool *disagree, fd_error *err);

#endif
