/* What was gathered of a step, on its way to the file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "dumpers/client/tracer.h"

/* Steps on their way to the file: as many as a killed program loses besides the one that goes on. */
enum { MOST_STEPS = 8 };

/* Rows of one step, or a weight. */
typedef struct part {
    fd_weight_rows weight; /* hashes NULL: none, and what follows is a step's; owned */
    int64_t pos0, n_tok;
    int32_t *tokens; /* owned, [n_tok] */
    bool ends;       /* the step is whole with it */
    int32_t n_set;
    fd_tracer_set sets[]; /* [n_set] all that there are so far; those with rows own them */
} part;

static void free_part(part *p) {
    for (int32_t i = 0; i < p->n_set; i++) fd_tracer_drop_rows(&p->sets[i]);
    fd_weight_rows_free(&p->weight);
    free(p->tokens);
    free(p);
}

/* ---- a part into the store ---- */

static fd_code add_tensor(fd_store *store, const fd_tracer_set *set, fd_error *err) {
    fd_graph_row row = {.seq = store->n_tensor,
                        .layer = fd_layer_of_name(set->name),
                        .n_dim = set->form.n_dim,
                        .over_kv = set->form.over_kv};
    strcpy(row.name, set->name);
    memcpy(row.shape, set->form.shape, sizeof row.shape);
    snprintf(row.dtype, sizeof row.dtype, "%s", fd_dtype_get(set->form.dtype)->name);
    return fd_store_add(store, &row, set->form.dtype, true, err);
}

/* New tensors, and room for all rows: on the disk, and for their fingerprints. */
static fd_code make_room(fd_tracer_output *out, const part *p, fd_error *err) {
    fd_store *store = out->store;
    int64_t bytes = 0;
    for (int32_t i = store->n_tensor; i < p->n_set; i++) FD_TRY(add_tensor(store, &p->sets[i], err));
    fd_fingerprint **prints = realloc(out->prints, ((size_t)p->n_set + 1) * sizeof *prints);
    if (!prints) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", store->file->path);
    out->prints = prints;
    while (out->n_print < p->n_set) prints[out->n_print++] = NULL;
    for (int32_t i = 0; i < p->n_set; i++) {
        if (!p->sets[i].rows) continue;
        if (!prints[i] && !(prints[i] = calloc((size_t)p->n_tok, sizeof **prints)))
            return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", store->file->path);
        bytes += fd_form_bytes(&p->sets[i].form, false, store->tensors[i].extent == 0, p->pos0, p->pos0 + p->n_tok);
    }
    return fd_store_room(store, bytes, err);
}

/* Runs of rows that are held; at most n_tok of them. */
static size_t list_rows(const part *p, const fd_tracer_set *set, fd_store_rows *out) {
    int64_t n_key = p->pos0 + p->n_tok;
    size_t stride = fd_tracer_row_bytes(set, n_key), n = 0;
    for (int64_t r = 0, end; r < p->n_tok; r = end + 1) {
        for (end = r; end < p->n_tok && set->held[end];) end++;
        if (end > r)
            out[n++] = (fd_store_rows){set->rows + (size_t)r * stride, stride, (int32_t)(p->pos0 + r),
                                       (int32_t)(end - r), (int32_t)n_key};
    }
    return n;
}

static void note_prints(const part *p, const fd_tracer_set *set, fd_fingerprint *prints) {
    int64_t n_key = p->pos0 + p->n_tok;
    size_t stride = fd_tracer_row_bytes(set, n_key);
    for (int64_t r = 0; r < p->n_tok; r++)
        if (set->held[r]) prints[r] = fd_tracer_print(set, set->rows + (size_t)r * stride, p->pos0 + r + 1, n_key);
}

/* Each tensor's memory goes back as soon as it is written: the calls gather the next step in it. */
static fd_code write_rows(fd_tracer_output *out, part *p, fd_error *err) {
    fd_store *store = out->store;
    int32_t end = (int32_t)(p->pos0 + p->n_tok);
    const char *name = "";
    fd_store_rows *rows = malloc((size_t)p->n_tok * sizeof *rows);
    bool ok = rows != NULL;
    for (int32_t i = 0; ok && i < p->n_set; i++) {
        fd_tracer_set *set = &p->sets[i];
        if (!set->rows) continue;
        name = set->name;
        note_prints(p, set, out->prints[i]);
        ok = fd_store_extend(store, &store->tensors[i], end) &&
             fd_store_put(store, &store->tensors[i], rows, list_rows(p, set, rows)) && fd_store_finish_writes(store);
        if (ok) fd_tracer_drop_rows(set);
    }
    ok = ok && (!p->ends || fd_store_put_fill(store, end));
    ok = fd_store_finish_writes(store) && ok;
    free(rows);
    if (ok) return FD_OK;
    return fd_h5_target_fail(&store->file->target, err, "%s: tensor %s: cannot be written", store->file->path, name);
}

