#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "dumpers/store/reader.h"

static fd_code read_prompt(fd_trace *trace, fd_error *err) {
    size_t length;
    if (fd_h5_reader_string(trace->reader, "", "prompt", NULL, 0, &length) != FD_H5_FOUND) return FD_OK;
    trace->info.prompt = malloc(length + 1);
    if (!trace->info.prompt) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", trace->path);
    fd_h5_reader_string(trace->reader, "", "prompt", trace->info.prompt, length + 1, NULL);
    return FD_OK;
}

static fd_code read_info(fd_trace *trace, fd_error *err) {
    fd_trace_info *info = &trace->info;
    char schema[32], level[32];
    int64_t version, value;
    fd_h5_found found = fd_h5_reader_string(trace->reader, "", "schema", schema, sizeof schema, NULL);
    if (found == FD_H5_FOUND && strcmp(schema, FD_GOLDEN_SCHEMA) == 0)
        return fd_fail(err, FD_ERR_INPUT, "%s: a golden, expected a trace; \"%s#1\" is the trace of its first prompt",
                       trace->path, trace->path);
    if (found != FD_H5_FOUND || strcmp(schema, FD_TRACE_SCHEMA) != 0)
        return fd_fail(err, FD_ERR_INPUT, "%s: attribute schema is %s%s%s, expected \"" FD_TRACE_SCHEMA "\"",
                       trace->path, found == FD_H5_FOUND ? "\"" : "",
                       found == FD_H5_FOUND ? schema : "missing or no string", found == FD_H5_FOUND ? "\"" : "");
    if (fd_h5_reader_int(trace->reader, "", "version", &version) != FD_H5_FOUND || version != FD_TRACE_VERSION)
        return fd_fail(err, FD_ERR_INPUT, "%s: attribute version is %lld, expected %d", trace->path, (long long)version,
                       FD_TRACE_VERSION);
    info->complete = fd_h5_reader_int(trace->reader, "", "complete", &value) == FD_H5_ABSENT || value != 0;
    for (size_t i = 0; i < fd_info_field_count; i++) {
        const fd_info_field *field = &fd_info_fields[i];
        if (!info->complete && field->offset == offsetof(fd_trace_info, finished)) continue;
        if (fd_h5_reader_string(trace->reader, "", field->name, (char *)info + field->offset, field->size, NULL) ==
            FD_H5_WRONG)
            return fd_fail(err, FD_ERR_INPUT, "%s: attribute %s is not a string", trace->path, field->name);
    }
    if (fd_h5_reader_int(trace->reader, "", "contract", &value) == FD_H5_FOUND) info->contract = (int32_t)value;
    info->level = FD_TRACE_FULL;
    if (fd_h5_reader_string(trace->reader, "", "level", level, sizeof level, NULL) == FD_H5_FOUND) {
        int parsed = fd_trace_level_parse(level);
        if (parsed < 0)
            return fd_fail(err, FD_ERR_INPUT, "%s: level is \"%s\", expected full, stats or fingerprint", trace->path,
                           level);
        info->level = (fd_trace_level)parsed;
    }
    return read_prompt(trace, err);
}

static fd_code dataset_length(const fd_trace *trace, const char *name, int32_t *out, fd_h5_shape *shape,
                              fd_error *err) {
    fd_h5_dataset set;
    bool ok = fd_h5_reader_dataset(trace->reader, name, &set) && set.simple && set.shape.rank == 1 &&
              set.shape.dim[0] < INT32_MAX;
    if (!ok) return fd_fail(err, FD_ERR_INPUT, "%s: no list /%s of rank 1", trace->path, name);
    *out = (int32_t)set.shape.dim[0];
    *shape = set.shape;
    if (*out <= fd_limit_of(FD_LIMIT_POSITIONS)) return FD_OK;
    return fd_limit_exceeded(err, FD_LIMIT_POSITIONS, "%s: %s: %d", trace->path, name, *out);
}

