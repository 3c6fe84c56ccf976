/* A forward call: its buffers, and whether the disk has room for it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/observe/health.h"
#include "dumpers/observe/writer.h"

_Static_assert(sizeof(fd_trace_stats) == FD_N_STATS * sizeof(double), "a row of /stats is fd_trace_stats");
_Static_assert(sizeof(fd_fingerprint) == 2 * sizeof(uint64_t), "a row of /fingerprints is fd_fingerprint");

/* Bytes the step may add to the file: the chunks its rows touch for the first time, and room for HDF5's index of
 * them. */
static int64_t bytes_of(const fd_trace_writer *writer, const fd_store_step *step) {
    const fd_graph *graph = writer->plan.graph;
    hsize_t n_node = (hsize_t)graph->n_node, first = (hsize_t)step->pos0, end = first + (hsize_t)step->n_tok;
    hsize_t heads = (hsize_t)graph->hparams.n_layer * (hsize_t)graph->hparams.n_head;
    hsize_t row = n_node * sizeof(fd_fingerprint) + sizeof(fd_trace_health) + heads * 8 + 64;
    if (writer->plan.options.level >= FD_TRACE_STATS) row += n_node * sizeof(fd_trace_stats);
    hsize_t sum = row * (end - first) + 16 * 32768 + 65536;
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        if (!fd_trace_stores(writer, node, step->level)) continue;
        fd_tensor_form form = fd_node_form(node, writer->plan.stored);
        sum += (hsize_t)fd_form_bytes(&form, writer->plan.options.compress, false, step->pos0, (int64_t)end);
    }
    return (int64_t)sum;
}

/* Buffers in which nothing is recorded yet; NULL: out of memory. */
static fd_store_step *new_step(const fd_trace_writer *writer, const int32_t *tokens, int32_t n_tok) {
    const fd_hparams *h = &writer->plan.graph->hparams;
    size_t n = (size_t)n_tok * (size_t)writer->plan.graph->n_node;
    size_t heads = (size_t)n_tok * (size_t)h->n_layer * (size_t)h->n_head;
    bool attention = writer->plan.heads, stats = writer->plan.options.level >= FD_TRACE_STATS;
    fd_store_step *step = calloc(1, sizeof *step);
    if (!step) return NULL;
    step->n_tok = n_tok;
    step->tokens = malloc((size_t)n_tok * sizeof *step->tokens);
    step->fingerprints = calloc(n, sizeof *step->fingerprints);
    step->health = malloc((size_t)n_tok * sizeof *step->health);
    if (stats) step->stats = malloc(n * sizeof *step->stats);
    if (attention) {
        step->entropy = malloc(heads * sizeof *step->entropy);
        step->sink = malloc(heads * sizeof *step->sink);
    }
    if (!step->tokens || !step->fingerprints || !step->health || (stats && !step->stats) ||
        (attention && (!step->entropy || !step->sink))) {
        fd_store_step_free(step);
        return NULL;
    }
    memcpy(step->tokens, tokens, (size_t)n_tok * sizeof *tokens);
    double *cells = (double *)step->stats;
    for (size_t i = 0; cells && i < n * FD_N_STATS; i++) cells[i] = NAN;
    for (size_t i = 0; attention && i < heads; i++) step->entropy[i] = step->sink[i] = NAN;
    return step;
}

static fd_code check_step(fd_trace_writer *writer, int32_t n_tok, int32_t pos0, fd_error *err) {
    FD_TRY(fd_queue_failed(&writer->queue, err));
    if (writer->run.step)
        return fd_fail(err, FD_ERR_INPUT, "%s: step %d was not ended", writer->plan.path, writer->run.n_step);
    if (n_tok < 1) return fd_fail(err, FD_ERR_INPUT, "%s: a step of %d tokens, expected 1", writer->plan.path, n_tok);
    if (pos0 != writer->run.n_pos || n_tok > INT32_MAX - pos0)
        return fd_fail(err, FD_ERR_INPUT, "%s: a step at position %d, expected %d", writer->plan.path, pos0,
                       writer->run.n_pos);
    return FD_OK;
}

/* Loops are looked for in all tokens so far. */
static bool note_tokens(fd_trace_writer *writer, const int32_t *tokens, int32_t n_tok) {
    size_t n = (size_t)writer->run.n_pos + (size_t)n_tok;
    int32_t *all = realloc(writer->run.all_tokens, n * sizeof *all);
    if (!all) return false;
    memcpy(all + writer->run.n_pos, tokens, (size_t)n_tok * sizeof *all);
    writer->run.all_tokens = all;
    return true;
}

fd_code fd_trace_begin_step(fd_trace_writer *writer, fd_step_kind kind, const int32_t *tokens, int32_t n_tok,
                            int32_t pos0, fd_error *err) {
    FD_TRY(check_step(writer, n_tok, pos0, err));
    const fd_trace_options *options = &writer->plan.options;
    bool traced = writer->run.n_step >= options->step_first && writer->run.n_step <= options->step_last;
    fd_store_step *step = note_tokens(writer, tokens, n_tok) ? new_step(writer, tokens, n_tok) : NULL;
    if (!step) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", writer->plan.path);
    step->kind = kind;
    step->level = traced ? options->level : FD_TRACE_FINGERPRINT;
    step->pos0 = pos0;
    step->bytes = bytes_of(writer, step);
    int64_t bytes = step->bytes + writer->unwritten;
    if (fd_store_room(writer->batch.store, bytes, err) != FD_OK) {
        fd_store_step_free(step);
        return fd_queue_fail(&writer->queue, err);
    }
    for (int32_t i = 0; i < n_tok; i++) {
        fd_health_clear(&step->health[i]);
        step->health[i].n_kv = pos0 + i + 1;
        step->health[i].loop_length = fd_health_loop(writer->run.all_tokens, pos0 + i + 1);
    }
    writer->run.step = step;
    return FD_OK;
}

fd_code fd_trace_end_step(fd_trace_writer *writer, fd_error *err) {
    FD_TRY(fd_queue_failed(&writer->queue, err));
    if (!writer->run.step) return fd_fail(err, FD_ERR_INPUT, "%s: no step to end", writer->plan.path);
    fd_queue_item *end = fd_queue_take(&writer->queue, sizeof(fd_trace_record));
    *(fd_trace_record *)(void *)end->data = (fd_trace_record){.step = writer->run.step};
    end->prepared = end->at_once = end->ends_step = true;
    writer->run.n_pos += writer->run.step->n_tok;
    writer->run.n_step++;
    writer->unwritten += writer->run.step->bytes;
    writer->run.step = NULL;
    fd_queue_put(&writer->queue, end);
    return fd_queue_failed(&writer->queue, err);
}
