#include "engine/upload.h"

#include <omp.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/pack_weight.h"
#include "kernels/formats/pack.h"
#include "model/gguf/quant.h"

enum {
    PIECE_BYTES =
        2 << 20, /* long enough for a copy at the bus's full rate, short enough that a buffer stays in a core's L2 */
    BUFFERS = 2, /* a thread: one is filled, one is copied */
    MAX_THREADS = 16,
    PIECES_AHEAD = 64, /* the kernel is asked for the file's pages this far ahead of a thread */
};

typedef struct upload {
    const fd_upload_piece *pieces;
    int64_t n_piece;
    _Atomic int64_t next; /* first piece that nobody has fetched */
    _Atomic bool failed;
    int32_t device;
    cudaStream_t stream;
    fd_block pinned; /* [n_thread, BUFFERS, buffer_bytes] */
    size_t buffer_bytes;
    int n_thread;
    fd_error *err; /* of the first thread that fails */
} upload;

size_t fd_upload_row_bytes(const fd_weight *w, bool as_vector) {
    return as_vector ? sizeof(float) * (size_t)w->n_col : (size_t)fd_packed_row_bytes(w->dtype, w->n_col);
}

int64_t fd_upload_piece_rows(const fd_weight *w, bool as_vector) {
    int64_t fit = (int64_t)(PIECE_BYTES / fd_upload_row_bytes(w, as_vector));
    return fit < 1 ? 1 : fit < w->n_row ? fit : w->n_row;
}

/* Advice about the mapped file's pages; where it is refused, pages come one fault at a time, as without it. */
static void advise(const fd_upload_piece *p, int advice) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)p->from;
    uintptr_t end = from + (uintptr_t)(p->n_row * p->stride);
    from -= from % page;
    (void)madvise((void *)from, end - from, advice);
}

static void fill(const fd_upload_piece *p, char *to) {
    const fd_weight *w = p->weight;
    size_t row_bytes = fd_upload_row_bytes(w, p->as_vector), file_bytes = (size_t)p->stride;
    const char *from = p->from;
#ifdef MADV_POPULATE_READ
    advise(p, MADV_POPULATE_READ); /* one call instead of a fault for every few pages */
#endif
    bool as_it_is = !p->as_vector && row_bytes == file_bytes && fd_packed_scale_offset(w->dtype, w->n_col) == 0 &&
                    fd_dtype_get(w->dtype)->block_elements == 1 && fd_packed_type(w->dtype) == w->dtype;
    if (as_it_is) {
        memcpy(to, from, row_bytes * (size_t)p->n_row);
        return;
    }
    for (int64_t r = 0; r < p->n_row; r++, from += file_bytes, to += row_bytes) {
        if (p->as_vector)
            fd_dequantize_row(w->dtype, from, (float *)(void *)to, w->n_col);
        else
            fd_pack_weight_row(w->dtype, w->n_col, from, to);
    }
}

static fd_code send(upload *u, const fd_upload_piece *p, char *buffer, cudaEvent_t copied, fd_error *err) {
    FD_TRY(fd_cuda_check(cudaEventSynchronize(copied), "upload of weights", err)); /* the buffer's last copy */
    fill(p, buffer);
    size_t size = fd_upload_row_bytes(p->weight, p->as_vector) * (size_t)p->n_row;
    FD_TRY(fd_cuda_check(cudaMemcpyAsync(p->to, buffer, size, cudaMemcpyHostToDevice, u->stream), "upload of weights",
                         err));
    return fd_cuda_check(cudaEventRecord(copied, u->stream), "upload of weights", err);
}

static fd_code work(upload *u, char *buffers, fd_error *err) {
    cudaEvent_t copied[BUFFERS] = {0};
    fd_code code = fd_cuda_check(cudaSetDevice(u->device), "device", err);
    for (int b = 0; b < BUFFERS && code == FD_OK; b++)
        code = fd_cuda_check(cudaEventCreateWithFlags(&copied[b], cudaEventDisableTiming), "event", err);
    for (int64_t turn = 0; code == FD_OK && !atomic_load(&u->failed); turn++) {
        int64_t i = atomic_fetch_add(&u->next, 1);
        if (i >= u->n_piece) break;
        if (i + PIECES_AHEAD < u->n_piece) advise(&u->pieces[i + PIECES_AHEAD], MADV_WILLNEED);
        code =
            send(u, &u->pieces[i], buffers + (size_t)(turn % BUFFERS) * u->buffer_bytes, copied[turn % BUFFERS], err);
    }
    for (int b = 0; b < BUFFERS; b++)
        if (copied[b]) (void)cudaEventDestroy(copied[b]);
    return code;
}

static void run_threads(upload *u) {
#pragma omp parallel num_threads(u->n_thread) default(none) shared(u)
    {
        fd_error err = {0};
        char *buffers = (char *)u->pinned.data + (size_t)omp_get_thread_num() * BUFFERS * u->buffer_bytes;
        if (work(u, buffers, &err) != FD_OK && !atomic_exchange(&u->failed, true)) *u->err = err;
    }
}

fd_code fd_upload(const fd_upload_piece *pieces, int64_t n_piece, int32_t device, cudaStream_t stream, fd_error *err) {
    upload u = {.pieces = pieces, .n_piece = n_piece, .device = device, .stream = stream, .err = err};
    for (int64_t i = 0; i < n_piece; i++) {
        size_t size = fd_upload_row_bytes(pieces[i].weight, pieces[i].as_vector) * (size_t)pieces[i].n_row;
        if (size > u.buffer_bytes) u.buffer_bytes = size;
    }
    if (n_piece == 0) return FD_OK;
    u.buffer_bytes = fd_align(u.buffer_bytes);
    u.n_thread = omp_get_max_threads() < MAX_THREADS ? omp_get_max_threads() : MAX_THREADS;
    if (u.n_thread > n_piece) u.n_thread = (int)n_piece;
    FD_TRY(fd_pinned_reserve(&u.pinned, (size_t)u.n_thread * BUFFERS * u.buffer_bytes, "uploading weights", err));
    run_threads(&u);
    fd_code code = u.failed ? err->code : FD_OK;
    cudaError_t through = cudaStreamSynchronize(stream);
    if (code == FD_OK) code = fd_cuda_check(through, "upload of weights", err);
    fd_pinned_free(&u.pinned);
    return code;
}
