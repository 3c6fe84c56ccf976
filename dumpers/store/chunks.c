/* Where rows of /tensors lie in the file. HDF5 makes room for a chunk and enters it in the dataset's index; the rows go
 * there past it, from where they are (trace_jobs.c). HDF5 itself would fill a chunk, lay the rows into it and write that, a
 * copy of every byte more, all of it in the one thread that may call it. */
#include <stdlib.h>
#include <string.h>

#include "dumpers/store/writer.h"

static size_t chunk_bytes(const fd_trace_writer *writer, const fd_node *node, size_t *rows) {
    hsize_t chunk[3] = {1, 1, 1};
    fd_trace_chunk(node, fd_trace_stored_bytes(writer), writer->options.compress, chunk);
    *rows = (size_t)chunk[0];
    return (size_t)(chunk[0] * chunk[1] * (node->n_dim > 1 ? chunk[2] : 1)) * fd_trace_stored_bytes(writer);
}

bool fd_trace_chunks_begin(fd_trace_writer *writer) {
    const fd_graph *graph = writer->graph;
    size_t most = 0;
    writer->chunks = calloc((size_t)graph->n_node, sizeof *writer->chunks);
    for (int32_t i = 0; writer->chunks && i < graph->n_node; i++) {
        fd_trace_chunks *c = &writer->chunks[i];
        size_t rows, bytes = chunk_bytes(writer, &graph->nodes[i], &rows);
        c->rows = (int32_t)rows;
        c->row_bytes = bytes / rows;
        if (writer->tensor[i] >= 0 && bytes > most) most = bytes;
    }
    writer->nothing = calloc(most + 1, 1);
    return writer->chunks && writer->nothing;
}

void fd_trace_chunks_free(fd_trace_writer *writer) {
    for (int32_t i = 0; writer->chunks && i < writer->graph->n_node; i++) free(writer->chunks[i].address);
    free(writer->chunks);
    free(writer->nothing);
    free(writer->runs);
    free(writer->places);
    free(writer->rows);
}

bool fd_trace_write_block(fd_trace_writer *writer, const fd_node *node, int32_t pos0, int32_t n, int32_t n_kv,
                          const void *data) {
    hsize_t start[3] = {(hsize_t)pos0}, count[3] = {(hsize_t)n};
    for (int i = 0; i < node->n_dim; i++)
        count[1 + i] = node->over_kv && i == node->n_dim - 1 ? (hsize_t)n_kv : (hsize_t)node->shape[i];
    hid_t type = writer->stored == FD_F64   ? H5T_NATIVE_DOUBLE
                 : writer->stored == FD_F32 ? H5T_NATIVE_FLOAT
                                            : H5T_NATIVE_UINT16;
    return fd_h5_write_block(writer->tensor[node->id], type, 1 + node->n_dim, start, count, data);
}

/* ---- places ---- */

/* Grows to hold one more than n. */
static bool grow(void **list, size_t *room, size_t n, size_t size) {
    if (n < *room) return true;
    size_t more = 2 * n + 64;
    void *grown = realloc(*list, more * size);
    if (!grown) return false;
    *list = grown;
    *room = more;
    return true;
}

/* HDF5 makes room for a chunk whose first row is c->from, in column `column`. */
static bool place(fd_trace_writer *writer, const fd_node *node, fd_trace_chunks *c, int32_t column) {
    fd_h5_target *target = &writer->file->target;
    size_t bytes = (size_t)c->rows * c->row_bytes;
    hsize_t offset[3] = {(hsize_t)c->from};
    if (node->over_kv) offset[node->n_dim] = (hsize_t)column * FD_KV_CHUNK;
    target->placing = writer->nothing;
    target->placed = FD_TRACE_NO_CHUNK;
    bool ok = H5Dwrite_chunk(writer->tensor[node->id], H5P_DEFAULT, 0, offset, bytes, writer->nothing) >= 0;
    target->placing = NULL;
    c->address[column] = target->placed;
    return ok && target->placed != FD_TRACE_NO_CHUNK;
}

/* Moves to the chunks whose first row is `from`, in n columns. */
static bool look_at(fd_trace_chunks *c, int32_t from, int32_t n) {
    void *address = c->address;
    if (c->from != from) c->n = 0;
    c->from = from;
    bool ok = grow(&address, &c->room, (size_t)n, sizeof *c->address);
    c->address = address;
    for (; ok && c->n < n; c->n++) c->address[c->n] = FD_TRACE_NO_CHUNK;
    return ok;
}

