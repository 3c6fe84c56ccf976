#include "cli/prompt_list.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

/* plain: text, whatever it begins with. */
static fd_code add_prompt(const fd_cli_model *model, const char *text, bool plain, int32_t line, fd_cli_prompts *list,
                          fd_error *err) {
    fd_cli_prompt_line *grown = realloc(list->items, sizeof *grown * (size_t)(list->n + 1));
    if (!grown) return fd_fail(err, FD_ERR_MEMORY, "out of memory");
    list->items = grown;
    fd_cli_prompt_line *item = &grown[list->n];
    *item = (fd_cli_prompt_line){.line = line};
    bool is_ids = !plain && strncmp(text, "tokens:", 7) == 0;
    fd_cli_prompt prompt = {.text = is_ids ? NULL : text, .tokens = is_ids ? text + 7 : NULL};
    FD_TRY(fd_cli_prompt_ids(&prompt, model, &item->ids, &item->n_id, &item->text, err));
    list->n++;
    return FD_OK;
}

/* {"prompt": "…"} or {"tokens": [1, 2]}. */
static fd_code add_json_prompt(const fd_cli_model *model, const char *text, size_t size, int32_t line,
                               fd_cli_prompts *list, fd_error *err) {
    json_error_t why;
    json_t *object = json_loadb(text, size, 0, &why);
    const json_t *prompt = json_object_get(object, "prompt"), *tokens = json_object_get(object, "tokens");
    if (!json_is_object(object) || json_is_string(prompt) == json_is_array(tokens)) {
        json_decref(object);
        return fd_fail(err, FD_ERR_INPUT, "expected {\"prompt\": \"…\"} or {\"tokens\": [1, 2]}: %.100s",
                       object ? "neither is there, or both" : why.text);
    }
    size_t room = json_is_string(prompt) ? json_string_length(prompt) + 1 : 8 + 24 * json_array_size(tokens), at = 7;
    char *as_line = malloc(room);
    fd_code code = as_line ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "out of memory");
    if (as_line && prompt) memcpy(as_line, json_string_value(prompt), room);
    if (as_line && tokens) memcpy(as_line, "tokens:", 8);
    for (size_t i = 0; as_line && i < json_array_size(tokens); i++) {
        const json_t *id = json_array_get(tokens, i);
        long long value = json_is_integer(id) ? (long long)json_integer_value(id) : -1;
        at += (size_t)snprintf(as_line + at, room - at, "%lld,", value);
    }
    json_decref(object);
    if (code == FD_OK) code = add_prompt(model, as_line, tokens == NULL, line, list, err);
    free(as_line);
    return code;
}

fd_code fd_cli_prompts_read(const char *path, const fd_cli_model *model, fd_cli_prompts *list, fd_error *err) {
    char *text;
    size_t size;
    fd_code code = fd_file_read(path, "prompts, one a line", FD_LIMIT_TEXT_BYTES, &text, &size, err);
    const char *ending = strrchr(path, '.');
    bool json = ending && strcmp(ending, ".jsonl") == 0;
    char *at = text, *end = code == FD_OK ? text + size : text;
    for (int32_t line = 1; code == FD_OK && at < end; line++) {
        char *next = memchr(at, '\n', (size_t)(end - at));
        size_t n = (size_t)((next ? next : end) - at);
        while (n > 0 && at[n - 1] == '\r') n--;
        at[n] = '\0';
        if (strlen(at) != n)
            code = fd_fail(err, FD_ERR_INPUT, "contains a NUL byte: not a text file");
        else if (n > 0 && json)
            code = add_json_prompt(model, at, n, line, list, err);
        else if (n > 0 && at[0] != '#')
            code = add_prompt(model, at, false, line, list, err);
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
