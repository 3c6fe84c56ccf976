#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dumpers/observe/writer.h"
#include "dumpers/store/weights.h"

fd_trace_options fd_trace_defaults(const char *path) {
    return (fd_trace_options){.path = path, .level = FD_TRACE_FULL, .layer_last = INT32_MAX, .step_last = INT32_MAX};
}

bool fd_trace_stores(const fd_trace_writer *writer, const fd_node *node, fd_trace_level level) {
    bool below = writer->plan.options.level < FD_TRACE_FULL; /* then `always` named it, for every step */
    return writer->plan.in_file[node->id] && (below || level == FD_TRACE_FULL);
}

static void free_writer(fd_trace_writer *writer) {
    fd_queue_stop(&writer->queue);
    fd_h5_guard guard = fd_h5_begin();
    fd_store_abandon(writer->batch.store);
    fd_h5_end(guard);
    fd_store_step_free(writer->run.step);
    free(writer->run.all_tokens);
    free(writer->plan.path);
    free(writer->plan.selected);
    free(writer->plan.in_file);
    free(writer->batch.first);
    free(writer->batch.last);
    free(writer->batch.rows);
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

static bool make_plan(fd_writer_plan *plan, const fd_trace_options *options, const fd_graph *graph,
                      fd_numerics numerics) {
    size_t n_node = (size_t)graph->n_node;
    plan->options = *options;
    plan->graph = graph;
    plan->dtype = numerics == FD_NUMERICS_F64 ? FD_F64 : FD_F32;
    plan->stored = options->store == FD_F32 ? plan->dtype : options->store;
    plan->logits = fd_graph_find(graph, "logits");
    plan->heads = graph->hparams.n_layer > 0 && graph->hparams.n_head > 0;
    plan->path = strdup(options->path);
    plan->selected = calloc(n_node, sizeof *plan->selected);
    plan->in_file = calloc(n_node, sizeof *plan->in_file);
    if (!plan->path || !plan->selected || !plan->in_file) return false;
    for (size_t i = 0; i < n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        bool elements =
            options->level == FD_TRACE_FULL || (options->always && one_matches(options->always, node->name));
        plan->selected[i] = fd_trace_selects(options, node);
        plan->in_file[i] = plan->selected[i] && elements;
    }
    plan->options.path = plan->path;
    plan->options.tensors = plan->options.always = NULL; /* looked at, and the caller's */
    return true;
}

/* One helper is enough where the run itself needs the processors. */
static int helpers_of(const fd_trace_options *options) {
    enum { SUITABLE = 4 };
    long quarter = sysconf(_SC_NPROCESSORS_ONLN) / 4;
    if (options->helpers > 0) return options->helpers;
    return quarter < 1 ? 1 : quarter < SUITABLE ? (int)quarter : SUITABLE;
}

static bool start_queue(fd_trace_writer *writer) {
    enum { DEFAULT_MEMORY = 256 << 20, MAX_STEPS = 256 /* under way: each has buffers of its own */ };
    const fd_trace_options *options = &writer->plan.options;
    const fd_queue_work work = {fd_trace_summarise, fd_trace_write_batch, fd_trace_commit_batch, writer};
    const fd_queue_options queue = {.memory = options->memory ? options->memory : DEFAULT_MEMORY,
                                    .n_helper = helpers_of(options),
                                    .max_steps = MAX_STEPS,
                                    .one_thread = options->one_thread};
    return fd_queue_start(&writer->queue, &queue, &work);
}

/* NULL: out of memory. */
static fd_trace_writer *new_writer(const fd_trace_options *options, const fd_graph *graph, fd_numerics numerics) {
    fd_trace_writer *writer = calloc(1, sizeof *writer);
    if (!writer) return NULL;
    size_t n_node = (size_t)graph->n_node;
    writer->batch.first = calloc(n_node, sizeof *writer->batch.first);
    writer->batch.last = calloc(n_node, sizeof *writer->batch.last);
    if (make_plan(&writer->plan, options, graph, numerics) && writer->batch.first && writer->batch.last &&
        start_queue(writer))
        return writer;
    free_writer(writer);
    return NULL;
}

/* ---- the store ---- */

static fd_code write_weights(const fd_trace_writer *writer, fd_error *err) {
    const fd_trace_options *options = &writer->plan.options;
    int32_t most = options->level == FD_TRACE_FINGERPRINT ? FD_FEW_WEIGHT_HASHES : FD_MAX_WEIGHT_HASHES;
    fd_error reason = {0};
    if (!options->weights ||
        fd_trace_write_weights(writer->batch.store->root, writer->plan.graph, options->weights, most, &reason) == FD_OK)
        return FD_OK;
    return fd_store_refuse(writer->batch.store, err, "cannot create the trace");
}

/* Every dataset is made before the first step: nothing is added to a published file. */
static fd_code fill_store(fd_trace_writer *writer, const fd_trace_info *info, fd_trace_file *file, fd_error *err) {
    const fd_writer_plan *plan = &writer->plan;
    const fd_hparams *h = &plan->graph->hparams;
    const fd_store_options options = {.path = plan->path,
                                      .group = plan->options.group,
                                      .level = plan->options.level,
                                      .compress = plan->options.compress,
                                      .health = true,
                                      .n_layer = h->n_layer,
                                      .n_head = h->n_head,
                                      .n_pos = plan->options.n_pos};
    FD_TRY(fd_store_create(&options, info, file, !plan->options.file, &writer->queue, &writer->batch.store, err));
    for (int32_t i = 0; i < plan->graph->n_node; i++) {
        fd_graph_row row;
        fd_graph_row_fill(plan->graph, i, plan->dtype, &row);
        FD_TRY(fd_store_add(writer->batch.store, &row, plan->stored, plan->in_file[i], err));
    }
    FD_TRY(write_weights(writer, err));
    return fd_store_publish(writer->batch.store, err);
}

static fd_code create_store(fd_trace_writer *writer, const fd_trace_info *info, fd_error *err) {
    fd_trace_file *file = writer->plan.options.file;
    if (!file) FD_TRY(fd_trace_file_create(writer->plan.path, &file, err));
    fd_h5_guard guard = fd_h5_begin();
    fd_code code = fill_store(writer, info, file, err);
    fd_h5_end(guard);
    if (!writer->batch.store && !writer->plan.options.file) fd_trace_file_abandon(file);
    return code;
}

fd_code fd_trace_create(const fd_trace_options *options, const fd_trace_info *info, const fd_graph *graph,
                        fd_numerics numerics, fd_trace_writer **out, fd_error *err) {
    *out = NULL;
    FD_TRY(check_options(options, graph, numerics, err));
    fd_trace_writer *writer = new_writer(options, graph, numerics);
    if (!writer) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", options->path);
    fd_trace_info said = *info;
    if (!said.numerics[0]) strcpy(said.numerics, fd_numerics_name(numerics));
    fd_code code = create_store(writer, &said, err);
    if (code == FD_OK)
        *out = writer;
    else
        free_writer(writer);
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

fd_code fd_trace_flush(fd_trace_writer *writer, fd_error *err) {
    fd_queue_drain(&writer->queue);
    return fd_queue_failed(&writer->queue, err);
}

static fd_code finish(fd_trace_writer *writer, fd_error *err) {
    FD_TRY(fd_trace_flush(writer, err));
    if (writer->run.step)
        return fd_fail(err, FD_ERR_INPUT, "%s: step %d was not ended", writer->plan.path, writer->run.n_step);
    return fd_store_finish(writer->batch.store, err);
}

fd_code fd_trace_finish(fd_trace_writer *writer, fd_error *err) {
    fd_h5_guard guard = fd_h5_begin();
    fd_code code = finish(writer, err);
    fd_h5_end(guard);
    free_writer(writer);
    return code;
}

void fd_trace_abandon(fd_trace_writer *writer) {
    if (writer) free_writer(writer);
}
