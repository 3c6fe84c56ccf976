#include "dumpers/store/golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/store/reader.h"

#define TOLERANCES "tolerances"
enum { VERSION = 2, MAX_PROMPTS = 10000 };

/* ---- writing ---- */

fd_trace_options fd_golden_options(const char *path, int32_t n_pos) {
    fd_trace_options options = fd_trace_defaults(path);
    options.level = FD_TRACE_FINGERPRINT;
    options.always = "logits";
    options.compress_graph = true;
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

void fd_golden_thin(float *logits, int64_t n_vocab, const fd_top_logits *top) {
    int64_t kept = 0; /* the first id that no run had yet */
    for (int64_t run = 0; run <= FD_GOLDEN_LOGIT_RUNS; run++) {
        int64_t next = run * n_vocab / FD_GOLDEN_LOGIT_RUNS; /* after the last run: the vocabulary's end */
        for (int64_t id = kept; id < next; id++) logits[id] = NAN;
        kept = next + FD_GOLDEN_LOGIT_RUN;
    }
    for (int i = 0; i < FD_TOP_K; i++)
        if (top->id[i] >= 0) logits[top->id[i]] = top->logit[i];
}

static bool put_tolerances(hid_t root, const fd_golden_tolerances *measured) {
    hsize_t n = (hsize_t)measured->n_class;
    hid_t space = H5Screate_simple(1, &n, NULL);
    hid_t set = H5Dcreate2(root, TOLERANCES, H5T_IEEE_F64LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    bool ok = set >= 0 && H5Dwrite(set, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, measured->nmse) >= 0 &&
              fd_h5_put_string(set, "classes", measured->names) && fd_h5_put_int(set, "runs", measured->n_run);
    fd_h5_release(set);
    fd_h5_release(space);
    return ok;
}

fd_code fd_golden_finish(fd_trace_file *file, fd_golden_size size, const fd_golden_tolerances *measured,
                         fd_error *err) {
    fd_h5_guard guard = fd_h5_begin();
    bool ok = fd_h5_put_string(file->id, "schema", FD_GOLDEN_SCHEMA) && fd_h5_put_int(file->id, "version", VERSION) &&
              fd_h5_put_int(file->id, "n_prompt", size.n_prompt) && fd_h5_put_int(file->id, "n_pos", size.n_pos) &&
              (!measured || measured->n_class == 0 || put_tolerances(file->id, measured));
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
    fd_golden_tolerances measured;
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

/* Words of `names` before `name`, or all of them when it is not there. */
static int32_t words_before(const char *names, const char *name, bool *found) {
    int32_t n = 0;
    *found = false;
    for (size_t size; *names && !*found; names += size + strspn(names + size, " ")) {
        size = strcspn(names, " ");
        *found = name && size == strlen(name) && memcmp(names, name, size) == 0;
        n += !*found && size > 0;
    }
    return n;
}

int32_t fd_golden_tolerance_find(const fd_golden_tolerances *tolerances, const char *name) {
    bool found;
    int32_t at = words_before(tolerances->names, name, &found);
    return found && at < tolerances->n_class ? at : -1;
}

static fd_code read_tolerances(fd_golden *golden, fd_error *err) {
    fd_golden_tolerances *measured = &golden->measured;
    fd_h5_dataset set;
    fd_h5_reader *reader = golden->reader;
    int64_t n_run = -1;
    bool unused;
    if (!fd_h5_reader_has(reader, TOLERANCES)) return FD_OK;
    fd_h5_reader_string(reader, TOLERANCES, "classes", measured->names, sizeof measured->names, NULL);
    fd_h5_reader_int(reader, TOLERANCES, "runs", &n_run);
    int32_t n_class = words_before(measured->names, NULL, &unused);
    bool ok = fd_h5_reader_dataset(reader, TOLERANCES, &set) && set.simple && set.shape.rank == 1 &&
              set.shape.dim[0] == (hsize_t)n_class && n_class >= 1 && n_class <= FD_GOLDEN_MOST_CLASSES && n_run >= 1 &&
              n_run <= INT32_MAX;
    if (!ok)
        return fd_fail(err, FD_ERR_INPUT,
                       "%s: " TOLERANCES ": expected one for each of the attribute classes, and runs", golden->path);
    fd_h5_block block = {
        .object = TOLERANCES, .type = &fd_h5_f64, .shape = set.shape, .start = {.rank = 1}, .count = set.shape};
    if (!fd_h5_reader_rows(reader, &block, measured->nmse))
        return fd_h5_reader_fail(reader, err, FD_ERR_INPUT, "%s: " TOLERANCES ": cannot be read", golden->path);
    measured->n_class = n_class;
    measured->n_run = (int32_t)n_run;
    return FD_OK;
}

const fd_golden_tolerances *fd_golden_measured(const fd_golden *golden) {
    return &golden->measured;
}

fd_code fd_golden_open(const char *path, fd_golden **out, fd_golden_size *size, fd_error *err) {
    golden_head head;
    fd_golden *golden = *out = calloc(1, sizeof *golden);
    if (!golden) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", path);
    golden->path = strdup(path);
    fd_code code = golden->path ? read_head(path, &golden->reader, &head, err)
                                : fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", path);
    if (code == FD_OK) code = check_head(path, &head, err);
    if (code == FD_OK) code = read_tolerances(golden, err);
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
