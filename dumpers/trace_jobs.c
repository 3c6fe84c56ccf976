/* Rows into the file past HDF5: the writer says what belongs where, the helpers write it, and the writer what they have not
 * begun. The order among them is free, because nothing of it counts before the step's row in /steps. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#include "dumpers/trace_writer.h"

/* Bytes of a job: much beside a system call, little beside a batch. */
enum { JOB = 1 << 20 };
_Static_assert(FD_TRACE_JOB_PIECES <= IOV_MAX, "one call writes a job");

/* 0, or errno. Uses the pieces up. */
static int write_job(int fd, fd_trace_job *job) {
    struct iovec *piece = job->piece;
    int n = job->n;
    uint64_t address = job->address;
    while (n > 0) {
        ssize_t written = pwritev(fd, piece, n, (off_t)address);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return written < 0 ? errno : EIO;
        address += (uint64_t)written;
        for (; n > 0 && (size_t)written >= piece->iov_len; piece++, n--) written -= (ssize_t)piece->iov_len;
        if (n == 0) break;
        piece->iov_base = (char *)piece->iov_base + written;
        piece->iov_len -= (size_t)written;
    }
    return 0;
}

void fd_trace_do_job(fd_trace_writer *writer) {
    fd_trace_queue *q = &writer->queue;
    fd_trace_job *job = q->jobs;
    q->jobs = job->next;
    if (!q->jobs) q->last_job = NULL;
    q->n_doing++;
    bool dropped = q->job_error != 0;
    pthread_mutex_unlock(&q->lock);
    int error = dropped ? 0 : write_job(writer->target.fd, job);
    pthread_mutex_lock(&q->lock);
    if (q->job_error == 0) q->job_error = error;
    job->next = q->idle;
    q->idle = job;
    if (--q->n_doing == 0 && !q->jobs) pthread_cond_signal(&q->jobs_done);
}

/* Hands the job that is being filled to the helpers; without any it waits for fd_trace_finish_jobs. */
static void publish(fd_trace_writer *writer) {
    fd_trace_queue *q = &writer->queue;
    fd_trace_job *job = writer->job;
    if (!job) return;
    writer->job = NULL;
    job->next = NULL;
    pthread_mutex_lock(&q->lock);
    *(q->last_job ? &q->last_job->next : &q->jobs) = job;
    q->last_job = job;
    if (q->n_sleeping > 0) pthread_cond_signal(&q->work);
    pthread_mutex_unlock(&q->lock);
}

static fd_trace_job *new_job(fd_trace_writer *writer) {
    fd_trace_queue *q = &writer->queue;
    pthread_mutex_lock(&q->lock);
    fd_trace_job *job = q->idle;
    if (job) q->idle = job->next;
    pthread_mutex_unlock(&q->lock);
    return job ? job : malloc(sizeof *job);
}

bool fd_trace_send(fd_trace_writer *writer, uint64_t address, const void *data, size_t bytes) {
    fd_trace_job *job = writer->job;
    if (job && (job->address + job->bytes != address || job->bytes >= JOB || job->n == FD_TRACE_JOB_PIECES))
        publish(writer);
    if (!writer->job) {
        if (!(job = writer->job = new_job(writer))) return false;
        job->address = address;
        job->bytes = 0;
        job->n = 0;
    }
    struct iovec *last = job->piece + job->n - 1;
    if (job->n > 0 && (const char *)last->iov_base + last->iov_len == data)
        last->iov_len += bytes;
    else
        job->piece[job->n++] = (struct iovec){(void *)(uintptr_t)data, bytes};
    job->bytes += bytes;
    return true;
}

bool fd_trace_finish_jobs(fd_trace_writer *writer) {
    fd_trace_queue *q = &writer->queue;
    publish(writer);
    pthread_mutex_lock(&q->lock);
    while (q->jobs || q->n_doing > 0)
        if (q->jobs)
            fd_trace_do_job(writer);
        else
            pthread_cond_wait(&q->jobs_done, &q->lock);
    if (writer->target.error == 0) writer->target.error = q->job_error;
    pthread_mutex_unlock(&q->lock);
    writer->made_used = 0;
    return writer->target.error == 0;
}

void fd_trace_free_jobs(fd_trace_queue *queue) {
    for (fd_trace_job *next; queue->idle; queue->idle = next) {
        next = queue->idle->next;
        free(queue->idle);
    }
}