/* Checks that the steps follow one another and returns the positions they cover. */
static fd_code check_steps(const fd_trace *trace, const fd_step_row *rows, int32_t n, int32_t n_token, int32_t *n_pos,
                           fd_error *err) {
    *n_pos = 0;
    for (int32_t i = 0; i < n; i++) {
        if (rows[i].first != *n_pos || rows[i].count < 1 || rows[i].count > n_token - *n_pos || rows[i].kind < 0 ||
            rows[i].kind > FD_STEP_VERIFY || rows[i].level < 0 || rows[i].level > FD_TRACE_FULL)
            return fd_fail(err, FD_ERR_INPUT,
                           "%s: step %d: first %d, count %d, kind %d, level %d; %d of %d tokens before it", trace->path,
                           i, rows[i].first, rows[i].count, rows[i].kind, rows[i].level, *n_pos, n_token);
        *n_pos += rows[i].count;
    }
    if (trace->info.complete && *n_pos != n_token)
        return fd_fail(err, FD_ERR_INPUT, "%s: steps cover %d positions, expected %d (as /tokens)", trace->path, *n_pos,
                       n_token);
    return FD_OK;
}

static fd_code read_step_rows(const fd_trace *trace, fd_h5_shape shape, int32_t n, fd_step_row *rows, fd_error *err) {
    for (int32_t i = 0; i < n; i++) rows[i] = (fd_step_row){-1, -1, FD_STEP_PREFILL, (int32_t)trace->info.level};
    fd_h5_block block = {"steps", &fd_step_row_type, shape, {.rank = 1}, {1, {(hsize_t)n}}};
    if (fd_h5_reader_rows(trace->reader, &block, rows)) return FD_OK;
    return fd_h5_reader_fail(trace->reader, err, FD_ERR_INPUT,
                             "%s: steps: expected a table of first, count, kind, level", trace->path);
}

static fd_code read_steps(fd_trace *trace, int32_t n_token, fd_error *err) {
    int32_t n = 1;
    fd_h5_shape shape;
    bool given = fd_h5_reader_has(trace->reader, "steps");
    if (given) FD_TRY(dataset_length(trace, "steps", &n, &shape, err));
    if (n > n_token + 1) n = n_token + 1; /* one of them is then refused: each has a position of its own */
    /* a single prefill for a trace that does not say */
    fd_step_row one = {0, n_token, FD_STEP_PREFILL, FD_TRACE_FULL},
                *rows = given ? malloc((size_t)n * sizeof *rows + 1) : &one;
    if (!given && n_token == 0) n = 0;
    trace->steps = malloc((size_t)n * sizeof *trace->steps + 1);
    fd_code code = rows && trace->steps ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", trace->path);
    if (code == FD_OK && given) code = read_step_rows(trace, shape, n, rows, err);
    if (code == FD_OK) code = check_steps(trace, rows, n, n_token, &trace->n_pos, err);
    if (code == FD_OK && !(trace->level = malloc((size_t)trace->n_pos + 1)))
        code = fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", trace->path);
    for (int32_t i = 0; code == FD_OK && i < n; i++) {
        trace->steps[i] = (fd_trace_step){rows[i].first, rows[i].count, (fd_step_kind)rows[i].kind};
        memset(trace->level + rows[i].first, rows[i].level, (size_t)rows[i].count);
    }
    trace->n_step = n;
    if (given) free(rows);
    return code;
}

/* What load and those it calls will ask of every trace, at once and about in their order. */
static void look_ahead(const fd_trace *trace) {
    static const char *const tables[] = {"tokens", "steps", "graph", "fingerprints", "stats"};
    enum { PROMPT = 4096, N_TABLE = sizeof tables / sizeof *tables, MOST = 128 };
    fd_h5_question q[MOST] = {{FD_H5_TEXT, "", "schema", 32}, {FD_H5_INTEGER, "", "version", 0}};
    size_t n = 2;
    char health[FD_HEALTH_COUNT][64];
    for (size_t i = 0; i < fd_info_field_count; i++)
        q[n++] = (fd_h5_question){FD_H5_TEXT, "", fd_info_fields[i].name, (uint32_t)fd_info_fields[i].size};
    q[n++] = (fd_h5_question){FD_H5_INTEGER, "", "contract", 0};
    q[n++] = (fd_h5_question){FD_H5_INTEGER, "", "complete", 0};
    q[n++] = (fd_h5_question){FD_H5_TEXT, "", "level", 32};
    q[n++] = (fd_h5_question){FD_H5_TEXT, "", "prompt", PROMPT};
    q[n++] = (fd_h5_question){FD_H5_HAS, "tensors", "", 0};
    q[n++] = (fd_h5_question){FD_H5_HAS, "health", "", 0};
    for (size_t i = 0; i < N_TABLE + FD_HEALTH_COUNT; i++) {
        const char *object = i < N_TABLE ? tables[i] : health[i - N_TABLE];
        if (i >= N_TABLE)
            snprintf(health[i - N_TABLE], sizeof *health, "health/%s", fd_health_columns[i - N_TABLE].name);
        for (fd_h5_kind kind = FD_H5_HAS; kind <= FD_H5_STORED; kind++) q[n++] = (fd_h5_question){kind, object, "", 0};
    }
    assert(n <= MOST);
    fd_h5_reader_prefetch(trace->reader, q, n);
}

