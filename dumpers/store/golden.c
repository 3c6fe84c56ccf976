#include "dumpers/store/golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/store/reader.h"

enum { VERSION = 2, MAX_PROMPTS = 10000 };

/* ---- writing ---- */

fd_trace_options fd_golden_options(const char *path, int32_t n_pos) {
    fd_trace_options options = fd_trace_defaults(path);
    options.level = FD_TRACE_FINGERPRINT;
    options.always = "logits";
    options.compress = true;
    options.n_pos = n_pos;
    return options;
}

static void group_of(int32_t prompt, char group[16]) {
    snprintf(group, 16, "prompts/%04d", prompt);
}

fd_trace_options fd_golden_prompt_options(fd_trace_file *file, int32_t n_pos, int32_t prompt, char group[16]) {
    fd_trace_options options = fd_golden_options(file->path, n_pos);
    group_of(prompt, group);
    options.file = file;
    options.group = group;
    return options;
}

fd_code fd_golden_finish(fd_trace_file *file, fd_golden_size size, fd_error *err) {
    fd_h5_guard guard = fd_h5_begin();
    bool ok = fd_h5_put_string(file->id, "schema", FD_GOLDEN_SCHEMA) && fd_h5_put_int(file->id, "version", VERSION) &&
              fd_h5_put_int(file->id, "n_prompt", size.n_prompt) && fd_h5_put_int(file->id, "n_pos", size.n_pos);
    fd_code code = ok ? FD_OK : fd_h5_target_fail(&file->target, err, "%s: cannot write the golden", file->path);
    fd_h5_end(guard);
    if (ok) return fd_trace_file_finish(file, err);
    fd_trace_file_abandon(file);
    return code;
}

/* ---- reading ---- */

struct fd_golden {
    fd_h5_reader *reader;
    char *path;
};

typedef struct golden_head {
    bool golden;
    int64_t version, n_prompt, n_pos; /* -1: not said */
    char schema[32];
} golden_head;

static fd_code read_head(const char *path, fd_h5_reader **reader, golden_head *out, fd_error *err) {
    *out = (golden_head){.version = -1, .n_prompt = -1, .n_pos = -1};
    FD_TRY(fd_h5_reader_open(path, NULL, "a golden", reader, err));
    fd_h5_reader_string(*reader, "", "schema", out->schema, sizeof out->schema, NULL);
    out->golden = strcmp(out->schema, FD_GOLDEN_SCHEMA) == 0;
    fd_h5_reader_int(*reader, "", "version", &out->version);
    fd_h5_reader_int(*reader, "", "n_prompt", &out->n_prompt);
    fd_h5_reader_int(*reader, "", "n_pos", &out->n_pos);
    return fd_h5_reader_survived(*reader, FD_OK, err);
}

bool fd_golden_is_one(const char *path) {
    golden_head head;
    fd_error unused = {0};
    fd_h5_reader *reader = NULL;
    bool is_one = read_head(path, &reader, &head, &unused) == FD_OK && head.golden;
    fd_h5_reader_close(reader);
    return is_one;
}

static fd_code check_head(const char *path, const golden_head *head, fd_error *err) {
    if (!head->golden)
        return fd_fail(err, FD_ERR_INPUT, "%s: schema is \"%s\", expected \"" FD_GOLDEN_SCHEMA "\"", path,
                       head->schema);
    if (head->version == 1)
        return fd_fail(err, FD_ERR_INPUT,
                       "%s: a golden of format version 1, expected %d: record it again with firstdiff golden record "
                       "MODEL.gguf PROMPTS.txt -o GOLDEN.h5",
                       path, VERSION);
    if (head->version != VERSION)
        return fd_fail(err, FD_ERR_INPUT, "%s: a golden of format version %lld, expected %d", path,
                       (long long)head->version, VERSION);
    if (head->n_prompt < 1 || head->n_prompt > MAX_PROMPTS || head->n_pos < 1 || head->n_pos > INT32_MAX)
        return fd_fail(err, FD_ERR_INPUT, "%s: %lld prompts of at most %lld positions, expected 1 to %d prompts", path,
                       (long long)head->n_prompt, (long long)head->n_pos, MAX_PROMPTS);
    return FD_OK;
}

fd_code fd_golden_open(const char *path, fd_golden **out, fd_golden_size *size, fd_error *err) {
    golden_head head;
    fd_golden *golden = *out = calloc(1, sizeof *golden);
    if (!golden) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", path);
    golden->path = strdup(path);
    fd_code code = golden->path ? read_head(path, &golden->reader, &head, err)
                                : fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", path);
    if (code == FD_OK) code = check_head(path, &head, err);
    if (code == FD_OK) {
        *size = (fd_golden_size){(int32_t)head.n_prompt, (int32_t)head.n_pos};
        return FD_OK;
    }
    fd_golden_close(golden);
    *out = NULL;
    return code;
}

void fd_golden_close(fd_golden *golden) {
    if (!golden) return;
    fd_h5_reader_close(golden->reader);
    free(golden->path);
    free(golden);
}

fd_code fd_golden_prompt(const fd_golden *golden, int32_t prompt, fd_trace **out, fd_error *err) {
    char group[16];
    group_of(prompt, group);
    fd_code code = fd_trace_open_inside(golden->reader, golden->path, group, out, err);
    return code == FD_OK ? FD_OK : fd_error_prefix(err, "prompt %d", prompt + 1);
}

fd_code fd_golden_open_prompt(const char *path, int32_t prompt, fd_trace **out, fd_error *err) {
    char group[16];
    group_of(prompt, group);
    fd_code code = fd_trace_open_group(path, group, out, err);
    return code == FD_OK ? FD_OK : fd_error_prefix(err, "prompt %d", prompt + 1);
}
