#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/hdf5/disk_room.h"
#include "dumpers/store/writer.h"

fd_trace_options fd_trace_defaults(const char *path) {
    return (fd_trace_options){.path = path, .level = FD_TRACE_FULL, .layer_last = INT32_MAX, .step_last = INT32_MAX};
}

bool fd_trace_stores(const fd_trace_writer *writer, const fd_node *node, fd_trace_level level) {
    bool below = writer->options.level < FD_TRACE_FULL; /* then `always` named it, for every step */
    return writer->stored_nodes[node->id] && (below || level == FD_TRACE_FULL);
}

size_t fd_trace_stored_bytes(const fd_trace_writer *writer) {
    return writer->stored == FD_F64 ? 8 : writer->stored == FD_F32 ? 4 : 2;
}

static void free_writer(fd_trace_writer *writer) {
    fd_trace_queue_stop(writer);
    fd_trace_chunks_free(writer);
    fd_trace_pending_free(writer->step);
    pthread_mutex_destroy(&writer->queue.lock);
    pthread_cond_destroy(&writer->queue.work);
    pthread_cond_destroy(&writer->queue.records);
    pthread_cond_destroy(&writer->queue.digested);
    pthread_cond_destroy(&writer->queue.room);
    pthread_cond_destroy(&writer->queue.jobs_done);
    if (!writer->options.file) fd_trace_file_abandon(writer->file);
    free(writer->path);
    free(writer->tensors);
    free(writer->selected);
    free(writer->stored_nodes);
    free(writer->tensor);
    free(writer->extent);
    free(writer->first);
    free(writer->last);
    free(writer->all_tokens);
    free(writer);
}

/* No tensor's name has a comma. */
static bool one_matches(const char *globs, const char *name) {
    for (size_t size; *globs; globs += size + (globs[size] == ',')) {
        char glob[256];
        size = strcspn(globs, ",");
        if (size >= sizeof glob) continue; /* check_options has refused it */
        memcpy(glob, globs, size);
        glob[size] = '\0';
        if (fnmatch(glob, name, 0) == 0) return true;
    }
    return false;
}

bool fd_trace_selects(const fd_trace_options *options, const fd_node *node) {
    if (node->layer >= 0 && (node->layer < options->layer_first || node->layer > options->layer_last)) return false;
    return !options->tensors || one_matches(options->tensors, node->name);
}

static fd_code check_globs(const char *path, const char *what, const char *globs, fd_error *err) {
    for (; globs && *globs; globs += strcspn(globs, ",") + (strchr(globs, ',') != NULL))
        if (strcspn(globs, ",") > 255)
            return fd_fail(err, FD_ERR_INPUT, "%s: %s \"%.40s…\": a glob of more than 255 bytes", path, what, globs);
    return FD_OK;
}

static fd_code check_options(const fd_trace_options *options, const fd_graph *graph, fd_numerics numerics,
                             fd_error *err) {
    if (!options->path || !options->path[0]) return fd_fail(err, FD_ERR_INPUT, "trace: no file name");
    if (options->file && (!options->group || !options->group[0]))
        return fd_fail(err, FD_ERR_INPUT, "%s: no name of a group", options->path);
    if (options->level < FD_TRACE_FINGERPRINT || options->level > FD_TRACE_FULL)
        return fd_fail(err, FD_ERR_INPUT, "%s: trace level %d, expected 0 to 2", options->path, (int)options->level);
    bool half = options->store == FD_F16 || options->store == FD_BF16;
    if (!half && options->store != FD_F32)
        return fd_fail(err, FD_ERR_INPUT, "%s: elements stored as type %u, expected F32, F16 or BF16", options->path,
                       options->store);
    if (half && numerics == FD_NUMERICS_F64)
        return fd_fail(err, FD_ERR_INPUT,
                       "%s: binary64 elements stored as %s would be rounded twice: leave --store out", options->path,
                       fd_dtype_get(options->store)->name);
    if (graph->n_node < 1) return fd_fail(err, FD_ERR_INPUT, "%s: the graph has no nodes", options->path);
    FD_TRY(check_globs(options->path, "tensors", options->tensors, err));
    return check_globs(options->path, "always", options->always, err);
}

