/* A forward call: its buffers, what it adds to the small tables, and the flushes that make it count. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/disk_room.h"
#include "dumpers/health.h"
#include "dumpers/trace_writer.h"

_Static_assert(sizeof(fd_trace_stats) == FD_N_STATS * sizeof(double), "a row of /stats is fd_trace_stats");
_Static_assert(sizeof(fd_fingerprint) == 2 * sizeof(uint64_t), "a row of /fingerprints is fd_fingerprint");

/* Bytes the step may add to the file: the chunks its rows touch for the first time, and room for HDF5's index of
 * them. */
static int64_t step_bytes(const fd_trace_writer *writer) {
    const fd_graph *graph = writer->graph;
    hsize_t n_node = (hsize_t)graph->n_node, first = (hsize_t)writer->pos0, end = first + (hsize_t)writer->n_tok;
    size_t element = fd_trace_stored_bytes(writer);
    hsize_t heads = (hsize_t)graph->hparams.n_layer * (hsize_t)graph->hparams.n_head;
    hsize_t row = n_node * sizeof(fd_fingerprint) + sizeof(fd_trace_health) + heads * 8 + 64;
    if (writer->stats >= 0) row += n_node * sizeof(fd_trace_stats);
    hsize_t sum = row * (end - first) + 16 * 32768 + 65536;
    for (int32_t i = 0; i < graph->n_node && writer->level == FD_TRACE_FULL; i++) {
        if (writer->tensor[i] < 0) continue;
        const fd_node *node = &graph->nodes[i];
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

static void *resize(void *old, size_t n, size_t size, bool *ok) {
    void *bigger = *ok ? realloc(old, n * size) : NULL;
    if (!bigger) *ok = false;
    return bigger ? bigger : old;
}

static bool make_buffers(fd_trace_writer *writer) {
    const fd_hparams *h = &writer->graph->hparams;
    size_t n_tok = (size_t)writer->n_tok, n = n_tok * (size_t)writer->graph->n_node;
    size_t heads = n_tok * (size_t)h->n_layer * (size_t)h->n_head;
    bool ok = true;
    writer->all_tokens = resize(writer->all_tokens, (size_t)writer->n_pos + n_tok, sizeof(int32_t), &ok);
    writer->step_fingerprints = resize(writer->step_fingerprints, n, sizeof(fd_fingerprint), &ok);
    writer->step_health = resize(writer->step_health, n_tok, sizeof(fd_trace_health), &ok);
    if (writer->stats >= 0) writer->step_stats = resize(writer->step_stats, n, sizeof(fd_trace_stats), &ok);
    if (writer->health[FD_HEALTH_ENTROPY] >= 0) {
        writer->step_entropy = resize(writer->step_entropy, heads, sizeof(float), &ok);
        writer->step_sink = resize(writer->step_sink, heads, sizeof(float), &ok);
    }
    if (!ok) return false;
    memset(writer->step_fingerprints, 0, n * sizeof(fd_fingerprint));
    double *stats = (double *)writer->step_stats;
    for (size_t i = 0; stats && i < n * FD_N_STATS; i++) stats[i] = NAN;
    for (size_t i = 0; writer->step_entropy && i < heads; i++) writer->step_entropy[i] = writer->step_sink[i] = NAN;
    return true;
}

static fd_code check_step(fd_trace_writer *writer, int32_t n_tok, int32_t pos0, fd_error *err) {
    if (writer->failure.code != FD_OK) {
        *err = writer->failure;
        return err->code;
    }
    if (writer->in_step) return fd_fail(err, FD_ERR_INPUT, "%s: step %d was not ended", writer->path, writer->n_step);
    if (n_tok < 1) return fd_fail(err, FD_ERR_INPUT, "%s: a step of %d tokens, expected 1", writer->path, n_tok);
    if (pos0 != writer->n_pos || n_tok > INT32_MAX - pos0)
        return fd_fail(err, FD_ERR_INPUT, "%s: a step at position %d, expected %d", writer->path, pos0, writer->n_pos);
    return FD_OK;
}

fd_code fd_trace_begin_step(fd_trace_writer *writer, fd_step_kind kind, const int32_t *tokens, int32_t n_tok,
                            int32_t pos0, fd_error *err) {
    FD_TRY(check_step(writer, n_tok, pos0, err));
    const fd_trace_options *options = &writer->options;
    bool traced = writer->n_step >= options->step_first && writer->n_step <= options->step_last;
    writer->kind = kind;
    writer->level = traced ? options->level : FD_TRACE_FINGERPRINT;
    writer->pos0 = pos0;
    writer->n_tok = n_tok;
    if (!make_buffers(writer)) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", writer->path);
    if (fd_disk_room(writer->target.fd, writer->path, step_bytes(writer), err) != FD_OK)
        return fd_trace_latch(writer, err);
    memcpy(writer->all_tokens + pos0, tokens, (size_t)n_tok * sizeof *tokens);
    for (int32_t i = 0; i < n_tok; i++) {
        fd_health_clear(&writer->step_health[i]);
        writer->step_health[i].n_kv = pos0 + i + 1;
        writer->step_health[i].loop_length = fd_health_loop(writer->all_tokens, pos0 + i + 1);
    }
    writer->in_step = true;
    return FD_OK;
}

/* Appends the step's rows [n_tok, …the dataset's other dimensions]. */
static bool append(const fd_trace_writer *writer, hid_t set, hid_t type, const void *rows) {
    fd_h5_shape shape;
    if (set < 0) return true;
    if (!fd_h5_shape_of(set, &shape)) return false;
    hsize_t start[FD_H5_MAX_RANK] = {(hsize_t)writer->pos0}, count[FD_H5_MAX_RANK];
    memcpy(count, shape.dim, sizeof count);
    count[0] = (hsize_t)writer->n_tok;
    shape.dim[0] = start[0] + count[0];
    return H5Dset_extent(set, shape.dim) >= 0 && fd_h5_write_block(set, type, shape.rank, start, count, rows);
}

static bool append_health(const fd_trace_writer *writer) {
    int32_t *column = malloc((size_t)writer->n_tok * FD_TOP_K * sizeof *column);
    bool ok = column != NULL;
    for (int c = 0; ok && c < FD_HEALTH_COUNT; c++) {
        const fd_health_info *info = &fd_health_columns[c];
        hid_t type = info->is_int ? H5T_NATIVE_INT32 : H5T_NATIVE_FLOAT;
        const void *rows = c == FD_HEALTH_ENTROPY ? writer->step_entropy : writer->step_sink;
        if (info->n_extra < 2) {
            size_t width = info->n_extra == 1 ? FD_TOP_K : 1;
            for (int32_t i = 0; i < writer->n_tok; i++)
                memcpy(column + (size_t)i * width, (const char *)&writer->step_health[i] + info->offset, width * 4);
            rows = column;
        }
        ok = append(writer, writer->health[c], type, rows);
    }
    free(column);
    return ok;
}

/* The row in /steps is what makes a step count: it follows in a flush of its own, when all else is on disk. */
static bool append_step(const fd_trace_writer *writer) {
    hsize_t start = (hsize_t)writer->n_step, count = 1, extent = start + 1;
    fd_step_row row = {writer->pos0, writer->n_tok, (int32_t)writer->kind, (int32_t)writer->level};
    hid_t type = fd_step_row_type();
    bool ok =
        H5Dset_extent(writer->steps, &extent) >= 0 && fd_h5_write_block(writer->steps, type, 1, &start, &count, &row);
    fd_h5_release(type);
    return ok;
}

fd_code fd_trace_end_step(fd_trace_writer *writer, fd_error *err) {
    if (writer->failure.code != FD_OK) {
        *err = writer->failure;
        return err->code;
    }
    if (!writer->in_step) return fd_fail(err, FD_ERR_INPUT, "%s: no step to end", writer->path);
    fd_h5_guard guard = fd_h5_begin();
    bool ok = writer->target.error == 0 &&
              append(writer, writer->tokens, H5T_NATIVE_INT32, writer->all_tokens + writer->pos0) &&
              append(writer, writer->fingerprints, H5T_NATIVE_UINT64, writer->step_fingerprints) &&
              append(writer, writer->stats, H5T_NATIVE_DOUBLE, writer->step_stats) && append_health(writer) &&
              H5Fflush(writer->file, H5F_SCOPE_LOCAL) >= 0 && writer->target.error == 0 && append_step(writer) &&
              H5Fflush(writer->file, H5F_SCOPE_LOCAL) >= 0 && writer->target.error == 0;
    if (ok) {
        writer->n_pos += writer->n_tok;
        writer->n_step++;
    } else {
        fd_h5_target_fail(&writer->target, err, "%s: cannot write step %d", writer->path, writer->n_step);
        fd_trace_latch(writer, err);
    }
    writer->in_step = false;
    fd_h5_end(guard);
    return writer->failure.code;
}
