/* Where rows of /tensors lie in the file: HDF5 makes room for a chunk and enters it in the dataset's index. */
#include <stdlib.h>
#include <string.h>

#include "dumpers/store/chunks.h"
#include "dumpers/store/write_request.h"

/* The request under construction; its lists grow on demand. */
struct fd_store_scratch {
    fd_write_span *spans;
    fd_chunk_address *chunks;
    size_t room_spans, room_chunks, n_span, n_chunk;
};

/* Making pages without the file's lock takes twice the processor time of making them under it, so that a few threads
 * are slower with it. */
static void choose_ahead(fd_store *store) {
    enum { MANY = 3 };
    fd_queue *queue = store->queue;
    bool pages = queue->n_helper >= MANY && store->file->target.ahead.in_memory;
    store->ahead = !queue->threaded ? FD_AHEAD_NONE : pages ? FD_AHEAD_PAGES : FD_AHEAD_SPACE;
    if (pages) fd_queue_let_all_help(queue);
}

bool fd_chunks_begin(fd_store *store, fd_store_tensor *tensor) {
    fd_store_chunks *c = &tensor->chunks;
    hsize_t shape[FD_H5_MAX_RANK];
    fd_form_chunk(&tensor->form, store->options.compress, shape);
    c->rows = (int32_t)shape[0];
    c->row_bytes = fd_form_chunk_row_bytes(&tensor->form);
    size_t bytes = (size_t)c->rows * c->row_bytes;
    if (!store->scratch) {
        store->scratch = calloc(1, sizeof *store->scratch);
        choose_ahead(store);
    }
    if (!store->scratch || (tensor->stored && bytes > store->placeholder_bytes)) {
        void *grown = store->scratch ? calloc(bytes, 1) : NULL;
        if (!grown) return false;
        free(store->placeholder_chunk);
        store->placeholder_chunk = grown;
        store->placeholder_bytes = bytes;
    }
    return true;
}

void fd_chunks_free(fd_store *store) {
    for (int32_t i = 0; i < store->n_tensor; i++) free(store->tensors[i].chunks.address);
    free(store->placeholder_chunk);
    if (!store->scratch) return;
    free(store->scratch->spans);
    free(store->scratch->chunks);
    free(store->scratch);
}

bool fd_store_write_block(const fd_store_tensor *tensor, int32_t pos0, int32_t n, int32_t n_kv, const void *data) {
    hsize_t start[FD_H5_MAX_RANK] = {(hsize_t)pos0}, count[FD_H5_MAX_RANK];
    fd_form_extent(&tensor->form, n, n_kv, count);
    return fd_h5_write_block(tensor->id, fd_memory_type(tensor->form.dtype), 1 + tensor->form.n_dim, start, count,
                             data);
}

/* ---- chunks ---- */

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
static bool allocate(fd_store *store, fd_store_tensor *tensor, int32_t column) {
    fd_store_chunks *c = &tensor->chunks;
    fd_h5_target *target = &store->file->target;
    hsize_t offset[FD_H5_MAX_RANK] = {(hsize_t)c->from};
    if (tensor->form.over_kv) offset[tensor->form.n_dim] = (hsize_t)column * FD_KV_CHUNK;
    target->placing = store->placeholder_chunk;
    target->placed = FD_STORE_NO_CHUNK;
    bool ok = H5Dwrite_chunk(tensor->id, H5P_DEFAULT, 0, offset, (size_t)c->rows * c->row_bytes,
                             store->placeholder_chunk) >= 0;
    target->placing = NULL;
    c->address[column] = target->placed;
    return ok && target->placed != FD_STORE_NO_CHUNK;
}

/* Moves to the chunks whose first row is `from`, in n columns. */
static bool move_to(fd_store_chunks *c, int32_t from, int32_t n) {
    void *address = c->address;
    if (c->from != from) c->n = 0;
    c->from = from;
    bool ok = grow(&address, &c->room, (size_t)n, sizeof *c->address);
    c->address = address;
    for (; ok && c->n < n; c->n++) c->address[c->n] = FD_STORE_NO_CHUNK;
    return ok;
}

/* ---- requests ---- */

/* Rows [pos, end) of the tensor's current chunks, after fill from `fill` on, as the request's next span. */
static bool add_span(fd_store *store, fd_store_tensor *tensor, int32_t fill, int32_t pos, int32_t end) {
    fd_store_chunks *c = &tensor->chunks;
    struct fd_store_scratch *s = store->scratch;
    void *spans = s->spans, *chunks = s->chunks;
    bool ok = grow(&spans, &s->room_spans, s->n_span, sizeof *s->spans) &&
              grow(&chunks, &s->room_chunks, s->n_chunk + (size_t)c->n, sizeof *s->chunks);
    s->spans = spans;
    s->chunks = chunks;
    if (!ok) return false;
    s->spans[s->n_span++] = (fd_write_span){.from = c->from, .fill = fill, .pos = pos, .end = end, .n_column = c->n};
    for (int32_t column = 0; column < c->n; column++) {
        bool fresh = c->address[column] == FD_STORE_NO_CHUNK;
        if (fresh && !allocate(store, tensor, column)) return false;
        s->chunks[s->n_chunk++] = (fd_chunk_address){c->address[column], fresh};
    }
    return true;
}

