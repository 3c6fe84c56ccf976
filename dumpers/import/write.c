/* The trace that a plan makes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/import.h"
#include "dumpers/import/masked.h"
#include "dumpers/store/datasets.h"
#include "dumpers/store/file.h"
#include "model/gguf/quant.h"

enum { BLOCK_BYTES = 1 << 20 }; /* rows gathered for one write */

/* One node's dataset. */
typedef struct target {
    const fd_import_match *matches; /* [n] of one node, by step */
    size_t n;
    uint32_t dtype;
    int32_t first, n_pos;
    int32_t last_rows; /* of each step that many were recorded; 0: all */
    int rank;
    int64_t shape[FD_ARRAY_MAX_RANK]; /* of one position; over_kv: the last is the trace's n_pos */
    int64_t row;                      /* elements of it */
    bool over_kv;
    bool masked; /* scores after their mask */
} target;

/* 16-bit and binary64 elements are kept, unless the map computes with them; integers become the float that holds
 * them. */
static uint32_t dtype_of(const fd_import_plan *plan, const fd_import_match *m) {
    const fd_source_tensor *t = fd_source_at(plan->source, m->tensor);
    const fd_name_map_rule *rule = &plan->map->rules[m->rule];
    bool computes = fd_name_map_computes(rule);
    switch (t->type) {
    case FD_ARRAY_F16: return computes ? FD_F32 : FD_F16;
    case FD_ARRAY_BF16: return computes ? FD_F32 : rule->words == FD_NAME_MAP_WORDS_F16 ? FD_F16 : FD_BF16;
    case FD_ARRAY_U16: return computes ? FD_F32 : rule->words == FD_NAME_MAP_WORDS_F16 ? FD_F16 : FD_BF16;
    case FD_ARRAY_F32:
    case FD_ARRAY_I8:
    case FD_ARRAY_U8:
    case FD_ARRAY_I16:
    case FD_ARRAY_BOOL: return FD_F32;
    case FD_ARRAY_F64:
    case FD_ARRAY_I32:
    case FD_ARRAY_U32:
    case FD_ARRAY_I64:
    case FD_ARRAY_U64:
    case FD_ARRAY_TYPE_COUNT: break;
    }
    return FD_F64;
}

static uint32_t wider(uint32_t a, uint32_t b) {
    return a == b ? a : a == FD_F64 || b == FD_F64 ? FD_F64 : FD_F32;
}

/* How many rows at the end of every step there are, from the first one that has any on: an engine of chunks keeps the last one's
 * logits. 0: rows are missing in another way. */
static int32_t last_rows_of(const fd_import_plan *plan, const target *t, const int32_t *n) {
    int32_t of_part = 0, of_whole = 0;
    for (size_t i = 0; i < t->n; i++) {
        const int32_t step = t->matches[i].step, n_step = plan->steps[step].n_pos;
        if (step != t->matches[0].step + (int32_t)i) return 0;
        if (n[i] == n_step && n_step > of_whole) of_whole = n_step;
        if (n[i] == n_step) continue;
        if (of_part > 0 && n[i] != of_part) return 0;
        of_part = n[i];
    }
    return of_whole <= of_part ? of_part : 0;
}

/* Do rows of the match follow those that end at `end`, with steps between at most of which nothing was recorded? */
static bool follows(const fd_import_plan *plan, int32_t end, const fd_import_match *match, int32_t first) {
    int32_t s = match->step;
    while (first > end && s > 0 && first == plan->steps[s].pos0 && !plan->steps[s - 1].recorded)
        first = plan->steps[--s].pos0;
    return first == end;
}

/* Rows of the steps follow one another, or are the last ones of each. Where others are missing, those before the gap are left out, and
 * compare says that they are missing. */
