/* What a node's tensor becomes when it is shown: fingerprints, statistics, health, and its rows in the file.
 *
 * Rows are written while they are shown: an executor shows a node once for the whole batch, so that is one block for
 * each dataset and step, and nothing of the tensor is copied or kept. */
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/health.h"
#include "dumpers/trace_writer.h"
#include "model/quant.h"

/* About two milliseconds of one core's work: below it, waking the others costs more than they save. */
enum { PARALLEL_ELEMENTS = 1 << 20 };

static bool feeds_health(const fd_trace_writer *writer, const fd_node *node) {
    return node->id == writer->logits || (node->op == FD_OP_ATTN_SOFTMAX && writer->step_entropy);
}

/* Health describes the run, not a tensor: what it needs is looked at even where the filters leave it out. */
unsigned fd_trace_wants(void *user, const fd_node *node) {
    const fd_trace_writer *writer = user;
    if (node->id < 0 || node->id >= writer->graph->n_node) return FD_WANT_DATA; /* refused by fd_trace_observe */
    /* Executors take the last node for the logits. */
    bool logits = node->id == writer->logits, last = node->id == writer->graph->n_node - 1;
    unsigned health = !feeds_health(writer, node) ? 0 : logits && !last ? FD_WANT_DATA : FD_WANT_HEALTH;
    if (!writer->selected[node->id]) return health;
    return health | FD_WANT_FINGERPRINT | (writer->level >= FD_TRACE_STATS ? FD_WANT_STATS : 0) |
           (writer->level >= FD_TRACE_FULL ? FD_WANT_DATA : 0);
}

/* What was wanted and came neither as data nor worked out. */
static const char *missing(const fd_observation *o, unsigned wants) {
    if (o->data) return NULL;
    if (wants & FD_WANT_DATA) return "its elements";
    if ((wants & FD_WANT_FINGERPRINT) && !o->fingerprints) return "its fingerprint";
    if ((wants & FD_WANT_STATS) && !o->stats) return "its statistics";
    if ((wants & FD_WANT_HEALTH) && !(o->top || (o->entropy && o->sink))) return "its health";
    return NULL;
}

static fd_code check(const fd_trace_writer *writer, const fd_observation *o, fd_error *err) {
    int32_t id = o->node->id;
    if (!writer->in_step)
        return fd_fail(err, FD_ERR_INPUT, "%s: %s was shown outside a step", writer->path, o->node->name);
    if (id < 0 || id >= writer->graph->n_node || strcmp(writer->graph->nodes[id].name, o->node->name) != 0)
        return fd_fail(err, FD_ERR_INPUT, "%s: node %d is %s, the trace was created for another graph", writer->path,
                       id, o->node->name);
    if (o->pos0 < writer->pos0 || o->n_pos < 1 || o->n_pos > writer->pos0 + writer->n_tok - o->pos0)
        return fd_fail(err, FD_ERR_INPUT, "%s: %s: positions %d to %d, the step has %d to %d", writer->path,
                       o->node->name, o->pos0, o->pos0 + o->n_pos - 1, writer->pos0, writer->pos0 + writer->n_tok - 1);
    if (o->dtype != writer->dtype)
        return fd_fail(err, FD_ERR_INPUT, "%s: %s: element type %u, the trace was created for %s", writer->path,
                       o->node->name, o->dtype, fd_dtype_get(writer->dtype)->name);
    int64_t n = fd_node_row_stride(o->node, o->pos0 + o->n_pos);
    const char *lacks = missing(o, fd_trace_wants((void *)writer, o->node));
    if (lacks) return fd_fail(err, FD_ERR_INPUT, "%s: %s was shown without %s", writer->path, o->node->name, lacks);
    if (o->row_stride < n)
        return fd_fail(err, FD_ERR_INPUT, "%s: %s: rows %lld elements apart, expected at least %lld", writer->path,
                       o->node->name, (long long)o->row_stride, (long long)n);
    return FD_OK;
}

typedef void (*row_fn)(fd_trace_writer *writer, const fd_observation *o, int32_t row);

/* Rows are independent. The CPU executor shows a node from inside its parallel region, where the other threads wait
 * at a barrier and take tasks; elsewhere the rows get a region of their own. */
static void each_row(fd_trace_writer *writer, const fd_observation *o, row_fn fn) {
    bool small = o->n_pos == 1 || o->n_pos * o->row_stride < PARALLEL_ELEMENTS;
    if (small) {
        for (int32_t row = 0; row < o->n_pos; row++) fn(writer, o, row);
    } else if (omp_get_level() > 0) {
        for (int32_t row = 0; row < o->n_pos; row++) {
#pragma omp task default(none) firstprivate(writer, o, fn, row)
            fn(writer, o, row);
        }
#pragma omp taskwait
    } else {
#pragma omp parallel for schedule(static) default(none) firstprivate(writer, o, fn)
        for (int32_t row = 0; row < o->n_pos; row++) fn(writer, o, row);
    }
}

static void summarise_row(fd_trace_writer *writer, const fd_observation *o, int32_t row) {
    size_t first = (size_t)(o->pos0 - writer->pos0 + row) * (size_t)writer->graph->n_node;
    size_t at = first + (size_t)o->node->id;
    writer->step_fingerprints[at] = fd_observation_fingerprint(o, row);
    if (writer->level >= FD_TRACE_STATS) fd_observation_stats(o, row, &writer->step_stats[at]);
}