static fd_code commit_step(fd_tracer_output *out, part *p, fd_error *err) {
    fd_store *store = out->store;
    size_t n = (size_t)store->n_tensor, n_tok = (size_t)p->n_tok;
    bool decode = p->n_tok == 1 && p->pos0 > 0;
    fd_store_step step = {.kind = decode ? FD_STEP_DECODE : FD_STEP_PREFILL,
                          .level = FD_TRACE_FULL,
                          .pos0 = (int32_t)p->pos0,
                          .n_tok = (int32_t)p->n_tok,
                          .tokens = p->tokens};
    size_t rows = n_tok + (store->growing ? (size_t)p->pos0 : 0); /* a new table has the old rows again */
    FD_TRY(fd_store_room(store, (int64_t)(rows * n * sizeof(fd_fingerprint) + n_tok * 4) + (1 << 18), err));
    step.fingerprints = calloc(n_tok * n + 1, sizeof *step.fingerprints);
    if (!step.fingerprints) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", store->file->path);
    for (size_t i = 0; i < n; i++)
        for (size_t r = 0; r < n_tok && out->prints[i]; r++) step.fingerprints[r * n + i] = out->prints[i][r];
    fd_code code = fd_store_append_tables(store, &step, err);
    if (code == FD_OK) code = fd_store_append_steps(store, &step, err);
    if (code == FD_OK) code = fd_store_publish(store, err);
    free(step.fingerprints);
    return code;
}

static void drop_prints(fd_tracer_output *out) {
    for (int32_t i = 0; i < out->n_print; i++) free(out->prints[i]);
    free(out->prints);
    out->prints = NULL;
    out->n_print = 0;
}

static fd_code write_weight(fd_tracer_output *out, const fd_weight_rows *rows, fd_error *err) {
    FD_TRY(fd_store_room(out->store, rows->n_hash * (int64_t)sizeof *rows->hashes + (1 << 16), err));
    return fd_store_add_weight(out->store, rows, err);
}

static fd_code write_part(fd_tracer_output *out, part *p, fd_error *err) {
    if (p->weight.hashes) return write_weight(out, &p->weight, err);
    FD_TRY(make_room(out, p, err));
    FD_TRY(write_rows(out, p, err));
    if (!p->ends) return FD_OK;
    FD_TRY(commit_step(out, p, err));
    drop_prints(out);
    return FD_OK;
}

/* Weights may have come after the last step. */
static fd_code complete(fd_tracer_output *out, fd_error *err) {
    FD_TRY(fd_store_publish(out->store, err));
    return fd_store_finish(out->store, err);
}

/* fd_queue_work.write: a step is committed with its last part. No part: the trace is complete. */
static fd_code write_parts(void *user, fd_queue_item *first, bool dropped, fd_error *err) {
    fd_tracer *tracer = user;
    fd_code code = FD_OK;
    fd_tracer_host host;
    fd_tracer_enter(&host, true);
    fesetenv(FE_DFL_ENV);
    for (fd_queue_item *item = first; item; item = item->next) {
        part *p;
        memcpy(&p, item->data, sizeof p);
        if (!dropped && code == FD_OK) code = p ? write_part(&tracer->output, p, err) : complete(&tracer->output, err);
        if (p) free_part(p);
    }
    fd_tracer_leave(&host);
    if (code != FD_OK) fd_tracer_note_failure(tracer, err);
    return code;
}

/* ---- handing over ---- */

size_t fd_tracer_most_held(const fd_tracer *tracer) {
    enum { DEFAULT_MEMORY = 1 << 30 };
    size_t memory = tracer->options.memory ? tracer->options.memory : DEFAULT_MEMORY;
    return tracer->options.synchronous ? memory : memory / 2; /* the other half is for what is on its way */
}

/* The part is the queue's from here on. */
static fd_code put_part(fd_tracer *tracer, part *p, size_t bytes, fd_error *err) {
    fd_queue_item *item = fd_queue_take(&tracer->queue, sizeof p);
    memcpy(item->data, &p, sizeof p);
    item->outside = bytes;
    item->at_once = true;
    item->ends_step = p && p->ends;
    fd_queue_put(&tracer->queue, item);
    return fd_queue_failed(&tracer->queue, err);
}

