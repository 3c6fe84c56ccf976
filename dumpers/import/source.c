#include "dumpers/import/source.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"
#include "dumpers/import/ranks/internal.h"
#include "dumpers/import/raw.h"
#include "dumpers/import/source_internal.h"

fd_code fd_source_add(fd_source *source, const char *name, const fd_source_tensor *tensor, fd_error *err) {
    char base[1120], stripped[1100];
    int32_t step, occurrence, of_rank = -1;
    if (source->by_rank && fd_rank_of_name(name, stripped, sizeof stripped, &of_rank)) {
        if (of_rank >= source->n_rank) source->n_rank = of_rank + 1;
        name = stripped;
    }
    if (!fd_source_split_name(name, base, 1100, &step, &occurrence))
        return fd_fail(err, FD_ERR_INPUT, "%s: tensor \"%.200s\": no name in it, or more than 1000 bytes", source->path,
                       name);
    for (const char *c = base; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            return fd_fail(err, FD_ERR_INPUT, "%s: tensor \"%.200s\": a control character in its name", source->path,
                           name);
    source->says_steps |= step >= 0;
    fd_source_tensor named = *tensor;
    named.name = base;
    if (of_rank > 0 && fd_source_is_tokens(&named)) return FD_OK; /* rank 0's are the run's */
    size_t length = strlen(base);
    if (of_rank >= 0 && !fd_source_is_tokens(&named)) snprintf(base + length, sizeof base - length, ":rank%d", of_rank);
    if (source->n == source->room) {
        size_t room = source->room ? 2 * source->room : 256;
        fd_source_tensor *tensors = realloc(source->tensors, room * sizeof *tensors);
        if (!tensors) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", source->path);
        source->tensors = tensors;
        source->room = room;
    }
    fd_source_tensor *added = &source->tensors[source->n];
    *added = *tensor;
    added->step = tensor->step < 0 ? -1 : step < 0 ? 0 : step;
    added->occurrence = occurrence;
    if (!(added->name = strdup(base))) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", source->path);
    source->n++;
    if (step >= FD_SOURCE_MAX_STEPS)
        return fd_fail(err, FD_ERR_INPUT, "%s: \"%.200s\": step %d, expected below %d", source->path, name, step,
                       FD_SOURCE_MAX_STEPS);
    return FD_OK;
}

/* ---- a trace ---- */

static fd_array_type type_of(uint32_t dtype) {
    return dtype == FD_F64    ? FD_ARRAY_F64
           : dtype == FD_F16  ? FD_ARRAY_F16
           : dtype == FD_BF16 ? FD_ARRAY_BF16
                              : FD_ARRAY_F32;
}

/* The first position that a node of the trace holds; n_pos when it holds none. */
static int32_t first_position(const fd_trace *trace, int32_t node, double *row) {
    fd_error ignored;
    int32_t n_pos = fd_trace_n_pos(trace), pos = 0;
    while (pos < n_pos && fd_trace_read(trace, node, pos, NULL, row, &ignored) != FD_OK) pos++;
    return pos;
}

/* And the position after the last one: an op that an engine leaves out from some step on ends there. */
static int32_t end_position(const fd_trace *trace, int32_t node, double *row) {
    fd_error ignored;
    int32_t end = fd_trace_n_pos(trace);
    while (end > 0 && fd_trace_read(trace, node, end - 1, NULL, row, &ignored) != FD_OK) end--;
    return end;
}

static fd_code add_trace_nodes(fd_source *source, fd_error *err) {
    const fd_trace *trace = source->trace;
    int32_t n_pos = fd_trace_n_pos(trace);
    for (int32_t i = 0; i < fd_trace_n_node(trace); i++) {
        const fd_trace_node *node = fd_trace_node_at(trace, i);
        if (!node->has_data || n_pos == 0) continue;
        fd_source_tensor tensor = {.step = -1,
                                   .type = type_of(node->dtype),
                                   .rank = 1 + node->n_dim,
                                   .over_kv = node->over_kv,
                                   .file = (size_t)i};
        tensor.shape[0] = n_pos;
        for (int k = 0; k < node->n_dim; k++) tensor.shape[1 + k] = node->shape[k];
        if (node->over_kv) tensor.shape[node->n_dim] = n_pos;
        double *row = malloc(sizeof *row * (size_t)fd_trace_elements(node, n_pos - 1));
        if (!row) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", source->path);
        tensor.first = first_position(trace, i, row);
        tensor.shape[0] = end_position(trace, i, row);
        free(row);
        if (tensor.first < n_pos) FD_TRY(fd_source_add(source, node->name, &tensor, err));
    }
    source->n_step = fd_trace_n_step(trace);
    return FD_OK;
}

static bool is_hdf5(const char *path) {
    static const uint8_t magic[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
    uint8_t found[8] = {0};
    uint64_t size;
    fd_error unread;
    int fd;
    if (fd_file_open(path, "a trace", &fd, &size, &unread) != FD_OK) return false; /* said where it is read */
    ssize_t n = read(fd, found, sizeof found);
    close(fd);
    return n == 8 && memcmp(found, magic, 8) == 0;
}

/* ---- all kinds ---- */

static int by_order(const void *a, const void *b) {
    const fd_source_tensor *x = a, *y = b;
    if (x->step != y->step) return x->step < y->step ? -1 : 1;
    int names = strcmp(x->name, y->name);
    return names ? names : (x->occurrence > y->occurrence) - (x->occurrence < y->occurrence);
}

void fd_source_sort(fd_source *source) {
    if (source->n) qsort(source->tensors, source->n, sizeof *source->tensors, by_order);
}

/* In no step, where the others are counted from 1. */
static bool outside_steps(const fd_source_tensor *t) {
    return t->step == 0 && (fd_source_is_tokens(t) || fd_source_is_weight(t->name));
}

enum { MOST_OWN_STEPS = 1 << 16 }; /* above it stand counters that are no run's, and decode's numbers */

/* Numbers the steps from 0 on: as they are numbered, from 0 or 1, where `own`; else without gaps. */
static void number_steps(fd_source *source, bool own) {
    fd_source_tensor *t = source->tensors;
    int32_t said = -1, at = 0;
    for (size_t i = 0; i < source->n; i++) {
        const int32_t number = t[i].step;
        if (number != said && !outside_steps(&t[i])) {
            at = own && (said >= 0 || number > 1) ? at + number - (said < 0 ? 0 : said) : said < 0 ? 0 : at + 1;
            said = number;
        }
        t[i].step = at;
    }
    source->n_step = at + 1;
}

/* Sorts, numbers the steps and counts repeated names. */
static fd_code put_in_order(fd_source *source, fd_error *err) {
    fd_source_tensor *t = source->tensors;
    if (!source->trace && fd_source_numbers_in_front(t, source->n, source->says_steps)) source->says_steps = true;
    if (!source->trace && !source->says_steps) fd_source_steps_of_ends(t, source->n);
    bool own = true; /* an engine's counter of forward calls counts others' too, and decode's are counted anew */
    fd_source_sort(source);
    for (size_t i = 0; i < source->n;) {
        size_t end = i + 1;
        while (end < source->n && t[end].step == t[i].step && strcmp(t[end].name, t[i].name) == 0) {
            if (t[end].occurrence == t[end - 1].occurrence)
                return fd_fail(err, FD_ERR_INPUT, "%s: two tensors are \"%s\" in step %d: write the second as \"%s#2\"",
                               source->path, t[i].name, t[i].step, t[i].name);
            end++;
        }
        own &= t[end - 1].occurrence < FD_SOURCE_BY_INDEX && t[i].step < MOST_OWN_STEPS;
        for (size_t k = i; k < end && t[end - 1].occurrence >= FD_SOURCE_BY_INDEX; k++)
            t[k].occurrence = (int32_t)(k - i + 1);
        for (; i < end; i++) t[i].n_same = t[end - 1].occurrence;
    }
    if (!source->trace) FD_TRY(fd_source_leave_out(source, err));
    if (!source->trace) number_steps(source, own);
    return FD_OK;
}

/* An archive's names stand for themselves; a lone array is named by its file. */
static fd_code add_single(fd_source *source, fd_error *err) {
    const char *slash = strrchr(source->path, '/'), *file = slash ? slash + 1 : source->path;
    char name[1100] = "";
    if (strlen(file) < sizeof name && (fd_ends_with(file, ".npy") || fd_raw_is(file)))
        snprintf(name, sizeof name, "%.*s", (int)(strrchr(file, '.') - file), file);
    return fd_source_add_file(source, source->path, name, err);
}

static fd_code fill(fd_source *source, fd_error *err) {
    struct stat there;
    if (stat(source->path, &there) != 0) return fd_fail(err, FD_ERR_INPUT, "%s: %s", source->path, strerror(errno));
    if (S_ISDIR(there.st_mode)) {
        FD_TRY(fd_source_add_folder(source, source->path, err));
    } else if (is_hdf5(source->path)) {
        FD_TRY(fd_trace_open(source->path, &source->trace, err));
        FD_TRY(add_trace_nodes(source, err));
    } else {
        FD_TRY(add_single(source, err));
    }
    if (source->n == 0) return fd_fail(err, FD_ERR_INPUT, "%s: holds no tensor", source->path);
    return put_in_order(source, err);
}

static fd_code open_source(const char *path, bool by_rank, fd_source **out, fd_error *err) {
    *out = NULL;
    fd_source *source = calloc(1, sizeof *source);
    if (source) source->by_rank = by_rank;
    if (!source || !(source->path = strdup(path))) {
        free(source);
        return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", path);
    }
    size_t end = strlen(source->path);
    while (end > 1 && source->path[end - 1] == '/') source->path[--end] = '\0';
    fd_code code = fill(source, err);
    if (code == FD_OK)
        *out = source;
    else
        fd_source_close(source);
    return code;
}

fd_code fd_source_open(const char *path, fd_source **out, fd_error *err) {
    return open_source(path, false, out, err);
}

fd_code fd_source_open_ranks(const char *path, fd_source **out, fd_error *err) {
    FD_TRY(open_source(path, true, out, err));
    fd_code code = FD_OK;
    if ((*out)->trace || (*out)->n_rank == 0)
        code =
            fd_fail(err, FD_ERR_INPUT,
                    "%s: no name says which rank a tensor is from: folders rank0/, rank1/, …, or names as vLLM's and "
                    "SGLang's dumps have (docs/mapping.md)",
                    path);
    if (code != FD_OK) {
        fd_source_close(*out);
        *out = NULL;
    }
    return code;
}

fd_code fd_source_open_any(const char *path, fd_source **out, bool *of_ranks, fd_error *err) {
    FD_TRY(open_source(path, true, out, err));
    *of_ranks = !(*out)->trace && (*out)->n_rank > 1;
    if (*of_ranks) return FD_OK;
    fd_source_close(*out);
    return fd_source_open(path, out, err);
}

void fd_source_close(fd_source *source) {
    if (!source) return;
    for (size_t i = 0; i < source->n; i++) free(source->tensors[i].name);
    for (size_t i = 0; i < source->n_file; i++) fd_source_file_free(&source->files[i]);
    fd_trace_close(source->trace);
    fd_ranks_free(source->ranks);
    free(source->tensors);
    free(source->files);
    free(source->pickle);
    free(source->tokens_file);
    free(source->path);
    free(source);
}

int64_t fd_source_elements(const fd_source_tensor *t) {
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++) n *= t->shape[i];
    return n;
}

const char *fd_source_left_out(const fd_source *source) {
    return source->left_out[0] ? source->left_out : NULL;
}

const char *fd_source_path(const fd_source *source) {
    return source->path;
}
size_t fd_source_count(const fd_source *source) {
    return source->n;
}
const fd_source_tensor *fd_source_at(const fd_source *source, size_t i) {
    return &source->tensors[i];
}
int32_t fd_source_n_step(const fd_source *source) {
    return source->n_step;
}
const fd_trace *fd_source_trace(const fd_source *source) {
    return source->trace;
}

const char *fd_source_names(const fd_source *source) {
    if (source->trace)
        return fd_trace_get_info(source->trace)->names[0] ? fd_trace_get_info(source->trace)->names : NULL;
    return source->debugger ? "transformers" : NULL;
}
