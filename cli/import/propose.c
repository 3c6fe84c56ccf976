#include "cli/import/propose.h"

#include <stdlib.h>

#include "cli/import/auto_map.h"
#include "cli/record.h"

/* All tokens in one prefill: positions are what is compared, however they were split. */
static fd_code record_prefill(const fd_cli_model *model, const int32_t *tokens, int32_t n, fd_trace **out,
                              fd_error *err) {
    fd_cli_exec exec;
    fd_recording run = {.tokens = (int32_t *)(uintptr_t)tokens, .n_token = n, .n_pos = n}; /* none is added */
    for (int32_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= model->graph->hparams.n_vocab)
            return fd_fail(err, FD_ERR_INPUT, "token %d is %d, the model has %d (another model?)", i, tokens[i],
                           model->graph->hparams.n_vocab);
    FD_TRY(fd_cli_exec_open("cpu:exact", model->graph, n, 0, &exec, err));
    fd_code code = fd_cli_record_temporary(model, &exec, fd_trace_defaults(NULL), &run, out, err);
    fd_cli_exec_close(&exec);
    return code;
}

fd_code fd_cli_propose_map(const fd_source *source, const fd_import_options *options, const fd_cli_model *model,
                           const char *ref_path, FILE *out, fd_proposal *proposal, fd_error *err) {
    int32_t *tokens = NULL, n = 0;
    fd_trace *ref = NULL;
    char *text = NULL;
    size_t size = 0;
    fd_code code = FD_OK;
    if (!ref_path) {
        if (!options->tokens) code = fd_source_tokens(source, &tokens, &n, err);
        if (code == FD_OK && !options->tokens && n == 0)
            code = fd_fail(err, FD_ERR_INPUT, "%s: which tokens were fed is not known: give --tokens or --tokens-file",
                           fd_source_path(source));
        if (code == FD_OK)
            code = record_prefill(model, options->tokens ? options->tokens : tokens,
                                  options->tokens ? options->n_token : n, &ref, err);
    } else {
        code = fd_trace_open(ref_path, &ref, err);
    }
    if (code == FD_OK && ref_path) code = fd_cli_check_trace_model(model, "the model", ref, err);
    if (code == FD_OK) code = fd_cli_auto_map(source, options, ref, &text, &size, proposal, err);
    if (code == FD_OK && fwrite(text, 1, size, out) != size)
        code = fd_fail(err, FD_ERR_IO, "map auto: the map cannot be written");
    free(text);
    fd_trace_close(ref);
    free(tokens);
    return code;
}
