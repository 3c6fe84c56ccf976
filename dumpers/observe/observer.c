/* Takes what a run shows: copies it into the queue, so that the run goes on while it is summarised and written. What
 * is too large for the queue is summarised and written here, by the thread that shows it, without a copy. */
#include <omp.h>
#include <string.h>

#include "dumpers/observe/writer.h"

/* About two milliseconds of one core's work: below it, waking the others costs more than they save. */
enum { PARALLEL_ELEMENTS = 1 << 20 };

/* Health describes the run, not a tensor: what it needs is looked at even where the filters leave it out. */
unsigned fd_trace_wants(void *user, const fd_node *node) {
    const fd_trace_writer *writer = user;
    if (node->id < 0 || node->id >= writer->plan.graph->n_node) return FD_WANT_DATA; /* refused by fd_trace_observe */
    /* Executors take the last node for the logits. */
    bool logits = node->id == writer->plan.logits, last = node->id == writer->plan.graph->n_node - 1;
    unsigned health = !fd_trace_feeds_health(writer, node) ? 0 : logits && !last ? FD_WANT_DATA : FD_WANT_HEALTH;
    fd_trace_level level = writer->run.step ? writer->run.step->level : writer->plan.options.level;
    if (!writer->plan.selected[node->id]) return health;
    return health | FD_WANT_FINGERPRINT | (level >= FD_TRACE_STATS ? FD_WANT_STATS : 0) |
           (fd_trace_stores(writer, node, level) ? FD_WANT_DATA : 0);
}

/* What is wanted besides the elements and was not handed over; NULL: nothing. */
static const char *left_out(const fd_observation *o, unsigned wants) {
    if ((wants & FD_WANT_FINGERPRINT) && !o->fingerprints) return "its fingerprint";
    if ((wants & FD_WANT_STATS) && !o->stats) return "its statistics";
    if ((wants & FD_WANT_HEALTH) && !(o->top || (o->entropy && o->sink))) return "its health";
    return NULL;
}

static fd_code check(const fd_trace_writer *writer, const fd_observation *o, fd_error *err) {
    int32_t id = o->node->id;
    const fd_store_step *step = writer->run.step;
    if (!step) return fd_fail(err, FD_ERR_INPUT, "%s: %s was shown outside a step", writer->plan.path, o->node->name);
    if (id < 0 || id >= writer->plan.graph->n_node || strcmp(writer->plan.graph->nodes[id].name, o->node->name) != 0)
        return fd_fail(err, FD_ERR_INPUT, "%s: node %d is %s, the trace was created for another graph",
                       writer->plan.path, id, o->node->name);
    if (o->pos0 < step->pos0 || o->n_pos < 1 || o->n_pos > step->pos0 + step->n_tok - o->pos0)
        return fd_fail(err, FD_ERR_INPUT, "%s: %s: positions %d to %d, the step has %d to %d", writer->plan.path,
                       o->node->name, o->pos0, o->pos0 + o->n_pos - 1, step->pos0, step->pos0 + step->n_tok - 1);
    if (o->dtype != writer->plan.dtype)
        return fd_fail(err, FD_ERR_INPUT, "%s: %s: element type %u, the trace was created for %s", writer->plan.path,
                       o->node->name, o->dtype, fd_dtype_get(writer->plan.dtype)->name);
    unsigned wants = fd_trace_wants((void *)writer, o->node);
    const char *lacks = o->data ? NULL : wants & FD_WANT_DATA ? "its elements" : left_out(o, wants);
    if (lacks)
        return fd_fail(err, FD_ERR_INPUT, "%s: %s was shown without %s", writer->plan.path, o->node->name, lacks);
    int64_t n = fd_node_row_stride(o->node, o->pos0 + o->n_pos);
    if (o->row_stride < n)
        return fd_fail(err, FD_ERR_INPUT, "%s: %s: rows %lld elements apart, expected at least %lld", writer->plan.path,
                       o->node->name, (long long)o->row_stride, (long long)n);
    return FD_OK;
}

