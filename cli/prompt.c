/* Prompts: -p TEXT, --tokens IDS or --prompt-file FILE. */
#include "cli/cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/limits.h"

static const struct argp_option options[] = {
    {"prompt", 'p', "TEXT", 0, "The prompt", 1},
    {"tokens", 't', "IDS", 0, "The prompt as token ids, \"1,2,3\": no tokenizer needed", 1},
    {"prompt-file", 'f', "FILE", 0, "The prompt is the file's text (one trailing newline dropped)", 1},
    {0},
};

static error_t parse_prompt_option(int key, char *arg, struct argp_state *state) {
    fd_cli_prompt *prompt = state->input;
    switch (key) {
    case 'p': prompt->text = arg; return 0;
    case 't': prompt->tokens = arg; return 0;
    case 'f': prompt->file = arg; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

const struct argp fd_cli_prompt_argp = {.options = options, .parser = parse_prompt_option};

fd_code fd_cli_parse_ids(const char *list, int32_t n_vocab, int32_t **ids, int32_t *n_id, fd_error *err) {
    *ids = malloc(sizeof **ids * (strlen(list) / 2 + 1));
    *n_id = 0;
    if (!*ids) return fd_fail(err, FD_ERR_MEMORY, "out of memory");
    const char *p = list + strspn(list, ", \t\r\n");
    while (*p) {
        char *end;
        errno = 0;
        long value = strtol(p, &end, 10);
        size_t item = strcspn(p, ", \t\r\n");
        if (end != p + item || errno || value < 0 || value >= n_vocab) {
            free(*ids);
            *ids = NULL;
            return fd_fail(err, FD_ERR_INPUT, "token \"%.*s\": expected an id from 0 to %d",
                           (int)(item < 64 ? item : 64), p, n_vocab - 1);
        }
        (*ids)[(*n_id)++] = (int32_t)value;
        p = end + strspn(end, ", \t\r\n");
    }
    return FD_OK;
}

fd_code fd_cli_token_list(const char *list, const char *path, int32_t n_vocab, int32_t **ids, int32_t *n,
                          fd_error *err) {
    *ids = NULL;
    *n = 0;
    if (list) return fd_cli_parse_ids(list, n_vocab, ids, n, err);
    if (!path) return FD_OK;
    char *text;
    size_t size;
    FD_TRY(fd_file_read(path, "a list of token ids", FD_LIMIT_TEXT_BYTES, &text, &size, err));
    fd_code code = strlen(text) == size ? fd_cli_parse_ids(text, n_vocab, ids, n, err)
                                        : fd_fail(err, FD_ERR_INPUT, "a zero byte: not a list of token ids");
    free(text);
    return code == FD_OK ? FD_OK : fd_error_prefix(err, "%s", path);
}

static fd_code read_file(const char *path, char **text, size_t *size, fd_error *err) {
    FD_TRY(fd_file_read(path, "a prompt", FD_LIMIT_TEXT_BYTES, text, size, err));
    if (*size > 0 && (*text)[*size - 1] == '\n') (*text)[--*size] = '\0';
    return FD_OK;
}

fd_code fd_cli_prompt_text(const fd_cli_prompt *prompt, char **text, size_t *size, fd_error *err) {
    if (!prompt->text == !prompt->file)
        return fd_fail(err, FD_ERR_INPUT, "%s of -p TEXT and --prompt-file FILE given, expected one",
                       prompt->text ? "both" : "neither");
    if (prompt->file) return read_file(prompt->file, text, size, err);
    *size = strlen(prompt->text);
    *text = strdup(prompt->text);
    return *text ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "out of memory");
}

/* More text than this has more tokens than positions; and a tokenizer takes forty times as much memory. */
enum { BYTES_OF_A_POSITION = 16 };

fd_code fd_cli_prompt_ids(const fd_cli_prompt *prompt, const fd_cli_model *model, int32_t **ids, int32_t *n_id,
                          char **text, fd_error *err) {
    *ids = NULL;
    *text = NULL;
    int given = (prompt->text != NULL) + (prompt->tokens != NULL) + (prompt->file != NULL);
    if (given != 1)
        return fd_fail(err, FD_ERR_INPUT, "%s of -p TEXT, --tokens IDS and --prompt-file FILE given, expected one",
                       given ? "several" : "none");
    if (prompt->tokens) {
        FD_TRY(fd_cli_parse_ids(prompt->tokens, model->graph->hparams.n_vocab, ids, n_id, err));
    } else {
        if (!model->tokenizer) {
            *err = model->tokenizer_error;
            return err->code;
        }
        size_t size = 0;
        FD_TRY(fd_cli_prompt_text(prompt, text, &size, err));
        fd_code code = size / BYTES_OF_A_POSITION <= (size_t)fd_limit_of(FD_LIMIT_POSITIONS)
                           ? fd_tokenize(model->tokenizer, *text, size, !prompt->whole, true, ids, n_id, err)
                           : fd_limit_exceeded(err, FD_LIMIT_POSITIONS, "a prompt of %zu bytes", size);
        if (code != FD_OK) {
            free(*text);
            *text = NULL;
            return code;
        }
    }
    if (*n_id > 0) return FD_OK;
    free(*ids);
    free(*text);
    *ids = NULL;
    *text = NULL;
    return fd_fail(err, FD_ERR_INPUT, "the prompt is empty: 0 tokens, expected at least 1");
}
