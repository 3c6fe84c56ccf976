/* Rows into the datasets of /tensors. A call of HDF5's for each row would cost ten times what the row does: the rows
 * that a batch has of a tensor are laid side by side and written as one block. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/trace_writer.h"
#include "model/quant.h"

/* Bytes that are laid side by side: many chunks of 32 KiB, and little beside the processor's cache. */
enum { GATHER = 1 << 20 };

static hid_t memory_type(const fd_trace_writer *writer) {
    return writer->stored == FD_F64   ? H5T_NATIVE_DOUBLE
           : writer->stored == FD_F32 ? H5T_NATIVE_FLOAT
                                      : H5T_NATIVE_UINT16;
}

/* Grows the dataset to `end` positions. */
static bool extend(fd_trace_writer *writer, const fd_node *node, int32_t end) {
    hsize_t extent[3] = {(hsize_t)end};
    if (writer->extent[node->id] >= end) return true;
    for (int i = 0; i < node->n_dim; i++)
        extent[1 + i] = node->over_kv && i == node->n_dim - 1 ? (hsize_t)end : (hsize_t)node->shape[i];
    writer->extent[node->id] = end;
    return H5Dset_extent(writer->tensor[node->id], extent) >= 0;
}

/* Writes n rows of `n_kv` keys (over_kv) that lie one after the other, as stored. */
static bool write_block(fd_trace_writer *writer, const fd_node *node, int32_t pos0, int32_t n, int32_t n_kv,
                        const void *data) {
    hsize_t start[3] = {(hsize_t)pos0}, count[3] = {(hsize_t)n};
    for (int i = 0; i < node->n_dim; i++)
        count[1 + i] = node->over_kv && i == node->n_dim - 1 ? (hsize_t)n_kv : (hsize_t)node->shape[i];
    return fd_h5_write_block(writer->tensor[node->id], memory_type(writer), 1 + node->n_dim, start, count, data);
}

static bool gather_room(fd_trace_writer *writer, size_t bytes) {
    if (bytes <= writer->gathered_bytes) return true;
    char *grown = realloc(writer->gathered, bytes);
    if (!grown) return false;
    writer->gathered = grown;
    writer->gathered_bytes = bytes;
    return true;
}

/* ---- rows of a batch ---- */

/* What stands beyond a row's last key: as the dataset is filled, scores -inf and weights 0. */
static void fill(const fd_trace_writer *writer, const fd_node *node, char *to, size_t n) {
    bool scores = node->op == FD_OP_ATTN_SCORES;
    double wide = scores ? -INFINITY : 0.0;
    float single = (float)wide;
    uint16_t half = !scores ? 0 : writer->stored == FD_F16 ? 0xfc00 : 0xff80;
    const void *value = writer->stored == FD_F64   ? (const void *)&wide
                        : writer->stored == FD_F32 ? (const void *)&single
                                                   : &half;
    size_t size = fd_trace_stored_bytes(writer);
    for (size_t i = 0; i < n; i++) memcpy(to + i * size, value, size);
}

/* A record's rows to `to`, where rows over keys are `n_kv` wide. */
static char *lay(const fd_trace_writer *writer, const fd_trace_record *r, int32_t n_kv, char *to) {
    size_t size = fd_trace_stored_bytes(writer), bytes = (size_t)(r->n_pos * r->row_elements) * size;
    size_t have = (size_t)(r->pos0 + r->n_pos), want = (size_t)n_kv;
    if (!r->node->over_kv || have == want) {
        memcpy(to, r->data, bytes);
        return to + bytes;
    }
    const char *from = r->data;
    for (size_t run = (size_t)r->n_pos * (size_t)r->node->shape[0]; run > 0; run--, from += have * size) {
        memcpy(to, from, have * size);
        fill(writer, r->node, to + have * size, want - have);
        to += want * size;
    }
    return to;
}

