/* firstdiff golden record: reads the prompts, runs them, writes the golden. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/golden/golden.h"
#include "cli/prompt_list.h"
#include "compare/diff/golden_run.h"

static fd_code longest_prompt(const fd_golden_args *a, const fd_cli_prompts *list, int32_t n_ctx_train, int32_t *out,
                              fd_error *err) {
    *out = 0;
    for (int32_t i = 0; i < list->n; i++) {
        int64_t n = (int64_t)list->items[i].n_id + a->n_generate;
        if (n > n_ctx_train)
            return fd_fail(err, FD_ERR_INPUT,
                           "%s line %d: %d tokens and %d more need %lld positions, the model's context is %d", a->file,
                           list->items[i].line, list->items[i].n_id, a->n_generate, (long long)n, n_ctx_train);
        if (n > *out) *out = (int32_t)n;
    }
    return FD_OK;
}

static fd_code describe_golden(const fd_golden_args *a, const fd_cli_model *model, const fd_exec *exec, fd_golden *g,
                               fd_error *err) {
    const fd_graph *graph = model->graph;
    snprintf(g->producer, sizeof g->producer, "firstdiff %s", FD_VERSION);
    snprintf(g->model_name, sizeof g->model_name, "%s", graph->hparams.name);
    snprintf(g->model_hash, sizeof g->model_hash, "%s", model->hash);
    snprintf(g->arch, sizeof g->arch, "%s", graph->hparams.arch);
    snprintf(g->backend, sizeof g->backend, "%s", exec->backend);
    snprintf(g->device, sizeof g->device, "%s", exec->device);
    snprintf(g->numerics, sizeof g->numerics, "%s", fd_numerics_name(exec->numerics));
    g->contract = fd_numerics_contract(exec->numerics);
    g->n_vocab = graph->hparams.n_vocab;
    g->n_node = graph->n_node;
    g->n_generate = a->n_generate;
    g->nodes = calloc((size_t)graph->n_node, sizeof *g->nodes);
    if (!g->nodes) return fd_fail(err, FD_ERR_MEMORY, "out of memory");
    for (int32_t i = 0; i < graph->n_node; i++) memcpy(g->nodes[i], graph->nodes[i].name, sizeof g->nodes[i]);
    return FD_OK;
}

static fd_code record_all(const fd_golden_args *a, fd_cli_prompts *list, fd_exec *exec, fd_golden *g, fd_error *err) {
    g->prompts = calloc((size_t)list->n, sizeof *g->prompts);
    if (!g->prompts) return fd_fail(err, FD_ERR_MEMORY, "out of memory");
    fd_cli_progress progress = fd_cli_progress_start("prompt", list->n);
    fd_code code = FD_OK;
    for (int32_t i = 0; i < list->n && code == FD_OK; i++) {
        fd_cli_prompt_line *item = &list->items[i];
        code = fd_golden_record(exec, item->ids, item->n_id, a->n_generate, &g->prompts[i], err);
        if (code == FD_OK) {
            g->prompts[i].text = item->text;
            item->text = NULL;
            g->n_prompt++;
        } else {
            fd_error_prefix(err, "%s line %d", a->file, item->line);
        }
        fd_cli_progress_to(&progress, i + 1);
    }
    fd_cli_progress_end(&progress);
    return code;
}

static fd_code record(const fd_golden_args *a, const fd_cli_model *model, fd_cli_prompts *list, fd_cli_exec *exec,
                      fd_golden *golden, fd_error *err) {
    int32_t n_ctx;
    const char *inputs[] = {a->model, a->file};
    FD_TRY(fd_cli_spare_inputs(a->output, inputs, sizeof inputs / sizeof *inputs, err));
    FD_TRY(fd_golden_can_write(a->output, err));
    FD_TRY(fd_cli_prompts_read(a->file, model, list, err));
    FD_TRY(longest_prompt(a, list, model->graph->hparams.n_ctx_train, &n_ctx, err));
    FD_TRY(fd_golden_executor(a, a->numerics, model, n_ctx, exec, err));
    FD_TRY(describe_golden(a, model, exec->exec, golden, err));
    FD_TRY(record_all(a, list, exec->exec, golden, err));
    FD_TRY(fd_golden_write(golden, a->output, err));
    int64_t n_pos = 0;
    for (int32_t i = 0; i < golden->n_prompt; i++) n_pos += golden->prompts[i].n_pos;
    printf("%s: %d prompt%s, %lld positions, %d tensors each, %s on %s\n", a->output, golden->n_prompt,
           golden->n_prompt == 1 ? "" : "s", (long long)n_pos, golden->n_node, golden->backend, golden->device);
    return FD_OK;
}

int fd_golden_record_command(const fd_golden_args *a, const fd_cli_model *model) {
    fd_error err = {0};
    fd_cli_prompts list = {0};
    fd_cli_exec exec = {0};
    fd_golden *golden = calloc(1, sizeof *golden);
    fd_code code =
        golden ? record(a, model, &list, &exec, golden, &err) : fd_fail(&err, FD_ERR_MEMORY, "out of memory");
    if (golden) fd_golden_free(golden);
    fd_cli_prompts_free(&list);
    fd_cli_exec_close(&exec);
    return code == FD_OK ? FD_EXIT_SAME : fd_cli_fail("golden", &err);
}
