#include "cli/check/reference.h"

#include <stdlib.h>
#include <string.h>

#include "cli/record.h"

static fd_code check_tokens(const fd_check_reference *how, const int32_t *tokens, int32_t n, fd_error *err) {
    int32_t n_vocab = how->model->graph->hparams.n_vocab;
    if (n < 1 || !tokens)
        return fd_fail(err, FD_ERR_INPUT, "the candidate's trace holds no tokens: the reference cannot be run");
    for (int32_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= n_vocab)
            return fd_fail(err, FD_ERR_INPUT, "token %d is %d, the model has %d (another model?)", i, tokens[i],
                           n_vocab);
    return FD_OK;
}

static fd_code record_reference(const fd_check_reference *how, const fd_cli_exec *exec, fd_recording *run,
                                fd_trace **out, fd_error *err) {
    char path[4096], spec[32];
    if (how->keep) {
        if (snprintf(path, sizeof path, "%s/ref.h5", how->keep) >= (int)sizeof path)
            return fd_fail(err, FD_ERR_INPUT, "--keep %.100s…: too long", how->keep);
        fd_trace_options options = fd_trace_defaults(path);
        FD_TRY(fd_cli_record(how->model, exec, &options, NULL, run, err));
        return fd_trace_open(path, out, err);
    }
    FD_TRY(fd_cli_record_temporary(how->model, exec, fd_trace_defaults(NULL), run, out, err));
    snprintf(spec, sizeof spec, "%s:exact", how->backend);
    if (fd_trace_set_path(*out, spec)) return FD_OK;
    return fd_fail(err, FD_ERR_MEMORY, "reference: out of memory");
}

fd_code fd_check_run_reference(const fd_check_reference *how, const int32_t *tokens, int32_t n_token,
                               const fd_trace_step *steps, int32_t n_step, fd_trace **out, fd_error *err) {
    fd_cli_exec exec;
    FD_TRY(check_tokens(how, tokens, n_token, err));
    int32_t *copy = malloc(sizeof *copy * (size_t)n_token);
    if (!copy) return fd_fail(err, FD_ERR_MEMORY, "%d tokens: out of memory", n_token);
    memcpy(copy, tokens, sizeof *copy * (size_t)n_token);
    fd_recording run = {
        .tokens = copy, .n_token = n_token, .n_pos = n_token, .steps = n_step > 0 ? steps : NULL, .n_step = n_step};
    fd_cli_exec_choice choice = {how->backend, "exact", NULL, n_token, how->n_thread};
    fd_code code = fd_cli_exec_choose(choice, how->model->graph, &exec, err);
    if (code == FD_OK) {
        code = record_reference(how, &exec, &run, out, err);
        fd_cli_exec_close(&exec);
    }
    free(copy);
    return code;
}
