/* Where rows of /tensors lie in the file. HDF5 makes room for a chunk and enters it in the dataset's index; the rows go
 * there past it, from where they are. HDF5 itself would fill a chunk, lay the rows into it and write that, a copy of every
 * byte more, all of it in the one thread that may call it. */
#include <stdlib.h>
#include <string.h>

#include "dumpers/trace_writer.h"

static void fill(const fd_trace_writer *writer, const fd_node *node, char *to, size_t n_element) {
    size_t size = fd_trace_stored_bytes(writer);
    const void *value = fd_trace_fill_value(node, writer->stored);
    for (size_t i = 0; i < n_element; i++) memcpy(to + i * size, value, size);
}

static size_t chunk_bytes(const fd_trace_writer *writer, const fd_node *node, size_t *rows) {
    hsize_t chunk[3] = {1, 1, 1};
    fd_trace_chunk(node, fd_trace_stored_bytes(writer), writer->options.compress, chunk);
    *rows = (size_t)chunk[0];
    return (size_t)(chunk[0] * chunk[1] * (node->n_dim > 1 ? chunk[2] : 1)) * fd_trace_stored_bytes(writer);
}

bool fd_trace_chunks_begin(fd_trace_writer *writer) {
    const fd_graph *graph = writer->graph;
    size_t most = 0;
    for (int32_t i = 0; i < graph->n_node; i++) {
        size_t rows, bytes = writer->tensor[i] < 0 ? 0 : chunk_bytes(writer, &graph->nodes[i], &rows);
        most = bytes > most ? bytes : most;
    }
    writer->chunks = calloc((size_t)graph->n_node, sizeof *writer->chunks);
    writer->nan_rows = malloc(FD_TRACE_NAN_BYTES);
    writer->nothing = calloc(most + 1, 1);
    if (!writer->chunks || !writer->nan_rows || !writer->nothing) return false;
    static const fd_node plain = {.over_kv = false};
    fill(writer, &plain, writer->nan_rows, FD_TRACE_NAN_BYTES / fd_trace_stored_bytes(writer));
    return true;
}

void fd_trace_chunks_free(fd_trace_writer *writer) {
    for (int32_t i = 0; writer->chunks && i < writer->graph->n_node; i++) free(writer->chunks[i].address);
    free(writer->chunks);
    free(writer->nan_rows);
    free(writer->nothing);
    free(writer->made);
    free(writer->rows);
    free(writer->job);
}

char *fd_trace_make(fd_trace_writer *writer, size_t bytes) {
    enum { MADE = 16 << 20 };
    if (bytes > writer->made_bytes - writer->made_used) {
        if (!fd_trace_finish_jobs(writer)) return NULL;
        if (bytes > writer->made_bytes) {
            free(writer->made);
            writer->made_bytes = bytes > MADE ? bytes : MADE;
            writer->made = malloc(writer->made_bytes);
            if (!writer->made) writer->made_bytes = 0;
        }
    }
    if (bytes > writer->made_bytes) return NULL;
    char *at = writer->made + writer->made_used;
    writer->made_used += (bytes + 63) / 64 * 64;
    if (writer->made_used > writer->made_bytes) writer->made_used = writer->made_bytes;
    return at;
}

/* ---- HDF5's part ---- */

/* Makes room for a chunk whose first row is c->from, in column `column`. */
static bool place(fd_trace_writer *writer, const fd_node *node, fd_trace_chunks *c, int32_t column) {
    fd_h5_target *target = &writer->target;
    hsize_t offset[3] = {(hsize_t)c->from};
    if (node->over_kv) offset[node->n_dim] = (hsize_t)column * FD_KV_CHUNK;
    target->placing = writer->nothing;
    target->placed = FD_TRACE_NO_CHUNK;
    bool ok = H5Dwrite_chunk(writer->tensor[node->id], H5P_DEFAULT, 0, offset, c->bytes, writer->nothing) >= 0;
    target->placing = NULL;
    c->address[column] = target->placed;
    return ok && target->placed != FD_TRACE_NO_CHUNK;
}

/* The addresses of the chunks whose first row is `from`, as far as they are known, for n columns. */
static bool look_at(fd_trace_chunks *c, int32_t from, int32_t n) {
    if (c->from != from) c->n = 0;
    c->from = from;
    if (n > c->room) {
        uint64_t *grown = realloc(c->address, 2 * (size_t)n * sizeof *grown);
        if (!grown) return false;
        c->address = grown;
        c->room = 2 * n;
    }
    for (; c->n < n; c->n++) c->address[c->n] = FD_TRACE_NO_CHUNK;
    return true;
}

/* ---- rows ---- */

/* A place in a list of rows. */
typedef struct cursor {
    const fd_trace_rows *rows;
    size_t i, n;
    int32_t row; /* of rows[i] */
} cursor;

static int32_t position(const cursor *at) {
    return at->rows[at->i].pos0 + at->row;
}

static void step(cursor *at, int32_t n) {
    at->row += n;
    if (at->row < at->rows[at->i].n) return;
    at->row = 0;
    at->i++;
}

static const char *data_of(const cursor *at) {
    return at->rows[at->i].data + (size_t)at->row * at->rows[at->i].stride;
}

