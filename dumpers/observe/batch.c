/* A batch of the queue into the store: the rows that it has of each tensor together, then the steps that ended in
 * it. */
#include <stdlib.h>
#include <string.h>

#include "dumpers/observe/writer.h"

static fd_trace_record *record_of(fd_queue_item *item) {
    return (fd_trace_record *)(void *)item->data;
}

static fd_code cannot_write(const fd_trace_writer *writer, const fd_node *node, int32_t pos0, fd_error *err) {
    const fd_trace_file *file = writer->batch.store->file;
    return fd_h5_target_fail(&file->target, err, "%s: cannot write %s at position %d", file->path,
                             node ? node->name : "the tensors", pos0);
}

/* ---- rows of a tensor ---- */

/* Compressed rows: each is a chunk of its own, stored as it is. */
static bool write_compressed(fd_trace_writer *writer, const fd_store_tensor *tensor, fd_trace_record *r) {
    size_t bytes = (size_t)r->row_elements * fd_element_bytes(writer->plan.stored);
    for (int32_t row = 0; row < r->n_pos; row++) {
        const char *data = r->data + (size_t)row * bytes;
        hsize_t offset[FD_H5_MAX_RANK] = {(hsize_t)(r->pos0 + row)};
        uint32_t size = fd_trace_compressed_bytes(writer, r, row);
        bool ok = size > 0 ? H5Dwrite_chunk(tensor->id, H5P_DEFAULT, 0, offset, size, data) >= 0
                           : fd_store_write_block(tensor, r->pos0 + row, 1, 0, data);
        if (!ok) return false;
    }
    return true;
}

static bool room_for_rows(fd_writer_batch *batch, size_t n) {
    if (n < batch->room_rows) return true;
    size_t more = 2 * n + 64;
    fd_store_rows *grown = realloc(batch->rows, more * sizeof *grown);
    if (!grown) return false;
    batch->rows = grown;
    batch->room_rows = more;
    return true;
}

static bool write_node(fd_trace_writer *writer, fd_trace_record *r) {
    fd_writer_batch *batch = &writer->batch;
    fd_store_tensor *tensor = &batch->store->tensors[r->node->id];
    const fd_store_step *last = batch->last[r->node->id]->step;
    if (!fd_store_extend(batch->store, tensor, last->pos0 + last->n_tok)) return false;
    size_t n = 0, row_size = fd_element_bytes(writer->plan.stored);
    bool ok = true;
    for (; ok && r; r = r->same) {
        if (fd_trace_compresses(writer, r->node)) {
            ok = write_compressed(writer, tensor, r);
        } else if (writer->plan.options.compress) { /* along keys: several chunks a row, left to HDF5 */
            ok = fd_store_write_block(tensor, r->pos0, r->n_pos, r->pos0 + r->n_pos, r->data);
        } else {
            if (!room_for_rows(batch, n)) return false;
            batch->rows[n++] =
                (fd_store_rows){r->data, (size_t)r->row_elements * row_size, r->pos0, r->n_pos, r->pos0 + r->n_pos};
        }
    }
    return ok && fd_store_put(batch->store, tensor, batch->rows, n);
}

/* Lists the records of each node, and takes the steps that end. False: none has rows for the file. */
static bool sort_records(fd_trace_writer *writer, fd_queue_item *first) {
    fd_writer_batch *batch = &writer->batch;
    bool any = false;
    for (fd_queue_item *item = first; item; item = item->next) {
        fd_trace_record *r = record_of(item);
        if (!r->node) {
            *(batch->steps ? &batch->last_step->next : &batch->steps) = r->step;
            batch->last_step = r->step;
            continue;
        }
        if (!fd_trace_stores(writer, r->node, r->step->level)) continue;
        fd_trace_record **last = &batch->last[r->node->id];
        r->same = NULL;
        *(*last ? &(*last)->same : &batch->first[r->node->id]) = r;
        *last = r;
        any = true;
    }
    return any;
}

static fd_code write_nodes(fd_trace_writer *writer, bool dropped, fd_error *err) {
    fd_writer_batch *batch = &writer->batch;
    fd_code code = FD_OK;
    for (int32_t i = 0; i < writer->plan.graph->n_node; i++) {
        fd_trace_record *r = batch->first[i];
        bool wanted = r && !dropped && code == FD_OK;
        if (wanted && (!write_node(writer, r) || batch->store->file->target.error != 0))
            code = cannot_write(writer, r->node, r->pos0, err);
        batch->first[i] = batch->last[i] = NULL;
    }
    return code;
}

