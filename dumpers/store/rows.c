/* Rows into the datasets of /tensors: those that a batch has of a tensor together. */
#include <stdlib.h>
#include <string.h>

#include "dumpers/store/writer.h"

/* Grows the dataset to `end` positions, and to some more: each time its header is written anew. Not along keys: at the end
 * HDF5 cuts what is too much, and would fill a part of every chunk in the last column. */
static bool extend(fd_trace_writer *writer, const fd_node *node, int32_t end) {
    enum { AHEAD = 64 };
    if (writer->extent[node->id] >= end) return true;
    if (!node->over_kv && end < INT32_MAX - AHEAD) end = (end + AHEAD - 1) / AHEAD * AHEAD;
    hsize_t extent[3] = {(hsize_t)end};
    for (int i = 0; i < node->n_dim; i++)
        extent[1 + i] = node->over_kv && i == node->n_dim - 1 ? (hsize_t)end : (hsize_t)node->shape[i];
    writer->extent[node->id] = end;
    return H5Dset_extent(writer->tensor[node->id], extent) >= 0;
}

/* ---- rows of a batch ---- */

/* Compressed rows: each is a chunk of its own, stored as it is. */
static bool write_packed(fd_trace_writer *writer, fd_trace_record *r) {
    size_t bytes = (size_t)r->row_elements * fd_trace_stored_bytes(writer);
    for (int32_t row = 0; row < r->n_pos; row++) {
        const char *data = r->data + (size_t)row * bytes;
        hsize_t offset[3] = {(hsize_t)(r->pos0 + row)};
        uint32_t packed = fd_trace_packed_bytes(writer, r, row);
        bool ok = packed > 0 ? H5Dwrite_chunk(writer->tensor[r->node->id], H5P_DEFAULT, 0, offset, packed, data) >= 0
                             : fd_trace_write_block(writer, r->node, r->pos0 + row, 1, 0, data);
        if (!ok) return false;
    }
    return true;
}

/* Compressed rows along keys, each of them several chunks. */
static bool write_filtered(fd_trace_writer *writer, const fd_trace_record *r) {
    return fd_trace_write_block(writer, r->node, r->pos0, r->n_pos, r->pos0 + r->n_pos, r->data);
}

static bool room_for_rows(fd_trace_writer *writer, size_t n) {
    if (n < writer->room_rows) return true;
    size_t more = 2 * n + 64;
    fd_trace_rows *grown = realloc(writer->rows, more * sizeof *grown);
    if (!grown) return false;
    writer->rows = grown;
    writer->room_rows = more;
    return true;
}

static bool write_node(fd_trace_writer *writer, fd_trace_record *r) {
    const fd_node *node = r->node;
    const fd_trace_pending *last = writer->last[node->id]->step;
    if (!extend(writer, node, last->pos0 + last->n_tok)) return false;
    if (writer->options.compress) {
        for (bool packs = fd_trace_packs(writer, node), ok = true; r; r = r->same) {
            ok = packs ? write_packed(writer, r) : write_filtered(writer, r);
            if (!ok) return false;
        }
        return true;
    }
    size_t n = 0, size = fd_trace_stored_bytes(writer);
    for (; r; r = r->same) {
        if (!room_for_rows(writer, n)) return false;
        writer->rows[n++] =
            (fd_trace_rows){r->data, (size_t)r->row_elements * size, r->pos0, r->n_pos, r->pos0 + r->n_pos};
    }
    return fd_trace_put_rows(writer, node, writer->rows, n);
}

/* Puts the rows of the records on their way. */
static bool write_records(fd_trace_writer *writer, fd_trace_record *first, fd_error *err) {
    const fd_graph *graph = writer->graph;
    bool any = false;
    for (fd_trace_record *r = first; r; r = r->next) {
        if (!r->node || !fd_trace_stores(writer, r->node, r->step->level)) continue;
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
        if (r && ok && (!write_node(writer, r) || writer->file->target.error != 0)) {
            fd_h5_target_fail(&writer->file->target, err, "%s: cannot write %s at position %d", writer->path, r->node->name,
                              r->pos0);
            ok = false;
        }
        writer->first[i] = writer->last[i] = NULL;
    }
    return ok;
}

/* What steps leave out of a tensor is fill, not what the disk has there. */
static bool fill_up(fd_trace_writer *writer, const fd_trace_pending *steps) {
    while (steps->next) steps = steps->next;
    return writer->options.compress || fd_trace_put_fill(writer, steps->pos0 + steps->n_tok);
}

bool fd_trace_write_batch(fd_trace_writer *writer, fd_trace_record *first, const fd_trace_pending *steps,
                          fd_error *err) {
    int32_t pos0 = first->step->pos0;
    bool ok = write_records(writer, first, err), sent = !ok || !steps || fill_up(writer, steps);
    if (ok && sent && steps) ok = fd_trace_commit_tables(writer, steps, err); /* meanwhile the helpers write */
    bool written = fd_trace_finish_jobs(writer);
    if (!ok || (sent && written)) return ok;
    fd_h5_target_fail(&writer->file->target, err, "%s: cannot write the tensors from position %d on", writer->path, pos0);
    return false;
}

/* ---- rows as they are shown ---- */

enum { ROUNDED = 4 << 20 }; /* bytes of rounded rows at a time */

static bool write_some(fd_trace_writer *writer, const fd_node *node, const fd_trace_rows *rows) {
    if (!writer->options.compress) return fd_trace_put_rows(writer, node, rows, 1) && fd_trace_finish_jobs(writer);
    bool ok = true;
    for (int32_t r = 0; ok && r < rows->n; r++)
        ok = fd_trace_write_block(writer, node, rows->pos0 + r, 1, rows->n_kv, rows->data + (size_t)r * rows->stride);
    return ok;
}

static bool write_rounded(fd_trace_writer *writer, const fd_node *node, const fd_trace_rows *shown) {
    size_t n = (size_t)fd_node_row_stride(node, shown->n_kv);
    int32_t at_once = 2 * n >= ROUNDED ? 1 : (int32_t)(ROUNDED / (2 * n));
    char *half = malloc((size_t)at_once * n * 2);
    fd_trace_rows rows = {half, n * 2, shown->pos0, 0, shown->n_kv};
    bool ok = half != NULL;
    for (int32_t done = 0; ok && done < shown->n; done += rows.n) {
        rows.n = shown->n - done < at_once ? shown->n - done : at_once;
        rows.pos0 = shown->pos0 + done;
        for (int32_t r = 0; r < rows.n; r++)
            fd_trace_round(writer, shown->data + (size_t)(done + r) * shown->stride, n, half + (size_t)r * n * 2);
        ok = write_some(writer, node, &rows);
    }
    ok = fd_trace_finish_jobs(writer) && ok;
    free(half);
    return ok;
}

bool fd_trace_write_shown(fd_trace_writer *writer, const fd_observation *o, int32_t end, fd_error *err) {
    const fd_node *node = o->node;
    fd_trace_rows rows = {o->data, (size_t)o->row_stride * (o->dtype == FD_F64 ? 8 : 4), o->pos0, o->n_pos,
                          o->pos0 + o->n_pos};
    bool ok = extend(writer, node, end) &&
              (writer->stored != writer->dtype ? write_rounded : write_some)(writer, node, &rows);
    if (fd_trace_finish_jobs(writer) && ok) return true;
    fd_h5_target_fail(&writer->file->target, err, "%s: cannot write %s at position %d", writer->path, node->name, o->pos0);
    return false;
}