static const void *row_of(const fd_observation *o, int32_t row) {
    return (const char *)o->data + (size_t)row * (size_t)o->row_stride * (o->dtype == FD_F64 ? 8 : 4);
}

static void attention_row(fd_trace_writer *writer, const fd_observation *o, int32_t row) {
    const fd_hparams *h = &writer->graph->hparams;
    const fd_node *node = o->node;
    size_t at = (size_t)(o->pos0 - writer->pos0 + row);
    size_t slot = (at * (size_t)h->n_layer + (size_t)node->layer) * (size_t)h->n_head;
    size_t n_head = (size_t)node->shape[0];
    if (o->entropy) {
        memcpy(writer->step_entropy + slot, o->entropy + (size_t)row * n_head, n_head * sizeof(float));
        memcpy(writer->step_sink + slot, o->sink + (size_t)row * n_head, n_head * sizeof(float));
        return;
    }
    fd_health_attention(o->dtype, row_of(o, row), node->shape[0], o->pos0 + o->n_pos, o->pos0 + row + 1,
                        writer->step_entropy + slot, writer->step_sink + slot);
}

static void logits_row(fd_trace_writer *writer, const fd_observation *o, int32_t row) {
    fd_top_logits top;
    if (o->top)
        top = o->top[row];
    else
        fd_health_logits(o->dtype, row_of(o, row), o->node->shape[0], &top);
    fd_health_note(&top, &writer->step_health[o->pos0 - writer->pos0 + row]);
}

static void note_health(fd_trace_writer *writer, const fd_observation *o) {
    const fd_hparams *h = &writer->graph->hparams;
    const fd_node *node = o->node;
    if (node->id == writer->logits)
        each_row(writer, o, logits_row);
    else if (node->layer >= 0 && node->layer < h->n_layer && node->shape[0] <= h->n_head)
        each_row(writer, o, attention_row);
}

/* Rounds n elements for the file; NULL when memory is out. */
static const void *rounded(fd_trace_writer *writer, const float *x, size_t n) {
    if (n > writer->n_half) {
        uint16_t *grown = realloc(writer->half, n * sizeof *grown);
        if (!grown) return NULL;
        writer->half = grown;
        writer->n_half = n;
    }
    if (writer->stored == FD_F16)
        for (size_t i = 0; i < n; i++) writer->half[i] = fd_f32_to_f16(x[i]);
    else
        for (size_t i = 0; i < n; i++) writer->half[i] = fd_f32_to_bf16(x[i]);
    return writer->half;
}

/* Writes `count` rows that lie one after the other. */
static bool write_block(fd_trace_writer *writer, hid_t set, int rank, const hsize_t *start, const hsize_t *count,
                        const void *data) {
    if (writer->stored == writer->dtype)
        return fd_h5_write_block(set, writer->dtype == FD_F64 ? H5T_NATIVE_DOUBLE : H5T_NATIVE_FLOAT, rank, start, count,
                                 data);
    size_t n = 1;
    for (int i = 0; i < rank; i++) n *= (size_t)count[i];
    data = rounded(writer, data, n);
    return data && fd_h5_write_block(set, H5T_NATIVE_UINT16, rank, start, count, data);
}

/* Padding along n_kv is written too: it holds what the dataset is filled with (scores -inf, weights 0). */
static bool write_rows(fd_trace_writer *writer, const fd_observation *o) {
    const fd_node *node = o->node;
    hid_t set = writer->tensor[node->id];
    int rank = 1 + node->n_dim;
    hsize_t n_kv = (hsize_t)o->pos0 + (hsize_t)o->n_pos, end = (hsize_t)writer->pos0 + (hsize_t)writer->n_tok;
    hsize_t extent[3] = {end}, start[3] = {(hsize_t)o->pos0}, count[3] = {(hsize_t)o->n_pos};
    for (int i = 0; i < node->n_dim; i++) {
        bool along_kv = node->over_kv && i == node->n_dim - 1;
        extent[1 + i] = along_kv ? end : (hsize_t)node->shape[i];
        count[1 + i] = along_kv ? n_kv : (hsize_t)node->shape[i];
    }
    if (H5Dset_extent(set, extent) < 0) return false;
    if (o->row_stride == fd_node_row_stride(node, (int32_t)n_kv))
        return write_block(writer, set, rank, start, count, o->data);
    const char *data = o->data;
    size_t row_bytes = (size_t)o->row_stride * (o->dtype == FD_F64 ? 8 : 4);
    count[0] = 1;
    for (int32_t row = 0; row < o->n_pos; row++, start[0]++)
        if (!write_block(writer, set, rank, start, count, data + (size_t)row * row_bytes)) return false;
    return true;
}

fd_code fd_trace_observe(void *user, const fd_observation *observation, fd_error *err) {
    fd_trace_writer *writer = user;
    const fd_node *node = observation->node;
    if (writer->failure.code != FD_OK) {
        *err = writer->failure;
        return err->code;
    }
    FD_TRY(check(writer, observation, err));
    if (feeds_health(writer, node)) note_health(writer, observation);
    if (!writer->selected[node->id]) return FD_OK;
    each_row(writer, observation, summarise_row);
    if (writer->level < FD_TRACE_FULL) return FD_OK;
    fd_h5_guard guard = fd_h5_begin();
    if (!write_rows(writer, observation) || writer->target.error != 0) {
        fd_h5_target_fail(&writer->target, err, "%s: cannot write %s at position %d", writer->path, node->name,
                          observation->pos0);
        fd_trace_latch(writer, err);
    }
    fd_h5_end(guard);
    return writer->failure.code;
}