fd_code fd_tracer_hand_over(fd_tracer *tracer, bool ends, fd_error *err) {
    fd_tracer_gathered *step = &tracer->step;
    size_t n = (size_t)step->n_set, tokens = (size_t)step->n_tok * sizeof(int32_t);
    part *p = malloc(sizeof *p + n * sizeof *p->sets);
    if (p) *p = (part){.pos0 = step->pos0, .n_tok = step->n_tok, .ends = ends};
    if (!p || !(p->tokens = malloc(tokens))) {
        free(p);
        return fd_fail(err, FD_ERR_MEMORY, "a step of %d tensors: out of memory", (int)n);
    }
    memcpy(p->tokens, step->tokens, tokens);
    p->n_set = step->n_set;
    for (size_t i = 0; i < n; i++) {
        p->sets[i] = step->sets[i];
        step->sets[i].rows = NULL;
        step->sets[i].held = NULL;
    }
    size_t bytes = step->bytes;
    step->bytes = 0;
    return put_part(tracer, p, bytes, err);
}

fd_code fd_tracer_hand_over_weight(fd_tracer *tracer, const fd_weight_rows *rows, fd_error *err) {
    fd_weight_rows own = *rows;
    part *p = malloc(sizeof *p);
    if (!p) {
        fd_weight_rows_free(&own);
        return fd_fail(err, FD_ERR_MEMORY, "weight %s: out of memory", own.name);
    }
    *p = (part){.weight = own};
    return put_part(tracer, p, sizeof *p + (size_t)own.n_hash * sizeof *own.hashes, err);
}

fd_code fd_tracer_complete(fd_tracer *tracer, fd_error *err) {
    FD_TRY(put_part(tracer, NULL, 0, err));
    fd_queue_drain(&tracer->queue);
    return fd_queue_failed(&tracer->queue, err);
}

void fd_tracer_stop_writing(fd_tracer *tracer) {
    fd_queue_stop(&tracer->queue);
}

/* ---- the file ---- */

static void fill_info(const fd_tracer_options *o, const char *model_hash, fd_trace_info *info) {
    const char *model = o->model_file ? strrchr(o->model_file, '/') : NULL;
    if (o->model_file) snprintf(info->model_name, sizeof info->model_name, "%s", model ? model + 1 : o->model_file);
    snprintf(info->producer, sizeof info->producer, "%s", o->engine ? o->engine : "");
    snprintf(info->numerics, sizeof info->numerics, "%s", o->numerics ? o->numerics : "");
    snprintf(info->kv_type, sizeof info->kv_type, "%s", o->kv_type ? o->kv_type : "");
    snprintf(info->device, sizeof info->device, "%s", o->device ? o->device : "");
    snprintf(info->model_hash, sizeof info->model_hash, "%s", model_hash);
    info->prompt = (char *)(uintptr_t)o->prompt; /* borrowed */
}

static fd_code check_not_model(const fd_tracer *tracer, fd_error *err) {
    const char *model_file = tracer->options.model_file;
    struct stat there, model;
    if (!model_file || stat(tracer->path, &there) != 0 || stat(model_file, &model) != 0 ||
        model.st_dev != there.st_dev || model.st_ino != there.st_ino)
        return FD_OK;
    return fd_fail(err, FD_ERR_INPUT, "%s: is the model, expected another file to write", tracer->path);
}

/* The file is at its path at once, without a tensor: the first step brings them. */
static fd_code create_store(fd_tracer *tracer, const fd_trace_info *info, fd_error *err) {
    const fd_store_options options = {.path = tracer->path, .level = FD_TRACE_FULL};
    fd_store **store = &tracer->output.store;
    fd_trace_file *file;
    FD_TRY(fd_trace_file_create_exclusive(tracer->path, &file, err));
    fd_code code = fd_store_create(&options, info, file, true, &tracer->queue, store, err);
    if (!*store) fd_trace_file_abandon(file);
    return code == FD_OK ? fd_store_publish(*store, err) : code;
}

fd_code fd_tracer_create(fd_tracer *tracer, fd_error *err) {
    const fd_queue_options options = {.outside = fd_tracer_most_held(tracer),
                                      .max_steps = MOST_STEPS,
                                      .one_thread = tracer->options.synchronous != 0};
    const fd_queue_work work = {.write = write_parts, .user = tracer};
    fd_trace_info info = {0};
    char model_hash[48] = "";
    FD_TRY(check_not_model(tracer, err));
    if (tracer->options.model_file) FD_TRY(fd_tracer_hash_file(tracer->options.model_file, model_hash, err));
    fill_info(&tracer->options, model_hash, &info);
    FD_TRY(create_store(tracer, &info, err));
    return fd_queue_start(&tracer->queue, &options, &work)
               ? FD_OK
               : fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", tracer->path);
}

void fd_tracer_close_file(fd_tracer *tracer) {
    fd_tracer_host host;
    fd_tracer_enter(&host, true);
    fd_store_abandon(tracer->output.store);
    fd_tracer_leave(&host);
    tracer->output.store = NULL;
    drop_prints(&tracer->output);
}