/* Writes a node's records from `r` on that follow one another, as many as are laid side by side; the one after them. */
static bool write_run(fd_trace_writer *writer, fd_trace_record **at) {
    fd_trace_record *first = *at, *r = first, *end = first->same;
    const fd_node *node = first->node;
    size_t size = fd_trace_stored_bytes(writer), other = (size_t)(node->over_kv ? node->shape[0] : first->row_elements);
    int32_t pos1 = first->pos0 + first->n_pos;
    for (; end && end->pos0 == pos1; end = end->same) {
        size_t rows = (size_t)(pos1 + end->n_pos - first->pos0),
               width = node->over_kv ? (size_t)(pos1 + end->n_pos) : 1;
        if (rows * other * width * size > GATHER) break;
        pos1 += end->n_pos;
    }
    *at = end;
    if (first->same == end) return write_block(writer, node, first->pos0, first->n_pos, pos1, first->data);
    size_t rows = (size_t)(pos1 - first->pos0), width = node->over_kv ? (size_t)pos1 : 1;
    if (!gather_room(writer, rows * other * width * size)) return false;
    for (char *to = writer->gathered; r != end; r = r->same) to = lay(writer, r, pos1, to);
    return write_block(writer, node, first->pos0, (int32_t)rows, pos1, writer->gathered);
}

/* Compressed rows: each is a chunk of its own, stored as it is. */
static bool write_packed(fd_trace_writer *writer, fd_trace_record *r) {
    size_t bytes = (size_t)r->row_elements * fd_trace_stored_bytes(writer);
    for (int32_t row = 0; row < r->n_pos; row++) {
        const char *data = r->data + (size_t)row * bytes;
        hsize_t offset[3] = {(hsize_t)(r->pos0 + row)};
        uint32_t packed = fd_trace_packed_bytes(writer, r, row);
        bool ok = packed > 0 ? H5Dwrite_chunk(writer->tensor[r->node->id], H5P_DEFAULT, 0, offset, packed, data) >= 0
                             : write_block(writer, r->node, r->pos0 + row, 1, 0, data);
        if (!ok) return false;
    }
    return true;
}

static bool write_node(fd_trace_writer *writer, fd_trace_record *r) {
    const fd_trace_pending *last = writer->last[r->node->id]->step;
    if (!extend(writer, r->node, last->pos0 + last->n_tok)) return false;
    for (bool packs = fd_trace_packs(writer, r->node); packs && r; r = r->same)
        if (!write_packed(writer, r)) return false;
    while (r)
        if (!write_run(writer, &r)) return false;
    return true;
}

bool fd_trace_write_records(fd_trace_writer *writer, fd_trace_record *first, fd_error *err) {
    const fd_graph *graph = writer->graph;
    bool any = false;
    for (fd_trace_record *r = first; r; r = r->next) {
        if (!r->node || r->step->level < FD_TRACE_FULL || writer->tensor[r->node->id] < 0) continue;
        fd_trace_record **last = &writer->last[r->node->id];
        r->same = NULL;
        if (*last)
            (*last)->same = r;
        else
            writer->first[r->node->id] = r;
        *last = r;
        any = true;
    }
    bool ok = true;
    for (int32_t i = 0; any && i < graph->n_node; i++) {
        fd_trace_record *r = writer->first[i];
        if (r && ok && (!write_node(writer, r) || writer->target.error != 0)) {
            fd_h5_target_fail(&writer->target, err, "%s: cannot write %s at position %d", writer->path, r->node->name,
                              r->pos0);
            ok = false;
        }
        writer->first[i] = writer->last[i] = NULL;
    }
    return ok;
}

/* ---- rows as they are shown ---- */

/* Rows that have no gap go as they are, several at a time; others one by one. */
bool fd_trace_write_shown(fd_trace_writer *writer, const fd_observation *o, int32_t end, fd_error *err) {
    const fd_node *node = o->node;
    int32_t n_kv = o->pos0 + o->n_pos, at_once = o->n_pos;
    int64_t row = fd_node_row_stride(node, n_kv);
    bool round = writer->stored != writer->dtype, ok = extend(writer, node, end);
    if (o->row_stride != row) at_once = 1;
    if (round && at_once > 1) at_once = row * 2 >= GATHER ? 1 : (int32_t)(GATHER / (row * 2));
    for (int32_t r = 0; ok && r < o->n_pos; r += at_once) {
        int32_t n = o->n_pos - r < at_once ? o->n_pos - r : at_once;
        const char *data = (const char *)o->data + (size_t)(r * o->row_stride) * (o->dtype == FD_F64 ? 8 : 4);
        if (round) {
            ok = gather_room(writer, (size_t)(n * row) * 2);
            if (ok) fd_trace_round(writer, data, (size_t)(n * row), writer->gathered);
            data = writer->gathered;
        }
        ok = ok && write_block(writer, node, o->pos0 + r, n, n_kv, data);
    }
    if (ok && writer->target.error == 0) return true;
    fd_h5_target_fail(&writer->target, err, "%s: cannot write %s at position %d", writer->path, node->name, o->pos0);
    return false;
}