/* Rows [c->end, pos) were not put: they are fill where chunks have them. *fill: the first of those in pos's own
 * chunk. */
static bool skip_to(fd_store *store, fd_store_tensor *tensor, int32_t pos, int32_t *fill) {
    const fd_store_chunks *c = &tensor->chunks;
    int32_t from = pos - pos % c->rows, next = c->from + c->rows;
    *fill = c->n > 0 && c->from == from ? c->end : from;
    if (c->n == 0 || c->from == from || c->end >= next) return true;
    return add_span(store, tensor, c->end, next, next);
}

static bool submit(fd_store *store, const fd_store_tensor *tensor, const fd_store_rows *rows, size_t n_rows) {
    struct fd_store_scratch *s = store->scratch;
    fd_write_request *r = s->n_span > 0 ? fd_new_write_request(s->n_span, s->n_chunk, n_rows) : NULL;
    bool ok = r || s->n_span == 0;
    if (r) {
        r->target = &store->file->target;
        r->ahead = store->ahead;
        r->form = tensor->form;
        r->row_bytes = tensor->chunks.row_bytes;
        memcpy(r->spans, s->spans, s->n_span * sizeof *r->spans);
        memcpy(r->chunks, s->chunks, s->n_chunk * sizeof *r->chunks);
        if (n_rows > 0) memcpy(r->rows, rows, n_rows * sizeof *rows);
        fd_queue_submit(store->queue, &r->task);
    }
    s->n_span = s->n_chunk = 0;
    return ok;
}

/* Rows [c->end, to) of the tensor's current chunks become fill. */
static bool fill_to(fd_store *store, fd_store_tensor *tensor, int32_t to) {
    fd_store_chunks *c = &tensor->chunks;
    if (c->n == 0 || c->end >= to) return true;
    if (!add_span(store, tensor, c->end, to, to) || !submit(store, tensor, NULL, 0)) return false;
    c->end = to;
    return true;
}

/* Rows that do not follow those before: only HDF5 knows their places, and it takes what chunks hold for written. */
static bool write_through(fd_store *store, fd_store_tensor *tensor, fd_row_iterator at) {
    fd_store_chunks *c = &tensor->chunks;
    bool ok = c->through_hdf5 || fill_to(store, tensor, c->from + c->rows);
    c->through_hdf5 = true;
    ok = fd_store_finish_writes(store) && ok;
    for (int32_t n; ok && !fd_rows_ended(&at); fd_rows_step(&at, n)) {
        const fd_store_rows *rows = &at.rows[at.i];
        size_t row = (size_t)fd_form_lines(&tensor->form) * fd_element_bytes(tensor->form.dtype) *
                     (size_t)(tensor->form.over_kv ? rows->n_kv : 1);
        n = rows->stride == row ? rows->n - at.row : 1; /* at once where no gap lies between them */
        ok = fd_store_write_block(tensor, fd_rows_pos(&at), n, rows->n_kv, fd_rows_data(&at));
    }
    return ok;
}

bool fd_store_put(fd_store *store, fd_store_tensor *tensor, const fd_store_rows *rows, size_t n) {
    fd_store_chunks *c = &tensor->chunks;
    fd_row_iterator at = {.rows = rows, .n = n};
    store->scratch->n_span = store->scratch->n_chunk = 0;
    while (!fd_rows_ended(&at)) {
        int32_t pos = fd_rows_pos(&at), from = pos - pos % c->rows, fill;
        if (pos < c->end || c->through_hdf5) return submit(store, tensor, rows, n) && write_through(store, tensor, at);
        int32_t end = fd_rows_reach(at, from + c->rows);
        int32_t n_column = tensor->form.over_kv ? (end + FD_KV_CHUNK - 1) / FD_KV_CHUNK : 1;
        if (!skip_to(store, tensor, pos, &fill) || !move_to(c, from, n_column) ||
            !add_span(store, tensor, fill, pos, end))
            return false;
        c->end = end;
        fd_rows_step(&at, end - pos);
    }
    return submit(store, tensor, rows, n);
}

bool fd_store_put_fill(fd_store *store, int32_t end) {
    if (store->n_tensor == 0) return true;
    store->scratch->n_span = store->scratch->n_chunk = 0;
    for (int32_t i = 0; i < store->n_tensor; i++) {
        fd_store_tensor *tensor = &store->tensors[i];
        int32_t next = tensor->chunks.from + tensor->chunks.rows;
        if (!fill_to(store, tensor, end < next ? end : next)) return false;
    }
    return true;
}

bool fd_store_finish_writes(fd_store *store) {
    fd_h5_target *target = &store->file->target;
    int error = fd_queue_finish_tasks(store->queue);
    if (target->error == 0) target->error = error;
    return target->error == 0;
}