/* Rows [pos, end) of the chunks that are looked at, behind fill from `fill` on, as the put's next run. */
static bool add_run(fd_trace_writer *writer, const fd_node *node, fd_trace_put *put, int32_t fill, int32_t pos,
                    int32_t end) {
    fd_trace_chunks *c = &writer->chunks[node->id];
    void *runs = writer->runs, *places = writer->places;
    bool ok = grow(&runs, &writer->room_runs, put->n_run, sizeof *writer->runs) &&
              grow(&places, &writer->room_places, put->n_place + (size_t)c->n, sizeof *writer->places);
    writer->runs = runs;
    writer->places = places;
    if (!ok) return false;
    writer->runs[put->n_run++] =
        (fd_trace_run){.from = c->from, .fill = fill, .pos = pos, .end = end, .n_column = c->n};
    for (int32_t column = 0; column < c->n; column++) {
        bool fresh = c->address[column] == FD_TRACE_NO_CHUNK;
        if (fresh && !place(writer, node, c, column)) return false;
        writer->places[put->n_place++] = (fd_trace_place_at){c->address[column], fresh};
    }
    return true;
}

/* Rows [c->end, pos) were not shown: they are fill where chunks have them. *fill: the first of those in pos's own chunk. */
static bool skip_to(fd_trace_writer *writer, const fd_node *node, fd_trace_put *put, int32_t pos, int32_t *fill) {
    fd_trace_chunks *c = &writer->chunks[node->id];
    int32_t from = pos - pos % c->rows, behind = c->from + c->rows;
    *fill = c->n > 0 && c->from == from ? c->end : from;
    if (c->n == 0 || c->from == from || c->end >= behind) return true;
    return add_run(writer, node, put, c->end, behind, behind);
}

static bool send(fd_trace_writer *writer, const fd_node *node, const fd_trace_put *put, const fd_trace_rows *rows,
                 size_t n_row) {
    const fd_trace_chunks *c = &writer->chunks[node->id];
    fd_trace_put *out = put->n_run == 0 ? NULL : fd_trace_new_put(put->n_run, put->n_place, n_row);
    if (!out) return put->n_run == 0;
    out->node = node;
    out->row_bytes = c->row_bytes;
    memcpy(out->runs, writer->runs, put->n_run * sizeof *out->runs);
    memcpy(out->places, writer->places, put->n_place * sizeof *out->places);
    if (n_row > 0) memcpy(out->rows, rows, n_row * sizeof *rows);
    fd_trace_send(writer, out);
    return true;
}

/* Rows [c->end, to) of the chunks that are looked at become fill. */
static bool fill_to(fd_trace_writer *writer, const fd_node *node, int32_t to) {
    fd_trace_chunks *c = &writer->chunks[node->id];
    fd_trace_put put = {0};
    if (c->n == 0 || c->end >= to) return true;
    if (!add_run(writer, node, &put, c->end, to, to) || !send(writer, node, &put, NULL, 0)) return false;
    c->end = to;
    return true;
}

/* Rows that do not follow those before: only HDF5 knows their places, and it takes what chunks hold for written. */
static bool write_through(fd_trace_writer *writer, const fd_node *node, fd_trace_cursor at) {
    fd_trace_chunks *c = &writer->chunks[node->id];
    bool ok = c->through_hdf5 || fill_to(writer, node, c->from + c->rows);
    c->through_hdf5 = true;
    ok = fd_trace_finish_jobs(writer) && ok;
    for (; ok && !fd_trace_cursor_ended(&at); fd_trace_cursor_step(&at, 1))
        ok = fd_trace_write_block(writer, node, fd_trace_cursor_pos(&at), 1, at.rows[at.i].n_kv,
                                  fd_trace_cursor_data(&at));
    return ok;
}

bool fd_trace_put_rows(fd_trace_writer *writer, const fd_node *node, const fd_trace_rows *rows, size_t n) {
    fd_trace_chunks *c = &writer->chunks[node->id];
    fd_trace_put put = {0};
    fd_trace_cursor at = {.rows = rows, .n = n};
    while (!fd_trace_cursor_ended(&at)) {
        int32_t pos = fd_trace_cursor_pos(&at), from = pos - pos % c->rows, fill;
        if (pos < c->end || c->through_hdf5)
            return send(writer, node, &put, rows, n) && write_through(writer, node, at);
        int32_t end = fd_trace_cursor_reach(at, from + c->rows);
        int32_t n_column = node->over_kv ? (end + FD_KV_CHUNK - 1) / FD_KV_CHUNK : 1;
        if (!skip_to(writer, node, &put, pos, &fill) || !look_at(c, from, n_column) ||
            !add_run(writer, node, &put, fill, pos, end))
            return false;
        c->end = end;
        fd_trace_cursor_step(&at, end - pos);
    }
    return send(writer, node, &put, rows, n);
}

bool fd_trace_put_fill(fd_trace_writer *writer, int32_t end) {
    for (int32_t i = 0; i < writer->graph->n_node; i++) {
        const fd_trace_chunks *c = &writer->chunks[i];
        int32_t behind = c->from + c->rows;
        if (!fill_to(writer, &writer->graph->nodes[i], end < behind ? end : behind)) return false;
    }
    return true;
}
