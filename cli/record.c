#include "cli/record.h"

#include <string.h>
#include <unistd.h>

#include "cli/temporary.h"
#include "dumpers/store/golden.h"
#include "fd_sources.h" /* made by the build: FD_SOURCES_DIGEST */

void fd_cli_trace_info(const fd_cli_model *model, const fd_cli_exec *exec, fd_trace_info *info) {
    const fd_exec *e = exec->exec;
    memset(info, 0, sizeof *info);
    snprintf(info->producer, sizeof info->producer, "firstdiff " FD_VERSION);
    snprintf(info->numerics, sizeof info->numerics, "%s", fd_exec_numerics_name(e));
    info->contract = fd_numerics_contract(e->numerics);
    snprintf(info->backend, sizeof info->backend, "%s", e->backend);
    snprintf(info->device, sizeof info->device, "%s", e->device);
    snprintf(info->driver, sizeof info->driver, "%s", e->driver);
    snprintf(info->build, sizeof info->build, "%s", FD_BUILD);
    snprintf(info->model_name, sizeof info->model_name, "%s", model->graph->hparams.name);
    snprintf(info->model_hash, sizeof info->model_hash, "%s", fd_cli_model_hash(model));
    snprintf(info->arch, sizeof info->arch, "%s", model->graph->hparams.arch);
    snprintf(info->kv_type, sizeof info->kv_type, "%s", fd_exec_kv_type(e));
    snprintf(info->fusion, sizeof info->fusion, "none");
    snprintf(info->fault, sizeof info->fault, "%s", exec->fault);
    snprintf(info->sources, sizeof info->sources, "%s", FD_SOURCES_DIGEST);
    if (model->tokenizer) snprintf(info->tokenizer, sizeof info->tokenizer, "%s", fd_tokenizer_name(model->tokenizer));
}

fd_code fd_cli_record(const fd_cli_model *model, const fd_cli_exec *exec, const fd_trace_options *how,
                      const char *prompt, fd_recording *run, fd_error *err) {
    fd_trace_info info;
    fd_trace_options options = *how;
    fd_trace_writer *to;
    fd_cli_trace_info(model, exec, &info);
    info.prompt = (char *)(uintptr_t)prompt; /* the writer only reads it */
    if (run->golden_logits && fd_golden_thins(model->graph->hparams.n_vocab)) {
        snprintf(info.partial, sizeof info.partial, "logits");
        options.compress = true; /* mostly NaN then; whole rows would lose an eighth, for 0.1 ms each */
    }
    run->exec = exec->exec;
    FD_TRY(fd_trace_create(&options, &info, exec->exec->graph, exec->exec->numerics, &to, err));
    fd_code code = fd_record(run, to, err);
    if (code == FD_OK) return fd_trace_finish(to, err);
    fd_trace_abandon(to);
    return code;
}

fd_code fd_cli_record_temporary(const fd_cli_model *model, const fd_cli_exec *exec, fd_trace_options how,
                                fd_recording *run, fd_trace **out, fd_error *err) {
    char path[4096];
    FD_TRY(fd_cli_temporary(path, err));
    how.path = path;
    fd_code code = fd_cli_record(model, exec, &how, NULL, run, err);
    if (code == FD_OK) code = fd_trace_open(path, out, err);
    unlink(path); /* what is open stays readable */
    return code;
}
