/* Rows into the file past HDF5, by the helpers, and by the writer when it has nothing else to do. Their order is free,
 * because none of them counts before the step's row in /steps. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "dumpers/store/writer.h"

/* ---- lists of rows ---- */

bool fd_trace_cursor_ended(const fd_trace_cursor *at) {
    return at->i == at->n;
}

int32_t fd_trace_cursor_pos(const fd_trace_cursor *at) {
    return at->rows[at->i].pos0 + at->row;
}

const char *fd_trace_cursor_data(const fd_trace_cursor *at) {
    return at->rows[at->i].data + (size_t)at->row * at->rows[at->i].stride;
}

void fd_trace_cursor_step(fd_trace_cursor *at, int32_t n) {
    while (n > 0) {
        int32_t left = at->rows[at->i].n - at->row;
        at->row += n;
        if (n < left) return;
        n -= left;
        at->row = 0;
        at->i++;
    }
}

int32_t fd_trace_cursor_reach(fd_trace_cursor at, int32_t limit) {
    int32_t pos = fd_trace_cursor_pos(&at);
    for (; at.i < at.n && fd_trace_cursor_pos(&at) == pos && pos < limit; at.i++, at.row = 0)
        pos += at.rows[at.i].n - at.row;
    return pos < limit ? pos : limit;
}

/* ---- a stretch of the file ---- */

enum {
    PIECES = 256,
    STRETCH = 1 << 20, /* bytes: much beside a system call, little beside a batch */
    MADE = 1 << 18     /* bytes that were made, not shown, in a stretch */
};
_Static_assert(PIECES <= IOV_MAX, "one call writes a stretch");

/* Pieces of memory that lie one behind the other in the file. */
typedef struct stretch {
    fd_h5_target *target; /* its file */
    int error;            /* errno of the first write that failed */
    uint64_t address;
    size_t bytes, made_used;
    bool ahead; /* space may be reserved: not by the program's own threads, which a limit's signal would end */
    int n;
    struct iovec piece[PIECES];
    char *made;
} stretch;

/* The file's lock is held while a write looks for disk space, so it is found ahead, in large pieces. Where it cannot be
 * had, a write says why. */
static void reserve_ahead(fd_h5_target *target, uint64_t begin, uint64_t end) {
    const uint64_t large = 64 << 20, ahead = 32 << 20; /* bytes: of a file that is worth it; at a time */
    uint64_t reserved = atomic_load(&target->reserved);
    if (end < large || end <= reserved) return;
    if (!atomic_compare_exchange_strong(&target->reserved, &reserved, end + ahead)) return; /* another helper does */
    uint64_t from = reserved > begin ? reserved : begin;
    if (fallocate(target->fd, FALLOC_FL_KEEP_SIZE, (off_t)from, (off_t)(end + ahead - from)) != 0)
        atomic_store(&target->reserved, UINT64_MAX); /* no more attempts */
}

