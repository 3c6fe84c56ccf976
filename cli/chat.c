#include "cli/chat.h"

#include <errno.h>
#include <jansson.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/limits.h"
#include "cli/temporary.h"

extern char **environ;

/* A special token as text; "" where there is none. */
static void token_text(const fd_tokenizer *tokenizer, int32_t token, char *to, int32_t size) {
    int32_t n = token < 0 ? -1 : fd_token_bytes(tokenizer, token, true, to, size - 1);
    to[n < 0 || n >= size ? 0 : n] = '\0';
}

/* Takes `messages`. */
static fd_code write_request(const char *path, const fd_cli_model *model, fd_string template, json_t *messages,
                             fd_error *err) {
    char bos[256], eos[256];
    token_text(model->tokenizer, fd_tokenizer_bos(model->tokenizer), bos, sizeof bos);
    token_text(model->tokenizer, fd_tokenizer_eos(model->tokenizer), eos, sizeof eos);
    json_t *request = json_pack("{s:s%, s:o, s:s, s:s}", "template", template.data, template.size, "messages", messages,
                                "bos_token", bos, "eos_token", eos);
    int failed = request ? json_dump_file(request, path, JSON_COMPACT) : 0;
    json_decref(request);
    if (!request) return fd_fail(err, FD_ERR_INPUT, "--chat: the prompt or the template is no UTF-8");
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

/* Takes `messages`, which may be NULL: what they were made of is no UTF-8. */
static fd_code render(const fd_cli_model *model, json_t *messages, char **out, bool *whole, fd_error *err) {
    fd_string template;
    char path[4096], bos[256];
    fd_code code = fd_gguf_get_string(model->gguf, "tokenizer.chat_template", &template, err);
    if (code == FD_OK && !template.data)
        code = fd_fail(err, FD_ERR_INPUT, "key tokenizer.chat_template: missing, --chat renders it");
    if (code == FD_OK && !model->tokenizer) {
        *err = model->tokenizer_error;
        code = err->code;
    }
    if (code == FD_OK) code = fd_cli_temporary(path, err);
    if (code != FD_OK) {
        json_decref(messages);
        return code;
    }
    code = write_request(path, model, template, messages, err);
    if (code == FD_OK) code = run_python(path, out, err);
    unlink(path);
    if (code != FD_OK) return code;
    token_text(model->tokenizer, fd_tokenizer_bos(model->tokenizer), bos, sizeof bos);
    *whole = *bos && strncmp(*out, bos, strlen(bos)) == 0;
    return FD_OK;
}

fd_code fd_cli_chat(const fd_cli_model *model, const char *system, const char *text, char **out, bool *whole,
                    fd_error *err) {
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", text);
    json_t *first = system ? json_pack("{s:s, s:s}", "role", "system", "content", system) : NULL;
    *out = NULL;
    if (system && (!first || json_array_insert_new(messages, 0, first) != 0)) {
        json_decref(messages);
        messages = NULL;
    }
    return render(model, messages, out, whole, err);
}

/* The list, or an object that has it as "messages", as chat servers are asked. */
static json_t *messages_in(json_t *root) {
    json_t *list = json_is_object(root) ? json_object_get(root, "messages") : root;
    size_t i;
    json_t *message;
    if (!json_is_array(list) || json_array_size(list) == 0) return NULL;
    json_array_foreach(list, i, message) {
        if (!json_is_string(json_object_get(message, "role")) || !json_object_get(message, "content")) return NULL;
    }
    return list;
}

fd_code fd_cli_chat_file(const fd_cli_model *model, const char *path, char **out, bool *whole, fd_error *err) {
    char *text;
    size_t size;
    json_error_t why;
    *out = NULL;
    FD_TRY(fd_file_read(path, "a list of messages", FD_LIMIT_TEXT_BYTES, &text, &size, err));
    fd_code code = fd_json_fits(path, text, size, err);
    json_t *root = code == FD_OK ? json_loadb(text, size, 0, &why) : NULL;
    free(text);
    if (code != FD_OK) return code;
    if (!root) return fd_fail(err, FD_ERR_INPUT, "%s: line %d: %s", path, why.line, why.text);
    json_t *messages = json_incref(messages_in(root));
    json_decref(root);
    if (!messages)
        return fd_fail(err, FD_ERR_INPUT,
                       "%s: expected [{\"role\": …, \"content\": …}, …], or an object with that as "
                       "\"messages\"",
                       path);
    return render(model, messages, out, whole, err);
}
