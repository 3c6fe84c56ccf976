#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dumpers/observe/writer.h"
#include "dumpers/store/weights.h"

static void free_writer(fd_trace_writer *writer) {
    fd_queue_stop(&writer->queue);
    fd_h5_guard guard = fd_h5_begin();
    fd_store_abandon(writer->batch.store);
    fd_h5_end(guard);
    fd_store_step_free(writer->run.step);
    free(writer->run.all_tokens);
    fd_writer_plan_free(&writer->plan);
    free(writer->batch.first);
    free(writer->batch.last);
    free(writer->batch.rows);
    free(writer);
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
    if (fd_writer_plan_make(&writer->plan, options, graph, numerics) && writer->batch.first && writer->batch.last &&
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
                                      .compress_graph = plan->options.compress_graph,
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
    FD_TRY(fd_trace_check_options(options, graph, numerics, err));
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
    fd_h5_guard guard = fd_h5_begin();
    fd_code code = fd_store_finish(writer->batch.store, err);
    fd_h5_end(guard);
    return code;
}

fd_code fd_trace_finish(fd_trace_writer *writer, fd_error *err) {
    fd_code code = finish(writer, err);
    free_writer(writer);
    return code;
}

void fd_trace_abandon(fd_trace_writer *writer) {
    if (writer) free_writer(writer);
}
