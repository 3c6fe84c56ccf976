#include "cli/prompt_list.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"

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
    FD_TRY(fd_json_fits("a prompt", text, size, err));
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

static fd_code add_line(const fd_cli_model *model, const char *text, size_t size, bool json, int32_t line,
                        fd_cli_prompts *list, fd_error *err) {
    if (memchr(text, 0, size)) return fd_fail(err, FD_ERR_INPUT, "contains a NUL byte: not a text file");
    if (size == 0 || (!json && text[0] == '#')) return FD_OK;
    if (list->n >= fd_limit_of(FD_LIMIT_PROMPTS)) return fd_limit_exceeded(err, FD_LIMIT_PROMPTS, "more prompts");
    if (json) return add_json_prompt(model, text, size, line, list, err);
    char *copy = strndup(text, size);
    if (!copy) return fd_fail(err, FD_ERR_MEMORY, "out of memory");
    fd_code code = add_prompt(model, copy, false, line, list, err);
    free(copy);
    return code;
}

fd_code fd_cli_prompts_parse(const char *text, size_t size, bool json, const char *where, const fd_cli_model *model,
                             fd_cli_prompts *list, fd_error *err) {
    const char *end = text + size;
    for (int32_t line = 1; text < end; line++) {
        const char *next = memchr(text, '\n', (size_t)(end - text));
        size_t n = (size_t)((next ? next : end) - text);
        while (n > 0 && text[n - 1] == '\r') n--;
        if (add_line(model, text, n, json, line, list, err) != FD_OK)
            return fd_error_prefix(err, "%s line %d", where, line);
        text = next ? next + 1 : end;
    }
    return list->n > 0 ? FD_OK : fd_fail(err, FD_ERR_INPUT, "%s: no prompts in it", where);
}

fd_code fd_cli_prompts_read(const char *path, const fd_cli_model *model, fd_cli_prompts *list, fd_error *err) {
    char *text;
    size_t size;
    FD_TRY(fd_file_read(path, "prompts, one a line", FD_LIMIT_TEXT_BYTES, &text, &size, err));
    const char *ending = strrchr(path, '.');
    bool json = ending && strcmp(ending, ".jsonl") == 0;
    fd_code code = fd_cli_prompts_parse(text, size, json, path, model, list, err);
    free(text);
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
