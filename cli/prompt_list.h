/* Prompts from a file: a line each, "tokens:1,2,3" for ids; empty lines and those that begin with # are left out. In a
 * file *.jsonl each line is {"prompt": "…"} or {"tokens": [1, 2]}, so that a prompt may have line breaks. */
#ifndef FD_CLI_PROMPT_LIST_H
#define FD_CLI_PROMPT_LIST_H

#include "cli/cli.h"

typedef struct fd_cli_prompt_line {
    int32_t *ids;
    int32_t n_id;
    char *text; /* NULL for "tokens:" */
    int32_t line;
} fd_cli_prompt_line;

typedef struct fd_cli_prompts {
    fd_cli_prompt_line *items; /* owned, with what they point to */
    int32_t n;
} fd_cli_prompts;

/* text [size] of such a file; `json`: of *.jsonl. Messages say `where` and the line. FD_ERR_INPUT: no prompt in it, or more than the limit.
 * Free the list in any case. */
fd_code fd_cli_prompts_parse(const char *text, size_t size, bool json, const char *where, const fd_cli_model *model,
                             fd_cli_prompts *list, fd_error *err);

/* The same of a file, which messages name. */
fd_code fd_cli_prompts_read(const char *path, const fd_cli_model *model, fd_cli_prompts *list, fd_error *err);
void fd_cli_prompts_free(fd_cli_prompts *list);

#endif