static void place(const fd_import_plan *plan, target *t, const int32_t *first, const int32_t *n) {
    const fd_trace *trace = fd_source_trace(plan->source);
    int32_t from = 0;
    for (int32_t i = 1; i < (int32_t)t->n; i++)
        if (!follows(plan, first[i - 1] + n[i - 1], &t->matches[i], first[i])) from = i;
    if (from > 0) t->last_rows = last_rows_of(plan, t, n);
    if (trace)
        t->last_rows =
            fd_trace_node_at(trace, (int32_t)fd_source_at(plan->source, t->matches[0].tensor)->file)->last_rows;
    t->first = first[t->last_rows > 0 ? 0 : from];
    t->n_pos = first[t->n - 1] + n[t->n - 1] - t->first;
}

/* Of a row with an axis more than its node has, those of length 1: the tokens' axis of a step of one, wherever it stands. */
static void drop_single(const fd_import_plan *plan, const fd_import_match *m, int *rank, int64_t *shape) {
    const int32_t id = plan->graph ? fd_graph_find(plan->graph, m->node) : -1;
    const int n_dim = id < 0 ? *rank : plan->graph->nodes[id].n_dim;
    int kept = 0;
    for (int k = 0, n_over = *rank - n_dim; k < *rank; k++)
        if (shape[k] != 1 || n_over-- <= 0) shape[kept++] = shape[k];
    *rank = kept;
}

static fd_code measure(const fd_import_plan *plan, target *t, int32_t *first, int32_t *n, fd_error *err) {
    t->over_kv = fd_import_over_kv(t->matches[0].node);
    for (size_t i = 0; i < t->n; i++) {
        fd_import_rows rows;
        FD_TRY(fd_import_rows_open(plan, &t->matches[i], &rows, err));
        first[i] = rows.first;
        n[i] = rows.n;
        fd_import_rows_close(&rows);
        int rank;
        int64_t shape[FD_ARRAY_MAX_RANK];
        const fd_source_tensor *source = fd_source_at(plan->source, t->matches[i].tensor);
        fd_import_row_shape(&t->matches[i], &rank, shape);
        FD_TRY(fd_import_apply(plan, &t->matches[i], &rank, shape, NULL, NULL, err));
        drop_single(plan, &t->matches[i], &rank, shape);
        if (t->over_kv) {
            int64_t n_head = 1;
            for (int k = 0; k + 1 < rank; k++) n_head *= shape[k];
            rank = 2;
            shape[0] = n_head;
            shape[1] = plan->n_token;
        }
        uint32_t dtype = dtype_of(plan, &t->matches[i]);
        char a[128], b[128];
        if (i > 0 && (rank != t->rank || memcmp(shape, t->shape, sizeof *shape * (size_t)rank) != 0))
            return fd_fail(err, FD_ERR_INPUT, "%s: shape %s a position in step %d (\"%s\"), %s before",
                           t->matches[i].node, fd_array_shape_text(rank, shape, a), t->matches[i].step, source->name,
                           fd_array_shape_text(t->rank, t->shape, b));
        t->dtype = i ? wider(t->dtype, dtype) : dtype;
        t->rank = rank;
        memcpy(t->shape, shape, sizeof shape);
    }
    place(plan, t, first, n);
    t->row = 1;
    for (int i = 0; i < t->rank; i++) t->row *= t->shape[i];
    return FD_OK;
}

static void store(uint32_t dtype, double value, void *out, int64_t at) {
    if (dtype == FD_F64)
        ((double *)out)[at] = value;
    else if (dtype == FD_F32)
        ((float *)out)[at] = (float)value;
    else
        ((uint16_t *)out)[at] = dtype == FD_F16 ? fd_f32_to_f16((float)value) : fd_f32_to_bf16((float)value);
}