/* Rows are independent. The CPU executor shows a node from inside its parallel region, where the other threads wait
 * at a barrier and take tasks; elsewhere the rows get a region of their own. */
static void summarise_rows(fd_trace_writer *writer, const fd_observation *o) {
    fd_store_step *step = writer->run.step;
    bool small = o->n_pos == 1 || o->n_pos * o->row_stride < PARALLEL_ELEMENTS;
    if (small) {
        for (int32_t row = 0; row < o->n_pos; row++) fd_trace_summarise_row(writer, step, o, row);
    } else if (omp_get_level() > 0) {
        for (int32_t row = 0; row < o->n_pos; row++) {
#pragma omp task default(none) firstprivate(writer, step, o, row)
            fd_trace_summarise_row(writer, step, o, row);
        }
#pragma omp taskwait
    } else {
#pragma omp parallel for schedule(static) default(none) firstprivate(writer, step, o)
        for (int32_t row = 0; row < o->n_pos; row++) fd_trace_summarise_row(writer, step, o, row);
    }
}

static fd_code take_here(fd_trace_writer *writer, const fd_observation *o, fd_error *err) {
    const fd_store_step *step = writer->run.step;
    summarise_rows(writer, o);
    if (!fd_trace_stores(writer, o->node, step->level)) return FD_OK;
    fd_queue_drain(&writer->queue); /* rows of a tensor are written in the order in which they are shown */
    FD_TRY(fd_queue_failed(&writer->queue, err));
    fd_code code = fd_trace_write_shown(writer, o, step->pos0 + step->n_tok, err);
    return code == FD_OK ? FD_OK : fd_queue_fail(&writer->queue, err);
}

fd_code fd_trace_observe(void *user, const fd_observation *observation, fd_error *err) {
    fd_trace_writer *writer = user;
    const fd_node *node = observation->node;
    FD_TRY(fd_queue_failed(&writer->queue, err));
    FD_TRY(check(writer, observation, err));
    unsigned wants = fd_trace_wants(writer, node);
    if (!wants) return FD_OK;
    bool handed = !left_out(observation, wants); /* nothing is left to work out: no more than to note it */
    if (handed)
        for (int32_t r = 0; r < observation->n_pos; r++)
            fd_trace_summarise_row(writer, writer->run.step, observation, r);
    if (handed && !(wants & FD_WANT_DATA)) return FD_OK;
    int64_t row = fd_node_row_stride(node, observation->pos0 + observation->n_pos);
    size_t size = fd_element_bytes(writer->plan.dtype), bytes = (size_t)(observation->n_pos * row) * size;
    size_t sizes = fd_trace_compresses(writer, node) ? (size_t)observation->n_pos * sizeof(uint32_t) : 0;
    bytes += sizeof(fd_trace_record) + sizes;
    if (!fd_queue_fits(&writer->queue, bytes)) return take_here(writer, observation, err);
    fd_queue_item *item = fd_queue_take(&writer->queue, bytes);
    item->prepared = handed && writer->plan.stored == writer->plan.dtype && sizes == 0;
    fd_trace_record *record = (fd_trace_record *)(void *)item->data;
    *record = (fd_trace_record){.step = writer->run.step,
                                .node = &writer->plan.graph->nodes[node->id],
                                .pos0 = observation->pos0,
                                .n_pos = observation->n_pos,
                                .row_elements = row,
                                .handed = handed};
    if (observation->row_stride == row)
        memcpy(record->data, observation->data, (size_t)(observation->n_pos * row) * size);
    else
        for (int32_t r = 0; r < observation->n_pos; r++)
            memcpy(record->data + (size_t)(r * row) * size,
                   (const char *)observation->data + (size_t)(r * observation->row_stride) * size, (size_t)row * size);
    fd_queue_put(&writer->queue, item);
    return FD_OK;
}
