#include "cli/check/rank_dumps.h"

#include <stdio.h>

fd_code fd_cli_join_rank_dumps(const char *path, const fd_import_options *how, fd_source **source, fd_error *err) {
    fd_source *dumps = NULL;
    fd_source_close(*source);
    *source = NULL;
    FD_TRY(fd_source_open_ranks(path, &dumps, err));
    fd_code code = fd_ranks_join(dumps, how, source, err);
    if (code != FD_OK) fd_source_close(dumps);
    return code;
}

bool fd_cli_copies_differ(const fd_source *joined) {
    const fd_rank_report *report = fd_ranks_report_of(joined);
    bool differ = false;
    for (size_t i = 0; i < report->n_finding; i++) differ = differ || report->findings[i].copies;
    return differ;
}

fd_code fd_cli_judge_ranks(fd_source *joined, const fd_trace *ref, fd_remark *remark, bool *disagree, fd_error *err) {
    const fd_rank_report *report = fd_ranks_report_of(joined);
    int32_t odd = -1;
    *disagree = report->n_finding > 0;
    if (!*disagree) return FD_OK;
    FD_TRY(fd_ranks_take_odd_copies(joined, ref, &odd, err));
    const fd_rank_finding *first = &report->findings[0];
    *remark =
        (fd_remark){FD_REMARK_RANKS_DISAGREE, .n = {first->step, first->position, (int64_t)report->n_finding - 1}};
    snprintf(remark->node, sizeof remark->node, "%s", first->node);
    if (first->copies && odd >= 0)
        snprintf(remark->text, sizeof remark->text, "rank %d's copy is wrong, and is the one judged", odd);
    else
        snprintf(remark->text, sizeof remark->text, "%.159s", first->text);
    return FD_OK;
}
