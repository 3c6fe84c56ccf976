/* Takes what a run shows: copied into the queue, so that the run goes on while it is digested and written. What is too
 * large for the queue is digested and written here, by the thread that shows it, without a copy. */
#include <omp.h>
#include <string.h>

#include "dumpers/store/writer.h"

/* About two milliseconds of one core's work: below it, waking the others costs more than they save. */
enum { PARALLEL_ELEMENTS = 1 << 20 };

/* Health describes the run, not a tensor: what it needs is looked at even where the filters leave it out. */
unsigned fd_trace_wants(void *user, const fd_node *node) {
    const fd_trace_writer *writer = user;
    if (node->id < 0 || node->id >= writer->graph->n_node) return FD_WANT_DATA; /* refused by fd_trace_observe */
    /* Executors take the last node for the logits. */
    bool logits = node->id == writer->logits, last = node->id == writer->graph->n_node - 1;
    unsigned health = !fd_trace_feeds_health(writer, node) ? 0 : logits && !last ? FD_WANT_DATA : FD_WANT_HEALTH;
    fd_trace_level level = writer->step ? writer->step->level : writer->options.level;
    if (!writer->selected[node->id]) return health;
    return health | FD_WANT_FINGERPRINT | (level >= FD_TRACE_STATS ? FD_WANT_STATS : 0) |
           (fd_trace_stores(writer, node, level) ? FD_WANT_DATA : 0);
}

/* What is wanted beside the elements and was not handed over; NULL: nothing. */
static const char *left_out(const fd_observation *o, unsigned wants) {
    if ((wants & FD_WANT_FINGERPRINT) && !o->fingerprints) return "its fingerprint";
    if ((wants & FD_WANT_STATS) && !o->stats) return "its statistics";
    if ((wants & FD_WANT_HEALTH) && !(o->top || (o->entropy && o->sink))) return "its health";
    return NULL;
}

static fd_code check(const fd_trace_writer *writer, const fd_observation *o, fd_error *err) {
    int32_t id = o->node->id;
    const fd_trace_pending *step = writer->step;
    if (!step) return fd_fail(err, FD_ERR_INPUT, "%s: %s was shown outside a step", writer->path, o->node->name);
    if (id < 0 || id >= writer->graph->n_node || strcmp(writer->graph->nodes[id].name, o->node->name) != 0)
        return fd_fail(err, FD_ERR_INPUT, "%s: node %d is %s, the trace was created for another graph", writer->path,
                       id, o->node->name);
    if (o->pos0 < step->pos0 || o->n_pos < 1 || o->n_pos > step->pos0 + step->n_tok - o->pos0)
        return fd_fail(err, FD_ERR_INPUT, "%s: %s: positions %d to %d, the step has %d to %d", writer->path,
                       o->node->name, o->pos0, o->pos0 + o->n_pos - 1, step->pos0, step->pos0 + step->n_tok - 1);
    if (o->dtype != writer->dtype)
        return fd_fail(err, FD_ERR_INPUT, "%s: %s: element type %u, the trace was created for %s", writer->path,
                       o->node->name, o->dtype, fd_dtype_get(writer->dtype)->name);
    unsigned wants = fd_trace_wants((void *)writer, o->node);
    const char *lacks = o->data ? NULL : wants & FD_WANT_DATA ? "its elements" : left_out(o, wants);
    if (lacks) return fd_fail(err, FD_ERR_INPUT, "%s: %s was shown without %s", writer->path, o->node->name, lacks);
    int64_t n = fd_node_row_stride(o->node, o->pos0 + o->n_pos);
    if (o->row_stride < n)
        return fd_fail(err, FD_ERR_INPUT, "%s: %s: rows %lld elements apart, expected at least %lld", writer->path,
                       o->node->name, (long long)o->row_stride, (long long)n);
    return FD_OK;
}

/* Rows are independent. The CPU executor shows a node from inside its parallel region, where the other threads wait
 * at a barrier and take tasks; elsewhere the rows get a region of their own. */
static void digest(fd_trace_writer *writer, const fd_observation *o) {
    fd_trace_pending *step = writer->step;
    bool small = o->n_pos == 1 || o->n_pos * o->row_stride < PARALLEL_ELEMENTS;
    if (small) {
        for (int32_t row = 0; row < o->n_pos; row++) fd_trace_digest_row(writer, step, o, row);
    } else if (omp_get_level() > 0) {
        for (int32_t row = 0; row < o->n_pos; row++) {
#pragma omp task default(none) firstprivate(writer, step, o, row)
            fd_trace_digest_row(writer, step, o, row);
        }
#pragma omp taskwait
    } else {
#pragma omp parallel for schedule(static) default(none) firstprivate(writer, step, o)
        for (int32_t row = 0; row < o->n_pos; row++) fd_trace_digest_row(writer, step, o, row);
    }
}

static fd_code take_here(fd_trace_writer *writer, const fd_observation *o, fd_error *err) {
    const fd_trace_pending *step = writer->step;
    digest(writer, o);
    if (!fd_trace_stores(writer, o->node, step->level)) return FD_OK;
    fd_trace_queue_drain(writer); /* rows of a tensor are written in the order in which they are shown */
    FD_TRY(fd_trace_failed(writer, err));
    fd_h5_guard guard = fd_h5_begin();
    bool ok = fd_trace_write_shown(writer, o, step->pos0 + step->n_tok, err);
    fd_h5_end(guard);
    return ok ? FD_OK : fd_trace_latch(writer, err);
}

fd_code fd_trace_observe(void *user, const fd_observation *observation, fd_error *err) {
    fd_trace_writer *writer = user;
    const fd_node *node = observation->node;
    FD_TRY(fd_trace_failed(writer, err));
    FD_TRY(check(writer, observation, err));
    unsigned wants = fd_trace_wants(writer, node);
    if (!wants) return FD_OK;
    bool handed = !left_out(observation, wants); /* nothing is left to work out: no more than to note it */
    if (handed)
        for (int32_t r = 0; r < observation->n_pos; r++) fd_trace_digest_row(writer, writer->step, observation, r);
    if (handed && !(wants & FD_WANT_DATA)) return FD_OK;
    int64_t row = fd_node_row_stride(node, observation->pos0 + observation->n_pos);
    size_t size = writer->dtype == FD_F64 ? 8 : 4, bytes = (size_t)(observation->n_pos * row) * size;
    size_t packing = fd_trace_packs(writer, node) ? (size_t)observation->n_pos * sizeof(uint32_t) : 0;
    if (!fd_trace_queue_fits(&writer->queue, bytes + packing)) return take_here(writer, observation, err);
    fd_trace_record *record = fd_trace_queue_take(writer, bytes + packing);
    record->step = writer->step;
    record->node = &writer->graph->nodes[node->id];
    record->pos0 = observation->pos0;
    record->n_pos = observation->n_pos;
    record->row_elements = row;
    record->handed = handed;
    record->digested = handed && writer->stored == writer->dtype && packing == 0;
    if (observation->row_stride == row)
        memcpy(record->data, observation->data, bytes);
    else
        for (int32_t r = 0; r < observation->n_pos; r++)
            memcpy(record->data + (size_t)(r * row) * size,
                   (const char *)observation->data + (size_t)(r * observation->row_stride) * size, (size_t)row * size);
    fd_trace_queue_put(writer, record);
    return FD_OK;
}