/* Position pos of the target into `out`; keys beyond the position become padding. */
static fd_code fill_row(const target *t, fd_import_rows *rows, int32_t pos, void *out, fd_error *err) {
    int rank;
    int64_t shape[FD_ARRAY_MAX_RANK];
    const double *data;
    FD_TRY(fd_import_rows_read(rows, pos, &rank, shape, &data, err));
    if (!t->over_kv) {
        for (int64_t i = 0; i < t->row; i++) store(t->dtype, data[i], out, i);
        return FD_OK;
    }
    double hidden = strstr(rows->match->node, "attn_weights") ? 0 : (double)-INFINITY;
    int64_t width = shape[rank - 1], n_kv = t->shape[1];
    bool of_trace = fd_source_at(rows->plan->source, rows->match->tensor)->step < 0;
    int64_t before = of_trace ? 0 : fd_import_keys_before(rows->plan, rows->match, width);
    if (before + width < pos + 1)
        return fd_fail(err, FD_ERR_INPUT, "%s: %lld keys at position %d, expected at least %d", rows->match->node,
                       (long long)width, pos, pos + 1);
    int64_t window = fd_import_first_key(rows->plan, rows->match->node, pos);
    int64_t first = window <= before || t->masked ? before : window;
    for (int64_t h = 0; h < t->shape[0]; h++)
        for (int64_t k = 0; k < n_kv; k++) {
            bool own = k >= first && k <= pos && (k >= window || !fd_score_is_hidden(data[h * width + k - before]));
            store(t->dtype, own ? data[h * width + k - before] : hidden, out, h * n_kv + k);
        }
    return FD_OK;
}

static fd_code write_rows(const fd_import_plan *plan, const target *t, hid_t set, hid_t memory, fd_error *err) {
    size_t row_bytes = (size_t)t->row * fd_element_bytes(t->dtype);
    int32_t at_once = row_bytes >= BLOCK_BYTES || t->last_rows > 0 ? 1 : (int32_t)(BLOCK_BYTES / row_bytes);
    char *block = malloc(row_bytes * (size_t)at_once);
    if (!block)
        return fd_fail(err, FD_ERR_MEMORY, "%s: no memory for a row of %zu bytes", t->matches[0].node, row_bytes);
    fd_code code = FD_OK;
    for (size_t i = 0; code == FD_OK && i < t->n; i++) {
        fd_import_rows rows;
        code = fd_import_rows_open(plan, &t->matches[i], &rows, err);
        int32_t pos = rows.first < t->first ? t->first : rows.first, end = rows.first + rows.n;
        while (code == FD_OK && pos < end) {
            if (!fd_import_rows_has(&rows, pos)) {
                pos++;
                continue;
            }
            int32_t n = end - pos < at_once ? end - pos : at_once;
            for (int32_t k = 0; code == FD_OK && k < n; k++)
                code = fill_row(t, &rows, pos + k, block + (size_t)k * row_bytes, err);
            hsize_t start[FD_H5_MAX_RANK] = {(hsize_t)(pos - t->first)}, count[FD_H5_MAX_RANK] = {(hsize_t)n};
            for (int k = 0; k < t->rank; k++) count[1 + k] = (hsize_t)t->shape[k];
            if (code == FD_OK && !fd_h5_write_block(set, memory, 1 + t->rank, start, count, block))
                code = fd_h5_fail(err, FD_ERR_IO, "%s: cannot be written", t->matches[0].node);
            pos += n;
        }
        fd_import_rows_close(&rows);
    }
    free(block);
    return code;
}