/* What steps leave out of a tensor is fill, not what the disk has there. */
static bool fill_gaps(fd_trace_writer *writer) {
    const fd_store_step *last = writer->batch.last_step;
    return writer->plan.options.compress || fd_store_put_fill(writer->batch.store, last->pos0 + last->n_tok);
}

fd_code fd_trace_write_batch(void *user, fd_queue_item *first, bool dropped, fd_error *err) {
    fd_trace_writer *writer = user;
    fd_writer_batch *batch = &writer->batch;
    int32_t pos0 = record_of(first)->step->pos0;
    fd_h5_guard guard = fd_h5_begin();
    bool any = sort_records(writer, first);
    fd_code code = any ? write_nodes(writer, dropped, err) : FD_OK;
    bool ends = code == FD_OK && !dropped && batch->steps, sent = !ends || fill_gaps(writer);
    if (ends && sent) code = fd_store_append_tables(batch->store, batch->steps, err); /* meanwhile helpers write */
    bool written = fd_store_finish_writes(batch->store);
    if (code == FD_OK && !dropped && !(sent && written)) code = cannot_write(writer, NULL, pos0, err);
    fd_h5_end(guard);
    return code;
}

fd_code fd_trace_commit_batch(void *user, bool dropped, fd_error *err) {
    fd_trace_writer *writer = user;
    fd_writer_batch *batch = &writer->batch;
    fd_h5_guard guard = fd_h5_begin();
    fd_code code = dropped ? FD_OK : fd_store_append_steps(batch->store, batch->steps, err);
    fd_h5_end(guard);
    for (fd_store_step *step = batch->steps, *next; step; step = next) {
        next = step->next;
        writer->unwritten -= step->bytes;
        fd_store_step_free(step);
    }
    batch->steps = batch->last_step = NULL;
    return code;
}

/* ---- rows as they are shown ---- */

enum { ROUNDED = 4 << 20 }; /* bytes of rounded rows at a time */

static bool write_some(fd_trace_writer *writer, fd_store_tensor *tensor, const fd_store_rows *rows) {
    fd_store *store = writer->batch.store;
    if (!writer->plan.options.compress) return fd_store_put(store, tensor, rows, 1) && fd_store_finish_writes(store);
    bool ok = true;
    for (int32_t r = 0; ok && r < rows->n; r++)
        ok = fd_store_write_block(tensor, rows->pos0 + r, 1, rows->n_kv, rows->data + (size_t)r * rows->stride);
    return ok;
}

static bool write_rounded(fd_trace_writer *writer, fd_store_tensor *tensor, const fd_store_rows *shown, size_t n) {
    int32_t at_once = 2 * n >= ROUNDED ? 1 : (int32_t)(ROUNDED / (2 * n));
    char *half = malloc((size_t)at_once * n * 2);
    fd_store_rows rows = {half, n * 2, shown->pos0, 0, shown->n_kv};
    bool ok = half != NULL;
    for (int32_t done = 0; ok && done < shown->n; done += rows.n) {
        rows.n = shown->n - done < at_once ? shown->n - done : at_once;
        rows.pos0 = shown->pos0 + done;
        for (int32_t r = 0; r < rows.n; r++)
            fd_trace_round(writer, shown->data + (size_t)(done + r) * shown->stride, n, half + (size_t)r * n * 2);
        ok = write_some(writer, tensor, &rows);
    }
    ok = fd_store_finish_writes(writer->batch.store) && ok;
    free(half);
    return ok;
}

fd_code fd_trace_write_shown(fd_trace_writer *writer, const fd_observation *o, int32_t end, fd_error *err) {
    const fd_node *node = o->node;
    fd_store *store = writer->batch.store;
    fd_store_tensor *tensor = &store->tensors[node->id];
    fd_store_rows rows = {o->data, (size_t)o->row_stride * fd_element_bytes(o->dtype), o->pos0, o->n_pos,
                          o->pos0 + o->n_pos};
    fd_h5_guard guard = fd_h5_begin();
    bool ok = fd_store_extend(store, tensor, end);
    if (ok && writer->plan.stored != writer->plan.dtype)
        ok = write_rounded(writer, tensor, &rows, (size_t)fd_node_row_stride(node, rows.n_kv));
    else if (ok)
        ok = write_some(writer, tensor, &rows);
    ok = fd_store_finish_writes(store) && ok;
    fd_code code = ok ? FD_OK : cannot_write(writer, node, o->pos0, err);
    fd_h5_end(guard);
    return code;
}