/* How far the rows from here on follow one another, not beyond `limit`. */
static int32_t reach(cursor at, int32_t limit) {
    int32_t pos = position(&at);
    while (at.i < at.n && position(&at) == pos && pos < limit) {
        pos = at.rows[at.i].pos0 + at.rows[at.i].n;
        step(&at, at.rows[at.i].n - at.row);
    }
    return pos < limit ? pos : limit;
}

/* Rows [pos, end) of one chunk, which are those at the cursor. */
static bool put_plain(fd_trace_writer *writer, const fd_node *node, fd_trace_chunks *c, cursor *at, int32_t end) {
    int32_t pos = position(at);
    bool fresh = c->address[0] == FD_TRACE_NO_CHUNK;
    if (fresh && !place(writer, node, c, 0)) return false;
    uint64_t base = c->address[0];
    if (fresh && pos > c->from &&
        !fd_trace_send(writer, base, writer->nan_rows, (size_t)(pos - c->from) * c->row_bytes))
        return false;
    while (pos < end) {
        const fd_trace_rows *r = &at->rows[at->i];
        int32_t n = r->stride != c->row_bytes ? 1 : r->n - at->row < end - pos ? r->n - at->row : end - pos;
        if (!fd_trace_send(writer, base + (uint64_t)(pos - c->from) * c->row_bytes, data_of(at),
                           (size_t)n * c->row_bytes))
            return false;
        step(at, n);
        pos += n;
    }
    size_t left = (size_t)(c->from + c->rows - end) * c->row_bytes;
    return !fresh || left == 0 || fd_trace_send(writer, base + (uint64_t)c->bytes - left, writer->nan_rows, left);
}

/* The keys of a chunk's column, from rows of `have` keys, of every head. */
static void cut(const fd_trace_writer *writer, const fd_node *node, const char *row, int32_t have, int32_t column,
                char *to) {
    size_t size = fd_trace_stored_bytes(writer);
    int32_t first = column * FD_KV_CHUNK, n = have - first < 0             ? 0
                                              : have - first < FD_KV_CHUNK ? have - first
                                                                           : FD_KV_CHUNK;
    for (int32_t head = 0; head < node->shape[0]; head++, to += FD_KV_CHUNK * size) {
        if (n > 0) memcpy(to, row + (size_t)(head * (int64_t)have + first) * size, (size_t)n * size);
        if (n < FD_KV_CHUNK) fill(writer, node, to + (size_t)n * size, (size_t)(FD_KV_CHUNK - n));
    }
}

/* The same for a tensor over keys. What earlier rows have in a new column is fill. */
static bool put_over_keys(fd_trace_writer *writer, const fd_node *node, fd_trace_chunks *c, cursor *at, int32_t end) {
    int32_t pos = position(at);
    cursor after = *at;
    size_t row_elements = (size_t)node->shape[0] * FD_KV_CHUNK;
    for (int32_t column = 0; column < c->n; column++) {
        bool fresh = c->address[column] == FD_TRACE_NO_CHUNK;
        int32_t from = fresh ? c->from : pos, to = fresh ? c->from + c->rows : end;
        if (fresh && !place(writer, node, c, column)) return false;
        char *made = fd_trace_make(writer, (size_t)(to - from) * c->row_bytes);
        if (!made) return false;
        char *next = made;
        after = *at;
        for (int32_t p = from; p < to; p++, next += c->row_bytes) {
            if (p < pos || p >= end) {
                fill(writer, node, next, row_elements);
                continue;
            }
            cut(writer, node, data_of(&after), after.rows[after.i].n_kv, column, next);
            step(&after, 1);
        }
        if (!fd_trace_send(writer, c->address[column] + (uint64_t)(from - c->from) * c->row_bytes, made,
                           (size_t)(to - from) * c->row_bytes))
            return false;
    }
    *at = after;
    return true;
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

/* Rows at places that are no longer known, or that no longer follow one another: HDF5 knows. */
static bool write_through(fd_trace_writer *writer, const fd_node *node, fd_trace_chunks *c, cursor *at) {
    c->through_hdf5 = true;
    bool ok = fd_trace_finish_jobs(writer);
    for (; ok && at->i < at->n; step(at, 1))
        ok = fd_trace_write_block(writer, node, position(at), 1, at->rows[at->i].n_kv, data_of(at));
    return ok;
}

bool fd_trace_put_rows(fd_trace_writer *writer, const fd_node *node, const fd_trace_rows *rows, size_t n) {
    fd_trace_chunks *c = &writer->chunks[node->id];
    if (c->rows == 0) {
        size_t n_row;
        c->bytes = chunk_bytes(writer, node, &n_row);
        c->rows = (int32_t)n_row;
        c->row_bytes = c->bytes / n_row;
    }
    for (cursor at = {.rows = rows, .n = n}; at.i < at.n;) {
        int32_t pos = position(&at), from = pos - pos % c->rows, end = reach(at, from + c->rows);
        if (pos < c->end || c->through_hdf5) return write_through(writer, node, c, &at);
        int32_t n_column = node->over_kv ? (end + FD_KV_CHUNK - 1) / FD_KV_CHUNK : 1;
        /* rows of this chunk that are under way were followed by fill */
        if (pos != c->end && from == c->from && c->n > 0 && !fd_trace_finish_jobs(writer)) return false;
        if (!look_at(c, from, n_column)) return false;
        if (!(node->over_kv ? put_over_keys : put_plain)(writer, node, c, &at, end)) return false;
        c->end = end;
    }
    return true;
}
