#include "cli/prompt_list.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

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
    FILE *file = fopen(path, "rb");
    if (!file) return fd_fail(err, FD_ERR_IO, "%s: %s", path, strerror(errno));
    char *text = NULL;
    size_t capacity = 0;
    fd_code code = FD_OK;
    ssize_t size;
    errno = 0;
    for (int32_t line = 1; code == FD_OK && (size = getline(&text, &capacity, file)) >= 0; line++) {
        while (size > 0 && (text[size - 1] == '\n' || text[size - 1] == '\r')) text[--size] = '\0';
        if (size == 0 || text[0] == '#') continue;
        if (strlen(text) != (size_t)size)
            code = fd_fail(err, FD_ERR_INPUT, "contains a NUL byte: not a text file");
        else
            code = add_prompt(model, text, line, list, err);
        if (code != FD_OK) fd_error_prefix(err, "%s line %d", path, line);
    }
    if (code == FD_OK && ferror(file)) code = fd_fail(err, FD_ERR_IO, "%s: reading failed: %s", path, strerror(errno));
    free(text);
    fclose(file);
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
