#include "cli/trace_info.h"

#include <string.h>

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
    snprintf(info->model_hash, sizeof info->model_hash, "%s", model->hash);
    snprintf(info->arch, sizeof info->arch, "%s", model->graph->hparams.arch);
    snprintf(info->kv_type, sizeof info->kv_type, "%s", fd_exec_kv_type(e));
    snprintf(info->fusion, sizeof info->fusion, "none");
    snprintf(info->fault, sizeof info->fault, "%s", exec->fault);
    snprintf(info->sources, sizeof info->sources, "%s", FD_SOURCES_DIGEST);
    if (model->tokenizer) snprintf(info->tokenizer, sizeof info->tokenizer, "%s", fd_tokenizer_name(model->tokenizer));
}