static void write_stretch(stretch *s) {
    struct iovec *piece = s->piece;
    int n = s->n;
    if (n > 0 && s->ahead) reserve_ahead(s->target, s->address, s->address + s->bytes);
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

static void add(stretch *s, uint64_t address, const void *data, size_t bytes) {
    if (s->n > 0 && (s->address + s->bytes != address || s->bytes >= STRETCH || s->n == PIECES)) write_stretch(s);
    if (s->n == 0) s->address = address;
    struct iovec *last = &s->piece[s->n > 0 ? s->n - 1 : 0];
    if (s->n > 0 && (const char *)last->iov_base + last->iov_len == data)
        last->iov_len += bytes;
    else
        s->piece[s->n++] = (struct iovec){(void *)(uintptr_t)data, bytes};
    s->bytes += bytes;
}

/* Memory for a piece that is added next; NULL: out of memory, or larger than there is. */
static char *make(stretch *s, size_t bytes) {
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

/* ---- a put ---- */

static void fill(const fd_trace_writer *writer, const fd_node *node, char *to, size_t bytes) {
    size_t size = fd_trace_stored_bytes(writer);
    const void *value = fd_trace_fill_value(node, writer->stored);
    for (size_t i = 0; i < bytes; i += size) memcpy(to + i, value, size);
}

static void add_fill(stretch *s, const fd_trace_writer *writer, const fd_trace_put *put, uint64_t address, int32_t n) {
    for (; n > 0; n--, address += put->row_bytes)
        for (size_t done = 0, part; done < put->row_bytes; done += part) {
            part = put->row_bytes - done < MADE ? put->row_bytes - done : MADE;
            char *to = make(s, part);
            if (!to) {
                s->error = ENOMEM;
                return;
            }
            fill(writer, put->node, to, part);
            add(s, address + done, to, part);
        }
}

static void add_plain(stretch *s, const fd_trace_put *put, const fd_trace_run *run, uint64_t address,
                      fd_trace_cursor at) {
    for (int32_t pos = run->pos, n; pos < run->end; pos += n) {
        const fd_trace_rows *r = &at.rows[at.i];
        n = r->n - at.row < run->end - pos ? r->n - at.row : run->end - pos;
        if (r->stride != put->row_bytes) n = 1;
        add(s, address + (uint64_t)(pos - run->from) * put->row_bytes, fd_trace_cursor_data(&at),
            (size_t)n * put->row_bytes);
        fd_trace_cursor_step(&at, n);
    }
}

/* The keys of one column, of every head of each row. */
static void add_keys(stretch *s, const fd_trace_writer *writer, const fd_trace_put *put, const fd_trace_run *run,
                     int32_t column, uint64_t address, fd_trace_cursor at) {
    size_t size = fd_trace_stored_bytes(writer), cell = FD_KV_CHUNK * size;
    int32_t first = column * FD_KV_CHUNK, n_head = put->node->shape[0];
    for (int32_t pos = run->pos; pos < run->end; pos++, fd_trace_cursor_step(&at, 1)) {
        int32_t have = at.rows[at.i].n_kv, n = have < first                 ? 0
                                               : have - first < FD_KV_CHUNK ? have - first
                                                                            : FD_KV_CHUNK;
        const char *from = fd_trace_cursor_data(&at) + (size_t)first * size;
        for (int32_t head = 0; head < n_head; head++, from += (size_t)have * size) {
            char *to = make(s, cell);
            if (!to) {
                s->error = ENOMEM;
                return;
            }
            if (n > 0) memcpy(to, from, (size_t)n * size);
            if (n < FD_KV_CHUNK) fill(writer, put->node, to + (size_t)n * size, cell - (size_t)n * size);
            add(s, address + (uint64_t)(pos - run->from) * put->row_bytes + (uint64_t)head * cell, to, cell);
        }
    }
}

/* 0, or errno. */
static int write_put(fd_trace_writer *writer, const fd_trace_put *put) {
    stretch s = {.target = &writer->file->target, .ahead = writer->queue.threaded};
    const fd_trace_place_at *place = put->places;
    fd_trace_cursor at = {.rows = put->rows, .n = put->n_row};
    for (size_t i = 0; i < put->n_run && s.error == 0; i++) {
        const fd_trace_run *run = &put->runs[i];
        for (int32_t column = 0; column < run->n_column; column++, place++) {
            int32_t first = place->fresh ? run->from : run->fill;
            add_fill(&s, writer, put, place->address + (uint64_t)(first - run->from) * put->row_bytes,
                     run->pos - first);
            if (put->node->over_kv)
                add_keys(&s, writer, put, run, column, place->address, at);
            else
                add_plain(&s, put, run, place->address, at);
        }
        fd_trace_cursor_step(&at, run->end - run->pos);
    }
    write_stretch(&s);
    free(s.made);
    return s.error;
}

/* ---- the queue ---- */

fd_trace_put *fd_trace_new_put(size_t n_run, size_t n_place, size_t n_row) {
    fd_trace_put *put =
        malloc(sizeof *put + n_run * sizeof *put->runs + n_place * sizeof *put->places + n_row * sizeof *put->rows);
    if (!put) return NULL;
    *put = (fd_trace_put){.n_run = n_run, .n_place = n_place, .n_row = n_row};
    put->rows = (fd_trace_rows *)(void *)(put + 1);
    put->places = (fd_trace_place_at *)(void *)(put->rows + n_row);
    put->runs = (fd_trace_run *)(void *)(put->places + n_place);
    return put;
}

void fd_trace_send(fd_trace_writer *writer, fd_trace_put *put) {
    fd_trace_queue *q = &writer->queue;
    pthread_mutex_lock(&q->lock);
    *(q->last_job ? &q->last_job->next : &q->jobs) = put;
    q->last_job = put;
    if (q->n_sleeping > 0 && q->n_doing < FD_TRACE_MOST_WRITING) pthread_cond_signal(&q->work);
    pthread_mutex_unlock(&q->lock);
}

void fd_trace_do_job(fd_trace_writer *writer) {
    fd_trace_queue *q = &writer->queue;
    fd_trace_put *job = q->jobs;
    q->jobs = job->next;
    if (!q->jobs) q->last_job = NULL;
    q->n_doing++;
    bool dropped = q->job_error != 0;
    pthread_mutex_unlock(&q->lock);
    int error = dropped ? 0 : write_put(writer, job);
    free(job);
    pthread_mutex_lock(&q->lock);
    if (q->job_error == 0) q->job_error = error;
    if (--q->n_doing == 0 && !q->jobs) pthread_cond_signal(&q->jobs_done);
}

bool fd_trace_finish_jobs(fd_trace_writer *writer) {
    fd_trace_queue *q = &writer->queue;
    pthread_mutex_lock(&q->lock);
    while (q->jobs || q->n_doing > 0)
        if (q->jobs)
            fd_trace_do_job(writer);
        else
            pthread_cond_wait(&q->jobs_done, &q->lock);
    if (writer->file->target.error == 0) writer->file->target.error = q->job_error;
    pthread_mutex_unlock(&q->lock);
    return writer->file->target.error == 0;
}
