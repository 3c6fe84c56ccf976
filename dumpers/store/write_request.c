#include "dumpers/store/write_request.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* ---- lists of rows ---- */

bool fd_rows_ended(const fd_row_iterator *at) {
    return at->i == at->n;
}

int32_t fd_rows_pos(const fd_row_iterator *at) {
    return at->rows[at->i].pos0 + at->row;
}

const char *fd_rows_data(const fd_row_iterator *at) {
    return at->rows[at->i].data + (size_t)at->row * at->rows[at->i].stride;
}

void fd_rows_step(fd_row_iterator *at, int32_t n) {
    while (n > 0) {
        int32_t left = at->rows[at->i].n - at->row;
        at->row += n;
        if (n < left) return;
        n -= left;
        at->row = 0;
        at->i++;
    }
}

int32_t fd_rows_reach(fd_row_iterator at, int32_t limit) {
    int32_t pos = fd_rows_pos(&at);
    for (; at.i < at.n && fd_rows_pos(&at) == pos && pos < limit; at.i++, at.row = 0) pos += at.rows[at.i].n - at.row;
    return pos < limit ? pos : limit;
}

/* ---- a stretch of the file ---- */

enum {
    PIECES = 256,
    STRETCH = 1 << 20, /* bytes: many for a system call, few for a batch */
    MADE = 1 << 18     /* bytes of fill and of gathered keys in a stretch */
};
_Static_assert(PIECES <= IOV_MAX, "one call writes a stretch");

/* Pieces of memory that follow one another in the file. */
typedef struct stretch {
    fd_h5_target *target; /* its file */
    int error;            /* errno of the first write that failed */
    uint64_t address;
    size_t bytes, made_used;
    fd_write_ahead ahead;
    int n;
    struct iovec piece[PIECES];
    char *made;
} stretch;

static void take_ahead(const stretch *s) {
    fd_disk_ahead *ahead = &s->target->ahead;
    uint64_t end = s->address + s->bytes;
    if (s->ahead == FD_AHEAD_PAGES && fd_disk_ahead_make_pages(ahead, s->target->fd, end)) return;
    if (s->ahead != FD_AHEAD_NONE) fd_disk_ahead_reserve(ahead, s->target->fd, s->address, end);
}

static void write_stretch(stretch *s) {
    struct iovec *piece = s->piece;
    int n = s->n;
    if (n > 0 && s->error == 0) take_ahead(s);
    while (n > 0 && s->error == 0) {
        ssize_t written = pwritev(s->target->fd, piece, n, (off_t)s->address);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) {
            s->error = written < 0 ? errno : EIO;
            break;
        }
        s->address += (uint64_t)written;
        for (; n > 0 && (size_t)written >= piece->iov_len; piece++, n--) written -= (ssize_t)piece->iov_len;
        if (n == 0) break;
        piece->iov_base = (char *)piece->iov_base + written;
        piece->iov_len -= (size_t)written;
    }
    s->n = 0;
    s->bytes = 0;
}

static void add_piece(stretch *s, uint64_t address, const void *data, size_t bytes) {
    if (s->n > 0 && (s->address + s->bytes != address || s->bytes >= STRETCH || s->n == PIECES)) write_stretch(s);
    if (s->n == 0) s->address = address;
    struct iovec *last = &s->piece[s->n > 0 ? s->n - 1 : 0];
    if (s->n > 0 && (const char *)last->iov_base + last->iov_len == data)
        last->iov_len += bytes;
    else
        s->piece[s->n++] = (struct iovec){(void *)(uintptr_t)data, bytes};
    s->bytes += bytes;
}

/* Memory for the piece that is added next; NULL: out of memory, or it is too large. */
static char *make_piece(stretch *s, size_t bytes) {
    if (!s->made && !(s->made = malloc(MADE))) return NULL;
    if (bytes > MADE) return NULL;
    if (s->made_used + bytes > MADE) {
        write_stretch(s);
        s->made_used = 0;
    }
    char *at = s->made + s->made_used;
    s->made_used += bytes;
    return at;
}

/* ---- a request ---- */

static void fill_elements(const fd_write_request *r, char *to, size_t bytes) {
    size_t size = fd_element_bytes(r->form.dtype);
    const void *value = fd_form_fill(&r->form);
    for (size_t i = 0; i < bytes; i += size) memcpy(to + i, value, size);
}