static fd_trace_writer *new_writer(const fd_trace_options *options, const fd_graph *graph, fd_numerics numerics) {
    fd_trace_writer *writer = calloc(1, sizeof *writer);
    if (!writer) return NULL;
    size_t n_node = (size_t)graph->n_node;
    pthread_mutex_init(&writer->queue.lock, NULL);
    pthread_cond_init(&writer->queue.work, NULL);
    pthread_cond_init(&writer->queue.records, NULL);
    pthread_cond_init(&writer->queue.digested, NULL);
    pthread_cond_init(&writer->queue.room, NULL);
    pthread_cond_init(&writer->queue.jobs_done, NULL);
    writer->options = *options;
    writer->graph = graph;
    writer->dtype = numerics == FD_NUMERICS_F64 ? FD_F64 : FD_F32;
    writer->stored = options->store == FD_F32 ? writer->dtype : options->store;
    writer->logits = fd_graph_find(graph, "logits");
    writer->root = writer->tokens = writer->steps = writer->fingerprints = writer->stats = -1;
    for (int c = 0; c < FD_HEALTH_COUNT; c++) writer->health[c] = -1;
    writer->path = strdup(options->path);
    if (options->tensors) writer->tensors = strdup(options->tensors);
    writer->options.path = writer->path;
    writer->options.tensors = writer->tensors;
    writer->selected = calloc(n_node, sizeof *writer->selected);
    writer->stored_nodes = calloc(n_node, sizeof *writer->stored_nodes);
    writer->tensor = malloc(n_node * sizeof *writer->tensor);
    writer->extent = calloc(n_node, sizeof *writer->extent);
    writer->first = calloc(n_node, sizeof *writer->first);
    writer->last = calloc(n_node, sizeof *writer->last);
    if (!writer->path || (options->tensors && !writer->tensors) || !writer->selected ||
        !writer->stored_nodes || !writer->tensor ||
        !writer->extent || !writer->first || !writer->last) {
        free_writer(writer);
        return NULL;
    }
    for (size_t i = 0; i < n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        writer->selected[i] = fd_trace_selects(options, node);
        writer->stored_nodes[i] = writer->selected[i] && (options->level == FD_TRACE_FULL ||
                                                          (options->always && one_matches(options->always, node->name)));
        writer->tensor[i] = -1;
    }
    return writer;
}

fd_code fd_trace_create(const fd_trace_options *options, const fd_trace_info *info, const fd_graph *graph,
                        fd_numerics numerics, fd_trace_writer **out, fd_error *err) {
    *out = NULL;
    FD_TRY(check_options(options, graph, numerics, err));
    fd_trace_writer *writer = new_writer(options, graph, numerics);
    if (!writer) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", options->path);
    fd_trace_info said = *info;
    if (!said.numerics[0]) strcpy(said.numerics, fd_numerics_name(numerics));
    fd_h5_guard guard = fd_h5_begin();
    fd_code code = fd_trace_create_file(writer, &said, err);
    fd_h5_end(guard);
    if (code == FD_OK && (!fd_trace_chunks_begin(writer) || !fd_trace_queue_start(writer)))
        code = fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", options->path);
    if (code == FD_OK)
        *out = writer;
    else
        fd_trace_abandon(writer);
    return code;
}

fd_observer fd_trace_observer(fd_trace_writer *writer) {
    return (fd_observer){.observe = fd_trace_observe, .wants = fd_trace_wants, .user = writer};
}

static fd_code begin_call(void *user, const fd_batch *batch, fd_error *err) {
    fd_step_kind kind = batch->pos0 == 0 || batch->n_tok > 1 ? FD_STEP_PREFILL : FD_STEP_DECODE;
    return fd_trace_begin_step(user, kind, batch->tokens, batch->n_tok, batch->pos0, err);
}

