/* firstdiff golden update: what a new recording would change, and with --yes that recording. */
#include <stdlib.h>
#include <string.h>

#include "cli/golden/golden.h"

/* The golden's own prompts: tokens, and the text they came from. */
static fd_code read_prompts(const fd_golden *file, fd_golden_size size, fd_cli_prompts *list, int32_t *n_generate,
                            fd_error *err) {
    list->items = calloc((size_t)size.n_prompt + 1, sizeof *list->items);
    if (!list->items) return fd_fail(err, FD_ERR_MEMORY, "%d prompts: out of memory", size.n_prompt);
    for (int32_t i = 0; i < size.n_prompt; i++) {
        fd_cli_prompt_line *item = &list->items[list->n++];
        fd_trace *golden;
        FD_TRY(fd_golden_prompt(file, i, &golden, err));
        const char *text = fd_trace_get_info(golden)->prompt;
        item->line = i + 1;
        item->n_id = fd_trace_steps(golden)[0].n_pos;
        item->ids = malloc(sizeof *item->ids * (size_t)(item->n_id + 1));
        if (text) item->text = strdup(text);
        bool copied = item->ids && (item->text || !text);
        if (copied) memcpy(item->ids, fd_trace_tokens(golden), sizeof *item->ids * (size_t)item->n_id);
        *n_generate = fd_trace_n_step(golden) > 1 ? fd_trace_n_pos(golden) - item->n_id + 1 : 1;
        fd_trace_close(golden);
        if (!copied) return fd_fail(err, FD_ERR_MEMORY, "prompt %d: out of memory", i + 1);
    }
    return FD_OK;
}

int fd_golden_update_command(const fd_golden_args *args, const fd_cli_model *model) {
    fd_error err = {0};
    fd_cli_prompts list = {0};
    fd_golden_args record = *args;
    int status = fd_golden_check_command(args, model);
    if (status != FD_EXIT_DIVERGED) return status; /* nothing changes, or it could not be looked at */
    if (!args->yes) {
        printf("nothing written; --yes records it anew\n");
        return status;
    }
    fd_golden *golden = NULL;
    fd_golden_size size;
    fd_code code = fd_golden_open(args->file, &golden, &size, &err);
    if (code == FD_OK) code = read_prompts(golden, size, &list, &record.n_generate, &err);
    char classes[256] = "";
    if (code == FD_OK) snprintf(classes, sizeof classes, "%s", fd_golden_measured(golden)->names);
    record.tolerances = classes;
    fd_golden_close(golden);
    record.output = args->file;
    if (code == FD_OK) code = fd_golden_record_list(&record, model, &list, &err);
    fd_cli_prompts_free(&list);
    return code == FD_OK ? FD_EXIT_SAME : fd_cli_fail("golden", &err);
}