static fd_code load(fd_trace *trace, fd_error *err) {
    int32_t n_token;
    fd_h5_shape shape;
    void *tokens;
    look_ahead(trace);
    FD_TRY(read_info(trace, err));
    const fd_h5_bytes *bytes = fd_h5_reader_bytes(trace->reader);
    trace->plain = bytes && trace->info.complete;
    if (bytes) trace->bytes = *bytes;
    trace->inflated = fd_h5_reader_inflated(trace->reader);
    fd_h5_inflated_limit(trace->inflated, trace->memory / 8);
    FD_TRY(dataset_length(trace, "tokens", &n_token, &shape, err));
    FD_TRY(read_steps(trace, n_token, err));
    FD_TRY(fd_trace_load_rows(trace, "tokens", &fd_h5_i32, 0, NULL, trace->n_pos, &tokens, err));
    trace->tokens = tokens;
    FD_TRY(fd_trace_load_nodes(trace, err));
    return fd_trace_load_tables(trace, err);
}

/* Takes `reader`. */
static fd_code open_trace(fd_h5_reader *reader, const char *path, size_t memory, fd_trace **out, fd_error *err) {
    *out = NULL;
    fd_trace *trace = calloc(1, sizeof *trace);
    if (!trace) {
        fd_h5_reader_close(reader);
        return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", path);
    }
    trace->reader = reader;
    trace->bytes.fd = -1;
    trace->memory = memory;
    trace->path = strdup(path);
    trace->places_bytes = calloc(1, sizeof *trace->places_bytes);
    trace->view = calloc(1, sizeof *trace->view);
    bool ok = trace->path && trace->places_bytes && trace->view;
    fd_code code = ok ? load(trace, err) : fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", path);
    code = fd_h5_reader_survived(trace->reader, code, err);
    if (code == FD_OK) {
        *err = (fd_error){0};
        *out = trace;
    } else {
        fd_trace_close(trace);
    }
    return code;
}

static fd_code open_file(const char *path, const char *group, size_t memory, fd_trace **out, fd_error *err) {
    fd_h5_reader *reader;
    *out = NULL;
    FD_TRY(fd_h5_reader_open(path, group, "a trace", &reader, err));
    return open_trace(reader, path, memory, out, err);
}

fd_code fd_trace_open_within(const char *path, size_t memory, fd_trace **out, fd_error *err) {
    return open_file(path, NULL, memory, out, err);
}

fd_code fd_trace_open_group(const char *path, const char *group, fd_trace **out, fd_error *err) {
    return open_file(path, group, SIZE_MAX, out, err);
}

fd_code fd_trace_open(const char *path, fd_trace **out, fd_error *err) {
    return open_file(path, NULL, SIZE_MAX, out, err);
}

fd_code fd_trace_open_inside(fd_h5_reader *file, const char *path, const char *group, fd_trace **out, fd_error *err) {
    fd_h5_reader *reader;
    *out = NULL;
    FD_TRY(fd_h5_reader_open_inside(file, group, &reader, err));
    return open_trace(reader, path, SIZE_MAX, out, err);
}

void fd_trace_close(fd_trace *trace) {
    if (!trace) return;
    for (int32_t i = 0; trace->sets && i < trace->n_node; i++) fd_trace_set_forget(&trace->sets[i]);
    fd_h5_reader_close(trace->reader);
    if (trace->view) fd_trace_view_close(trace->view);
    free(trace->view);
    free(trace->places_bytes);
    free(trace->by_name);
    free(trace->path);
    free(trace->info.prompt);
    free(trace->tokens);
    free(trace->steps);
    free(trace->level);
    free(trace->nodes);
    free(trace->sets);
    fd_trace_table_free(trace->fingerprints);
    fd_trace_table_free(trace->stats);
    free(trace->health);
    free(trace->entropy);
    free(trace->sink);
    free(trace);
}