static fd_code end_call(void *user, fd_error *err) {
    return fd_trace_end_step(user, err);
}

fd_observer fd_trace_run_observer(fd_trace_writer *writer) {
    fd_observer observer = fd_trace_observer(writer);
    observer.begin = begin_call;
    observer.end = end_call;
    return observer;
}

/* ---- the end ---- */

/* True when all of it reached the disk. The file of several traces stays open. */
static bool close_all(fd_trace_writer *writer) {
    bool alone = writer->file && !writer->options.file, ok = true;
    if (alone) {
        ok = fd_trace_file_close(writer->file);
    } else if (writer->root >= 0) {
        for (int32_t i = 0; i < writer->graph->n_node; i++) fd_h5_release(writer->tensor[i]);
        for (int c = 0; c < FD_HEALTH_COUNT; c++) fd_h5_release(writer->health[c]);
        const hid_t ids[] = {writer->tokens, writer->steps, writer->fingerprints, writer->stats, writer->root};
        for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) fd_h5_release(ids[i]);
        ok = writer->file->target.error == 0;
    }
    writer->root = -1;
    return ok;
}

/* Tensors of steps outside the traced range get their rows of fill value, so that row r is position r everywhere. */
static bool even_out(const fd_trace_writer *writer) {
    for (int32_t i = 0; i < writer->graph->n_node; i++) {
        fd_h5_shape shape;
        if (writer->tensor[i] < 0) continue;
        if (!fd_h5_shape_of(writer->tensor[i], &shape)) return false;
        shape.dim[0] = (hsize_t)writer->n_pos;
        if (writer->graph->nodes[i].over_kv) shape.dim[shape.rank - 1] = (hsize_t)writer->n_pos;
        if (H5Dset_extent(writer->tensor[i], shape.dim) < 0) return false;
    }
    return H5Fflush(writer->root, H5F_SCOPE_LOCAL) >= 0 && writer->file->target.error == 0;
}

/* Attributes cannot be written in single-writer mode: a file of its own is opened once more. */
static bool complete(fd_trace_writer *writer) {
    char now[32];
    fd_trace_now(now);
    bool alone = !writer->options.file;
    if (alone && (!close_all(writer) || !fd_trace_file_reopen(writer->file))) return false;
    if (alone) writer->root = writer->file->id;
    return fd_h5_put_string(writer->root, "finished", now) && H5Fflush(writer->root, H5F_SCOPE_LOCAL) >= 0 &&
           fd_h5_put_int(writer->root, "complete", 1) && close_all(writer);
}

fd_code fd_trace_flush(fd_trace_writer *writer, fd_error *err) {
    fd_trace_queue_drain(writer);
    return fd_trace_failed(writer, err);
}

static fd_code end(fd_trace_writer *writer, fd_error *err) {
    FD_TRY(fd_trace_flush(writer, err));
    if (writer->step) return fd_fail(err, FD_ERR_INPUT, "%s: step %d was not ended", writer->path, writer->n_step);
    FD_TRY(fd_disk_room(writer->file->target.fd, writer->path, 1 << 20, err));
    return even_out(writer) ? FD_OK : fd_h5_target_fail(&writer->file->target, err, "%s", writer->path);
}

fd_code fd_trace_finish(fd_trace_writer *writer, fd_error *err) {
    fd_h5_guard guard = fd_h5_begin();
    fd_code code = end(writer, err);
    if (code == FD_OK && !complete(writer))
        code = fd_h5_target_fail(&writer->file->target, err, "%s: cannot complete the trace", writer->path);
    close_all(writer);
    free_writer(writer);
    fd_h5_end(guard);
    return code;
}

void fd_trace_abandon(fd_trace_writer *writer) {
    if (!writer) return;
    fd_h5_guard guard = fd_h5_begin();
    if (writer->queue.ring) fd_trace_queue_drain(writer);
    close_all(writer);
    free_writer(writer);
    fd_h5_end(guard);
}
