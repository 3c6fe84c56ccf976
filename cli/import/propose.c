#include "cli/import/propose.h"

#include <stdlib.h>
#include <unistd.h>

#include "cli/import/mapped_trace.h"
#include "cli/temporary.h"

/* All tokens in one prefill: positions are what is compared, however they were split. */
static fd_code record_prefill(fd_exec *exec, const fd_graph *graph, const int32_t *tokens, int32_t n, const char *path,
                              fd_error *err) {
    fd_trace_options to = fd_trace_defaults(path);
    fd_trace_info info = {0};
    fd_trace_writer *writer;
    FD_TRY(fd_trace_create(&to, &info, graph, exec->numerics, &writer, err));
    fd_exec_set_observer(exec, fd_trace_observer(writer));
    fd_batch batch = {.tokens = tokens, .n_tok = n, .pos0 = 0};
    fd_code code = fd_trace_begin_step(writer, FD_STEP_PREFILL, tokens, n, 0, err);
    if (code == FD_OK) code = fd_exec_forward(exec, &batch, err);
    if (code == FD_OK) code = fd_trace_end_step(writer, err);
    if (code == FD_OK) return fd_trace_finish(writer, err);
    fd_trace_abandon(writer);
    return code;
}

static fd_code run_model(const fd_cli_model *model, const int32_t *tokens, int32_t n, const char *path, fd_error *err) {
    fd_cli_exec exec;
    for (int32_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= model->graph->hparams.n_vocab)
            return fd_fail(err, FD_ERR_INPUT, "token %d is %d, the model has %d (another model?)", i, tokens[i],
                           model->graph->hparams.n_vocab);
    FD_TRY(fd_cli_exec_open("cpu:exact", model->graph, n, 0, &exec, err));
    fd_code code = record_prefill(exec.exec, model->graph, tokens, n, path, err);
    fd_cli_exec_close(&exec);
    return code;
}

fd_code fd_cli_propose_map(const fd_source *source, const fd_import_options *options, const fd_cli_model *model,
                           const char *ref_path, FILE *out, fd_proposal *proposal, fd_error *err) {
    char path[4096] = "";
    int32_t *tokens = NULL, n = 0;
    fd_trace *ref = NULL;
    fd_code code = FD_OK;
    if (!ref_path) {
        if (!options->tokens) code = fd_source_tokens(source, &tokens, &n, err);
        if (code == FD_OK && !options->tokens && n == 0)
            code = fd_fail(err, FD_ERR_INPUT, "%s: which tokens were fed is not known: give --tokens or --tokens-file",
                           fd_source_path(source));
        if (code == FD_OK) code = fd_cli_temporary(path, err);
        if (code == FD_OK)
            code = run_model(model, options->tokens ? options->tokens : tokens, options->tokens ? options->n_token : n,
                             path, err);
    }
    if (code == FD_OK) code = fd_trace_open(ref_path ? ref_path : path, &ref, err);
    if (path[0]) unlink(path);
    if (code == FD_OK && ref_path) code = fd_cli_check_trace_model(model, "the model", ref, err);
    if (code == FD_OK) code = fd_propose_map(source, options, ref, out, proposal, err);
    fd_trace_close(ref);
    free(tokens);
    return code;
}
