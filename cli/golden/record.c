/* firstdiff golden record: reads the prompts, runs them, writes the golden. */
#include <stdlib.h>
#include <string.h>

#include "cli/golden/golden.h"
#include "cli/record.h"

/* The last generated token is not fed. */
static int32_t positions_of(const fd_golden_args *a, const fd_cli_prompt_line *prompt) {
    return prompt->n_id + (a->n_generate ? a->n_generate - 1 : 0);
}

static fd_code longest_run(const fd_golden_args *a, const fd_cli_prompts *list, int32_t n_ctx_train, int32_t *out,
                           fd_error *err) {
    *out = 0;
    for (int32_t i = 0; i < list->n; i++) {
        int64_t n = (int64_t)list->items[i].n_id + a->n_generate;
        if (n > n_ctx_train)
            return fd_fail(err, FD_ERR_INPUT,
                           "%s line %d: %d tokens and %d more need %lld positions, the model's context is %d", a->file,
                           list->items[i].line, list->items[i].n_id, a->n_generate, (long long)n, n_ctx_train);
        if (positions_of(a, &list->items[i]) > *out) *out = positions_of(a, &list->items[i]);
    }
    return FD_OK;
}

static fd_code record_prompt(const fd_golden_args *a, const fd_cli_prompt_line *prompt, fd_trace_options how,
                             fd_golden_measuring measuring, fd_golden_tolerances *measured, fd_error *err) {
    int32_t n_pos = how.n_pos, *tokens = malloc(sizeof *tokens * (size_t)n_pos);
    if (!tokens) return fd_fail(err, FD_ERR_MEMORY, "%d positions: out of memory", n_pos);
    memcpy(tokens, prompt->ids, sizeof *tokens * (size_t)prompt->n_id);
    fd_recording run = {
        .tokens = tokens, .n_token = prompt->n_id, .n_pos = n_pos, .golden_logits = true, .whole = true};
    fd_code code = fd_cli_record(measuring.model, measuring.exact, &how, prompt->text, &run, err);
    measuring.tokens = tokens;
    measuring.n_token = prompt->n_id;
    measuring.n_pos = n_pos;
    if (code == FD_OK) code = fd_golden_measure(&measuring, measured, err);
    free(tokens);
    return code == FD_OK ? code : fd_error_prefix(err, "%s line %d", a->file, prompt->line);
}

static fd_code record_prompts(const fd_golden_args *a, const fd_cli_model *model, const fd_cli_exec *exec,
                              const fd_cli_prompts *list, fd_trace_file *file, fd_golden_tolerances *measured,
                              fd_error *err) {
    fd_cli_progress progress = fd_cli_progress_start("prompt", list->n);
    fd_code code = FD_OK;
    for (int32_t i = 0; i < list->n && code == FD_OK; i++) {
        char group[16];
        int32_t n_pos = positions_of(a, &list->items[i]);
        fd_golden_measuring how = {.model = model, .exact = exec, .n_thread = a->n_thread};
        code = record_prompt(a, &list->items[i], fd_golden_prompt_options(file, n_pos, i, group), how, measured, err);
        fd_cli_progress_to(&progress, i + 1);
    }
    fd_cli_progress_end(&progress);
    return code;
}

static void print_recorded(const fd_golden_args *a, const fd_cli_prompts *list, const fd_exec *exec,
                           const fd_golden_tolerances *measured) {
    int64_t n_pos = 0;
    for (int32_t i = 0; i < list->n; i++) n_pos += positions_of(a, &list->items[i]);
    printf("%s: %d prompt%s, %lld positions, %d tensors each, %s on %s\n", a->output, list->n, list->n == 1 ? "" : "s",
           (long long)n_pos, exec->graph->n_node, exec->backend, exec->device);
    if (measured->n_class)
        printf("tolerances measured: %s, %d runs of each prompt\n", measured->names, measured->n_run);
}

static fd_code record_golden(const fd_golden_args *a, const fd_cli_model *model, const fd_cli_prompts *list,
                             fd_cli_exec *exec, fd_golden_tolerances *measured, fd_error *err) {
    fd_golden_size size = {.n_prompt = list->n};
    fd_trace_file *file;
    FD_TRY(longest_run(a, list, model->graph->hparams.n_ctx_train, &size.n_pos, err));
    fd_graph_set_context(model->graph, size.n_pos);
    FD_TRY(fd_golden_tolerances_parse(a->tolerances, measured, err));
    FD_TRY(fd_trace_file_create(a->output, &file, err)); /* what cannot be written is said before anything runs */
    fd_cli_exec_choice choice = {a->backend, a->numerics ? a->numerics : "exact", NULL, size.n_pos, a->n_thread};
    fd_code code = fd_cli_exec_choose(choice, model->graph, exec, err);
    if (code == FD_OK) code = record_prompts(a, model, exec, list, file, measured, err);
    if (code == FD_OK) return fd_golden_finish(file, size, measured, err);
    fd_trace_file_abandon(file);
    return code;
}

fd_code fd_golden_record_list(const fd_golden_args *a, const fd_cli_model *model, const fd_cli_prompts *list,
                              fd_error *err) {
    fd_cli_exec exec = {0};
    fd_golden_tolerances measured = {0};
    fd_code code = record_golden(a, model, list, &exec, &measured, err);
    if (code == FD_OK) print_recorded(a, list, exec.exec, &measured);
    fd_cli_exec_close(&exec);
    return code;
}

int fd_golden_record_command(const fd_golden_args *a, const fd_cli_model *model) {
    fd_error err = {0};
    fd_cli_prompts list = {0};
    const char *inputs[] = {a->model, a->file};
    fd_code code = fd_cli_check_not_overwriting(a->output, inputs, sizeof inputs / sizeof *inputs, &err);
    if (code == FD_OK) code = fd_cli_prompts_read(a->file, model, &list, &err);
    if (code == FD_OK) code = fd_golden_record_list(a, model, &list, &err);
    fd_cli_prompts_free(&list);
    return code == FD_OK ? FD_EXIT_SAME : fd_cli_fail("golden", &err);
}
