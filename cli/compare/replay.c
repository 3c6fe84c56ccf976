#include "cli/compare/replay.h"

#include "compare/compare_model.h"
#include "reference_cpu/reference.h"

fd_code fd_cli_replay(const fd_cli_model *model, const fd_trace *ref, const fd_trace *cand, const char *class_name,
                      fd_verdict *verdict, fd_error *err) {
    fd_compare_model_options how = {
        .graph = model->graph, .ref = ref, .cand = cand, .op = fd_reference_op, .tokenizer = model->tokenizer};
    char known[512];
    fd_cli_progress progress = fd_cli_progress_start("", 0);
    how.progress = fd_cli_progress_stage_callback;
    how.progress_user = &progress;
    if (class_name) {
        how.numerics = fd_numerics_class_find(class_name);
        if (!how.numerics)
            return fd_fail(err, FD_ERR_INPUT, "--candidate %s: unknown class; known: %s", class_name,
                           fd_numerics_class_names(known, sizeof known));
    }
    fd_code code = fd_compare_with_model(&how, verdict, err);
    fd_cli_progress_end(&progress);
    return code;
}