static fd_code write_target(const fd_import_plan *plan, target *t, hid_t group, fd_error *err) {
    const char *node = t->matches[0].node;
    int32_t *rows = malloc(2 * sizeof *rows * t->n);
    fd_code code = rows ? measure(plan, t, rows, rows + t->n, err)
                        : fd_fail(err, FD_ERR_MEMORY, "%s: import: out of memory", node);
    free(rows);
    if (code == FD_OK && t->over_kv) code = fd_import_find_mask(plan, t->matches, t->n, &t->masked, err);
    if (code != FD_OK) return code;
    hid_t stored = fd_stored_type(t->dtype), memory = fd_memory_type(t->dtype);
    hsize_t dim[FD_H5_MAX_RANK] = {(hsize_t)t->n_pos};
    for (int i = 0; i < t->rank; i++) dim[1 + i] = (hsize_t)t->shape[i];
    double unrecorded;
    store(t->dtype, NAN, &unrecorded, 0);
    hid_t space = H5Screate_simple(1 + t->rank, dim, NULL), set = -1, how = H5Pcreate(H5P_DATASET_CREATE);
    if (space >= 0 && H5Pset_fill_value(how, memory, &unrecorded) >= 0)
        set = H5Dcreate2(group, node, stored, space, H5P_DEFAULT, how, H5P_DEFAULT);
    char from[256];
    snprintf(from, sizeof from, "%.240s", fd_source_at(plan->source, t->matches[0].tensor)->name);
    int32_t layer = fd_layer_of_name(node), seq = plan->graph ? fd_graph_find(plan->graph, node) : -1;
    bool ok = set >= 0 && fd_h5_put_string(set, "dtype", fd_dtype_get(t->dtype)->name) &&
              fd_h5_put_string(set, "source", from) && (layer < 0 || fd_h5_put_int(set, "layer", layer)) &&
              (seq < 0 || fd_h5_put_int(set, "seq", seq)) &&
              (t->n_pos == plan->n_token || fd_h5_put_int(set, "first_position", t->first)) &&
              (t->last_rows == 0 || fd_h5_put_int(set, "last_rows", t->last_rows)) &&
              (!t->over_kv || fd_h5_put_int(set, "over_kv", 1));
    code = ok ? write_rows(plan, t, set, memory, err) : fd_h5_fail(err, FD_ERR_IO, "%s: cannot be created", node);
    fd_h5_release(set);
    fd_h5_release(how);
    fd_h5_release(space);
    return code;
}

static fd_code write_tensors(const fd_import_plan *plan, hid_t file, fd_error *err) {
    hid_t group = H5Gcreate2(file, "tensors", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    if (group < 0) return fd_h5_fail(err, FD_ERR_IO, "tensors: cannot be created");
    fd_code code = FD_OK;
    for (size_t i = 0, end; code == FD_OK && i < plan->n_match; i = end) {
        for (end = i + 1; end < plan->n_match && strcmp(plan->matches[end].node, plan->matches[i].node) == 0;) end++;
        target t = {.matches = &plan->matches[i], .n = end - i};
        code = write_target(plan, &t, group, err);
    }
    fd_h5_release(group);
    return code;
}

static bool put_steps(const fd_import_plan *plan, hid_t file) {
    fd_step_row *rows = calloc((size_t)plan->n_step + 1, sizeof *rows);
    if (!rows) return false;
    int32_t n = 0;
    for (int32_t s = 0; s < plan->n_step; s++)
        if (plan->steps[s].n_pos > 0)
            rows[n++] = (fd_step_row){plan->steps[s].pos0, plan->steps[s].n_pos, (int32_t)plan->steps[s].kind,
                                      plan->steps[s].recorded ? FD_TRACE_FULL : FD_TRACE_FINGERPRINT};
    hid_t memory = fd_h5_type_make(&fd_step_row_type), packed = H5Tcopy(memory);
    H5Tpack(packed);
    bool ok = fd_trace_put_list(file, "steps", packed, memory, n, rows, false);
    fd_h5_release(packed);
    fd_h5_release(memory);
    free(rows);
    return ok;
}

static fd_code write_file(const fd_import_plan *plan, fd_trace_file *file, fd_error *err) {
    bool ok =
        fd_import_put_info(plan, file->id) &&
        fd_trace_put_list(file->id, "tokens", H5T_STD_I32LE, H5T_NATIVE_INT32, plan->n_token, plan->tokens, false) &&
        put_steps(plan, file->id);
    if (!ok) return fd_h5_target_fail(&file->target, err, "%s: cannot be written", file->path);
    FD_TRY(write_tensors(plan, file->id, err));
    return fd_import_write_weights(plan, file->id, err);
}

fd_code fd_import_write(const fd_import_plan *plan, const char *path, fd_error *err) {
    fd_trace_file *file;
    FD_TRY(fd_trace_file_create(path, &file, err));
    fd_h5_guard guard = fd_h5_begin();
    fd_code code = write_file(plan, file, err);
    fd_h5_end(guard);
    if (code == FD_OK) return fd_trace_file_finish(file, err);
    fd_trace_file_abandon(file);
    return code;
}
