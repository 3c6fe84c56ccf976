#include "cli/compare/compare_pair.h"

#include <string.h>

#include "cli/compare/replay.h"
#include "cli/compare/whole_error.h"
#include "cli/import/mapped_trace.h"
#include "cli/ranks.h"
#include "cli/repro/repro.h"
#include "compare/compare.h"
#include "compare/weights/weights.h"

fd_code fd_cli_compare_pair(const fd_cli_pair *pair, fd_verdict *verdict, fd_error *err) {
    char absent[sizeof((fd_trace_info *)0)->absent];
    fd_cli_globs allowed = *pair->allow_missing;
    strcpy(absent, fd_trace_get_info(pair->cand)->absent);
    fd_cli_allow_absent(&allowed, absent);
    fd_cli_progress progress = fd_cli_progress_start("compare positions", 0);
    fd_compare_options how = {.allow_missing = allowed.items,
                              .n_allow_missing = allowed.n,
                              .memory = pair->memory,
                              .peers = fd_cli_peers(),
                              .graph = pair->model ? pair->model->graph : NULL,
                              .tokenizer = pair->model ? pair->model->tokenizer : NULL,
                              .progress = fd_cli_progress_callback,
                              .progress_user = &progress};
    fd_code code = fd_compare_traces(pair->ref, pair->cand, &how, verdict, err);
    fd_cli_progress_end(&progress);
    if (code != FD_OK) return code;
    if (pair->model) {
        FD_TRY(fd_cli_replay(pair->model, pair->ref, pair->cand, pair->class_name, pair->replay_gpu, verdict, err));
        FD_TRY(fd_cli_check_whole_error(pair, verdict, err));
        if (!pair->repro) return FD_OK;
        const fd_trace *wrong = verdict->replay.of_reference ? pair->ref : pair->cand;
        return fd_cli_write_repro(pair->model->graph, wrong, verdict, pair->repro, err);
    }
    return verdict->counts.n_compared ? fd_weights_of_traces(pair->ref, pair->cand, verdict, err) : FD_OK;
}
