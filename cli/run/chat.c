#include "cli/run/chat.h"

#include <errno.h>
#include <jansson.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/temporary.h"

extern char **environ;

/* A special token as text; "" where there is none. */
static void token_text(const fd_tokenizer *tokenizer, int32_t token, char *to, int32_t size) {
    int32_t n = token < 0 ? -1 : fd_token_bytes(tokenizer, token, true, to, size - 1);
    to[n < 0 || n >= size ? 0 : n] = '\0';
}

static fd_code write_request(const char *path, const fd_cli_model *model, fd_string template, const char *system,
                             const char *text, fd_error *err) {
    char bos[256], eos[256];
    token_text(model->tokenizer, fd_tokenizer_bos(model->tokenizer), bos, sizeof bos);
    token_text(model->tokenizer, fd_tokenizer_eos(model->tokenizer), eos, sizeof eos);
    json_t *messages = json_array();
    if (system) json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "system", "content", system));
    json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "user", "content", text));
    json_t *request = json_pack("{s:s%, s:o, s:s, s:s}", "template", template.data, template.size, "messages", messages,
                                "bos_token", bos, "eos_token", eos);
    bool whole = request && json_array_size(messages) == (system ? 2u : 1u);
    int failed = whole ? json_dump_file(request, path, JSON_COMPACT) : 0;
    json_decref(request);
    if (!whole) return fd_fail(err, FD_ERR_INPUT, "--chat: the prompt or the template is no UTF-8");
    return failed ? fd_fail(err, FD_ERR_IO, "%s: cannot write: %s", path, strerror(errno)) : FD_OK;
}

static fd_code read_all(int from, char **out, fd_error *err) {
    size_t size = 0, room = 4096;
    for (*out = malloc(room); *out;) {
        ssize_t n = read(from, *out + size, room - size - 1);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        size += (size_t)n;
        if (size + 1 < room) continue;
        char *grown = realloc(*out, room *= 2);
        if (!grown) free(*out);
        *out = grown;
    }
    if (!*out) return fd_fail(err, FD_ERR_MEMORY, "--chat: out of memory");
    (*out)[size] = '\0';
    return FD_OK;
}

/* Standard error stays the user's: Python says there what is missing. */
static fd_code run_python(const char *path, char **out, fd_error *err) {
    const char *set = getenv("FD_PYTHON"), *python = set && *set ? set : "python3";
    char *const arguments[] = {(char *)python, "-m", "firstdiff.chat", (char *)path, NULL};
    int ends[2], status = 0;
    pid_t child;
    posix_spawn_file_actions_t actions;
    if (pipe(ends) != 0) return fd_fail(err, FD_ERR_IO, "--chat: no pipe: %s", strerror(errno));
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    int failed = posix_spawnp(&child, python, &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    fd_code code = FD_OK;
    if (failed)
        code = fd_fail(err, FD_ERR_UNSUPPORTED, "--chat: %s: %s (FD_PYTHON names the Python to take)", python,
                       strerror(failed));
    else
        code = read_all(ends[0], out, err);
    close(ends[0]);
    while (!failed && waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    if (code != FD_OK || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) return code;
    free(*out);
    *out = NULL;
    return fd_fail(
        err, FD_ERR_UNSUPPORTED,
        "--chat: %s -m firstdiff.chat failed; it needs pip install './dumpers/python[chat]' (FD_PYTHON names "
        "the Python to take)",
        python);
}

fd_code fd_cli_chat(const fd_cli_model *model, const char *system, const char *text, char **out, bool *whole,
                    fd_error *err) {
    fd_string template;
    char path[4096], bos[256];
    *out = NULL;
    FD_TRY(fd_gguf_get_string(model->gguf, "tokenizer.chat_template", &template, err));
    if (!template.data) return fd_fail(err, FD_ERR_INPUT, "key tokenizer.chat_template: missing, --chat renders it");
    if (!model->tokenizer) {
        *err = model->tokenizer_error;
        return err->code;
    }
    FD_TRY(fd_cli_temporary(path, err));
    fd_code code = write_request(path, model, template, system, text, err);
    if (code == FD_OK) code = run_python(path, out, err);
    unlink(path);
    if (code != FD_OK) return code;
    token_text(model->tokenizer, fd_tokenizer_bos(model->tokenizer), bos, sizeof bos);
    *whole = *bos && strncmp(*out, bos, strlen(bos)) == 0;
    return FD_OK;
}
