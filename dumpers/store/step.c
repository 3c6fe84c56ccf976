/* A forward call: its buffers, and whether the disk has room for it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/hdf5/disk_room.h"
#include "dumpers/observe/health.h"
#include "dumpers/store/writer.h"

_Static_assert(sizeof(fd_trace_stats) == FD_N_STATS * sizeof(double), "a row of /stats is fd_trace_stats");
_Static_assert(sizeof(fd_fingerprint) == 2 * sizeof(uint64_t), "a row of /fingerprints is fd_fingerprint");

/* Bytes the step may add to the file: the chunks its rows touch for the first time, and room for HDF5's index of
 * them. */
static int64_t bytes_of(const fd_trace_writer *writer, const fd_trace_pending *step) {
    const fd_graph *graph = writer->graph;
    hsize_t n_node = (hsize_t)graph->n_node, first = (hsize_t)step->pos0, end = first + (hsize_t)step->n_tok;
    size_t element = fd_trace_stored_bytes(writer);
    hsize_t heads = (hsize_t)graph->hparams.n_layer * (hsize_t)graph->hparams.n_head;
    hsize_t row = n_node * sizeof(fd_fingerprint) + sizeof(fd_trace_health) + heads * 8 + 64;
    if (writer->stats >= 0) row += n_node * sizeof(fd_trace_stats);
    hsize_t sum = row * (end - first) + 16 * 32768 + 65536;
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        if (!fd_trace_stores(writer, node, step->level)) continue;
        hsize_t chunk[3] = {1, 1, 1};
        fd_trace_chunk(node, element, writer->options.compress, chunk);
        hsize_t size = chunk[0] * chunk[1] * (node->n_dim > 1 ? chunk[2] : 1) * element;
        hsize_t n = (end + chunk[0] - 1) / chunk[0] - (first + chunk[0] - 1) / chunk[0];
        if (node->over_kv || writer->options.compress) n = (end + chunk[0] - 1) / chunk[0] - first / chunk[0];
        if (node->over_kv) n *= (end + FD_KV_CHUNK - 1) / FD_KV_CHUNK;
        sum += n * (size + 64) + 4096;
    }
    return (int64_t)sum;
}

void fd_trace_pending_free(fd_trace_pending *step) {
    if (!step) return;
    free(step->tokens);
    free(step->fingerprints);
    free(step->stats);
    free(step->health);
    free(step->entropy);
    free(step->sink);
    free(step);
}

/* Buffers in which nothing is recorded yet; NULL: out of memory. */
static fd_trace_pending *new_step(const fd_trace_writer *writer, const int32_t *tokens, int32_t n_tok) {
    const fd_hparams *h = &writer->graph->hparams;
    size_t n = (size_t)n_tok * (size_t)writer->graph->n_node;
    size_t heads = (size_t)n_tok * (size_t)h->n_layer * (size_t)h->n_head;
    bool attention = writer->health[FD_HEALTH_ENTROPY] >= 0;
    fd_trace_pending *step = calloc(1, sizeof *step);
    if (!step) return NULL;
    step->n_tok = n_tok;
    step->tokens = malloc((size_t)n_tok * sizeof *step->tokens);
    step->fingerprints = calloc(n, sizeof *step->fingerprints);
    step->health = malloc((size_t)n_tok * sizeof *step->health);
    if (writer->stats >= 0) step->stats = malloc(n * sizeof *step->stats);
    if (attention) {
        step->entropy = malloc(heads * sizeof *step->entropy);
        step->sink = malloc(heads * sizeof *step->sink);
    }
    if (!step->tokens || !step->fingerprints || !step->health || (writer->stats >= 0 && !step->stats) ||
        (attention && (!step->entropy || !step->sink))) {
        fd_trace_pending_free(step);
        return NULL;
    }
    memcpy(step->tokens, tokens, (size_t)n_tok * sizeof *tokens);
    double *stats = (double *)step->stats;
    for (size_t i = 0; stats && i < n * FD_N_STATS; i++) stats[i] = NAN;
    for (size_t i = 0; attention && i < heads; i++) step->entropy[i] = step->sink[i] = NAN;
    return step;
}

static fd_code check_step(fd_trace_writer *writer, int32_t n_tok, int32_t pos0, fd_error *err) {
    FD_TRY(fd_trace_failed(writer, err));
    if (writer->step) return fd_fail(err, FD_ERR_INPUT, "%s: step %d was not ended", writer->path, writer->n_step);
    if (n_tok < 1) return fd_fail(err, FD_ERR_INPUT, "%s: a step of %d tokens, expected 1", writer->path, n_tok);
    if (pos0 != writer->n_pos || n_tok > INT32_MAX - pos0)
        return fd_fail(err, FD_ERR_INPUT, "%s: a step at position %d, expected %d", writer->path, pos0, writer->n_pos);
    return FD_OK;
}

/* Loops are looked for in all tokens so far. */
static bool note_tokens(fd_trace_writer *writer, const int32_t *tokens, int32_t n_tok) {
    size_t n = (size_t)writer->n_pos + (size_t)n_tok;
    int32_t *all = realloc(writer->all_tokens, n * sizeof *all);
    if (!all) return false;
    memcpy(all + writer->n_pos, tokens, (size_t)n_tok * sizeof *all);
    writer->all_tokens = all;
    return true;
}

fd_code fd_trace_begin_step(fd_trace_writer *writer, fd_step_kind kind, const int32_t *tokens, int32_t n_tok,
                            int32_t pos0, fd_error *err) {
    FD_TRY(check_step(writer, n_tok, pos0, err));
    const fd_trace_options *options = &writer->options;
    bool traced = writer->n_step >= options->step_first && writer->n_step <= options->step_last;
    fd_trace_pending *step = note_tokens(writer, tokens, n_tok) ? new_step(writer, tokens, n_tok) : NULL;
    if (!step) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", writer->path);
    step->kind = kind;
    step->level = traced ? options->level : FD_TRACE_FINGERPRINT;
    step->pos0 = pos0;
    step->bytes = bytes_of(writer, step);
    int64_t bytes = step->bytes + fd_trace_queue_step_bytes(writer);
    if (fd_disk_room(writer->file->target.fd, writer->path, bytes, err) != FD_OK) {
        fd_trace_pending_free(step);
        return fd_trace_latch(writer, err);
    }
    for (int32_t i = 0; i < n_tok; i++) {
        fd_health_clear(&step->health[i]);
        step->health[i].n_kv = pos0 + i + 1;
        step->health[i].loop_length = fd_health_loop(writer->all_tokens, pos0 + i + 1);
    }
    writer->step = step;
    return FD_OK;
}

fd_code fd_trace_end_step(fd_trace_writer *writer, fd_error *err) {
    FD_TRY(fd_trace_failed(writer, err));
    if (!writer->step) return fd_fail(err, FD_ERR_INPUT, "%s: no step to end", writer->path);
    fd_trace_record *end = fd_trace_queue_take(writer, 0);
    end->step = writer->step;
    end->digested = true;
    writer->n_pos += writer->step->n_tok;
    writer->n_step++;
    writer->step = NULL;
    fd_trace_queue_put(writer, end);
    return fd_trace_failed(writer, err);
}