static void add_fill(stretch *s, const fd_write_request *r, uint64_t address, int32_t n) {
    for (; n > 0; n--, address += r->row_bytes)
        for (size_t done = 0, part; done < r->row_bytes; done += part) {
            part = r->row_bytes - done < MADE ? r->row_bytes - done : MADE;
            char *to = make_piece(s, part);
            if (!to) {
                s->error = ENOMEM;
                return;
            }
            fill_elements(r, to, part);
            add_piece(s, address + done, to, part);
        }
}

static void add_rows(stretch *s, const fd_write_request *r, const fd_write_span *span, uint64_t address,
                     fd_row_iterator at) {
    for (int32_t pos = span->pos, n; pos < span->end; pos += n) {
        const fd_store_rows *rows = &at.rows[at.i];
        n = rows->n - at.row < span->end - pos ? rows->n - at.row : span->end - pos;
        if (rows->stride != r->row_bytes) n = 1;
        add_piece(s, address + (uint64_t)(pos - span->from) * r->row_bytes, fd_rows_data(&at),
                  (size_t)n * r->row_bytes);
        fd_rows_step(&at, n);
    }
}

/* The keys of one column, of every head of each row. */
static void add_keys(stretch *s, const fd_write_request *r, const fd_write_span *span, int32_t column, uint64_t address,
                     fd_row_iterator at) {
    size_t size = fd_element_bytes(r->form.dtype), cell = FD_KV_CHUNK * size;
    int32_t first = column * FD_KV_CHUNK;
    int64_t n_line = fd_form_lines(&r->form);
    for (int32_t pos = span->pos; pos < span->end; pos++, fd_rows_step(&at, 1)) {
        int32_t have = at.rows[at.i].n_kv, n = have - first < FD_KV_CHUNK ? have - first : FD_KV_CHUNK;
        if (n < 0) n = 0;
        const char *from = fd_rows_data(&at) + (size_t)first * size;
        for (int64_t line = 0; line < n_line; line++, from += (size_t)have * size) {
            char *to = make_piece(s, cell);
            if (!to) {
                s->error = ENOMEM;
                return;
            }
            if (n > 0) memcpy(to, from, (size_t)n * size);
            if (n < FD_KV_CHUNK) fill_elements(r, to + (size_t)n * size, cell - (size_t)n * size);
            add_piece(s, address + (uint64_t)(pos - span->from) * r->row_bytes + (uint64_t)line * cell, to, cell);
        }
    }
}

static void write_spans(stretch *s, const fd_write_request *r) {
    const fd_chunk_address *chunk = r->chunks;
    fd_row_iterator at = {.rows = r->rows, .n = r->n_rows};
    for (size_t i = 0; i < r->n_span && s->error == 0; i++) {
        const fd_write_span *span = &r->spans[i];
        for (int32_t column = 0; column < span->n_column; column++, chunk++) {
            int32_t first = chunk->fresh ? span->from : span->fill;
            add_fill(s, r, chunk->address + (uint64_t)(first - span->from) * r->row_bytes, span->pos - first);
            if (r->form.over_kv)
                add_keys(s, r, span, column, chunk->address, at);
            else
                add_rows(s, r, span, chunk->address, at);
        }
        fd_rows_step(&at, span->end - span->pos);
    }
    write_stretch(s);
}

static int run_request(fd_queue_task *task, bool dropped) {
    fd_write_request *r = (fd_write_request *)task; /* its first member */
    stretch s = {.target = r->target, .ahead = r->ahead};
    if (!dropped) write_spans(&s, r);
    free(s.made);
    free(r);
    return s.error;
}

fd_write_request *fd_new_write_request(size_t n_span, size_t n_chunk, size_t n_rows) {
    fd_write_request *r =
        malloc(sizeof *r + n_span * sizeof *r->spans + n_chunk * sizeof *r->chunks + n_rows * sizeof *r->rows);
    if (!r) return NULL;
    *r = (fd_write_request){.task.run = run_request, .n_span = n_span, .n_chunk = n_chunk, .n_rows = n_rows};
    r->rows = (fd_store_rows *)(void *)(r + 1);
    r->chunks = (fd_chunk_address *)(void *)(r->rows + n_rows);
    r->spans = (fd_write_span *)(void *)(r->chunks + n_chunk);
    return r;
}
