#include "cli/prompt_list.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"

static fd_code add_prompt(const fd_cli_model *model, char *text, int32_t line, fd_cli_prompts *list, fd_error *err) {
    fd_cli_prompt_line *grown = realloc(list->items, sizeof *grown * (size_t)(list->n + 1));
    if (!grown) return fd_fail(err, FD_ERR_MEMORY, "out of memory");
    list->items = grown;
    fd_cli_prompt_line *item = &grown[list->n];
    *item = (fd_cli_prompt_line){.line = line};
    bool is_ids = strncmp(text, "tokens:", 7) == 0;
    fd_cli_prompt prompt = {.text = is_ids ? NULL : text, .tokens = is_ids ? text + 7 : NULL};
    FD_TRY(fd_cli_prompt_ids(&prompt, model, &item->ids, &item->n_id, &item->text, err));
    list->n++;
    return FD_OK;
}

fd_code fd_cli_prompts_read(const char *path, const fd_cli_model *model, fd_cli_prompts *list, fd_error *err) {
    char *text;
    size_t size;
    fd_code code = fd_file_read(path, "prompts, one a line", FD_LIMIT_TEXT_BYTES, &text, &size, err);
    char *at = text, *end = code == FD_OK ? text + size : text;
    for (int32_t line = 1; code == FD_OK && at < end; line++) {
        char *next = memchr(at, '\n', (size_t)(end - at));
        size_t n = (size_t)((next ? next : end) - at);
        while (n > 0 && at[n - 1] == '\r') n--;
        at[n] = '\0';
        if (strlen(at) != n)
            code = fd_fail(err, FD_ERR_INPUT, "contains a NUL byte: not a text file");
        else if (n > 0 && at[0] != '#')
            code = add_prompt(model, at, line, list, err);
        if (code != FD_OK) fd_error_prefix(err, "%s line %d", path, line);
        at = next ? next + 1 : end;
    }
    free(text);
    if (code == FD_OK && list->n == 0) code = fd_fail(err, FD_ERR_INPUT, "%s: no prompts in it", path);
    return code;
}

void fd_cli_prompts_free(fd_cli_prompts *list) {
    for (int32_t i = 0; i < list->n; i++) {
        free(list->items[i].ids);
        free(list->items[i].text);
    }
    free(list->items);
    *list = (fd_cli_prompts){0};
}
