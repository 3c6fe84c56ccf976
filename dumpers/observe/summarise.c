/* What is worked out of a row: fingerprint, statistics, health; and the rounding to what the file stores. */
#include <string.h>

#include "dumpers/observe/health.h"
#include "dumpers/observe/writer.h"
#include "model/gguf/quant.h"

bool fd_trace_feeds_health(const fd_trace_writer *writer, const fd_node *node) {
    return node->id == writer->plan.logits || (node->op == FD_OP_ATTN_SOFTMAX && writer->plan.heads);
}

static const void *row_of(const fd_observation *o, int32_t row) {
    return (const char *)o->data + (size_t)row * (size_t)o->row_stride * (o->dtype == FD_F64 ? 8 : 4);
}

static void note_health(const fd_trace_writer *writer, fd_store_step *step, const fd_observation *o, int32_t row) {
    const fd_hparams *h = &writer->plan.graph->hparams;
    const fd_node *node = o->node;
    size_t at = (size_t)(o->pos0 - step->pos0 + row);
    if (node->id == writer->plan.logits) {
        fd_top_logits top;
        if (o->top)
            top = o->top[row];
        else
            fd_health_logits(o->dtype, row_of(o, row), node->shape[0], &top);
        fd_health_note(&top, &step->health[at]);
    } else if (node->layer >= 0 && node->layer < h->n_layer && node->shape[0] <= h->n_head) {
        size_t slot = (at * (size_t)h->n_layer + (size_t)node->layer) * (size_t)h->n_head;
        size_t n_head = (size_t)node->shape[0];
        if (o->entropy) {
            memcpy(step->entropy + slot, o->entropy + (size_t)row * n_head, n_head * sizeof(float));
            memcpy(step->sink + slot, o->sink + (size_t)row * n_head, n_head * sizeof(float));
        } else {
            fd_health_attention(o->dtype, row_of(o, row), node->shape[0], o->pos0 + o->n_pos, o->pos0 + row + 1,
                                step->entropy + slot, step->sink + slot);
        }
    }
}

void fd_trace_summarise_row(const fd_trace_writer *writer, fd_store_step *step, const fd_observation *o, int32_t row) {
    if (fd_trace_feeds_health(writer, o->node)) note_health(writer, step, o, row);
    if (!writer->plan.selected[o->node->id]) return;
    size_t at = (size_t)(o->pos0 - step->pos0 + row) * (size_t)writer->plan.graph->n_node + (size_t)o->node->id;
    step->fingerprints[at] = fd_observation_fingerprint(o, row);
    if (step->level >= FD_TRACE_STATS) fd_observation_stats(o, row, &step->stats[at]);
}

void fd_trace_round(const fd_trace_writer *writer, const char *from, size_t n, char *to) {
    bool f16 = writer->plan.stored == FD_F16;
    for (size_t i = 0; i < n; i++) { /* `to` never overtakes `from` */
        float x;
        memcpy(&x, from + 4 * i, 4);
        uint16_t half = f16 ? fd_f32_to_f16(x) : fd_f32_to_bf16(x);
        memcpy(to + 2 * i, &half, 2);
    }
}

void fd_trace_summarise(void *user, fd_queue_item *item) {
    const fd_trace_writer *writer = user;
    fd_trace_record *record = (fd_trace_record *)(void *)item->data;
    fd_observation o = {.graph = writer->plan.graph,
                        .node = record->node,
                        .pos0 = record->pos0,
                        .n_pos = record->n_pos,
                        .row_stride = record->row_elements,
                        .dtype = writer->plan.dtype,
                        .data = record->data};
    for (int32_t row = 0; row < record->n_pos && !record->handed; row++)
        fd_trace_summarise_row(writer, record->step, &o, row);
    bool to_file = fd_trace_stores(writer, record->node, record->step->level);
    if (to_file && writer->plan.stored != writer->plan.dtype)
        fd_trace_round(writer, record->data, (size_t)(record->n_pos * record->row_elements), record->data);
    if (to_file && fd_trace_compresses(writer, record->node)) fd_trace_compress(writer, record);
}
