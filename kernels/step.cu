/* The persistent decode step: the kernel, and the list of ops that it walks through. */
#include "kernels/step.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/embed.cuh"
#include "kernels/launch.cuh"
#include "kernels/step_attention.cuh"
#include "kernels/step_matvec.cuh"
#include "kernels/step_op.cuh"
#include "kernels/step_stream.cuh"

struct step_args {
    const step_op *ops;
    int n_op, token, pos;
    unsigned *arrived; /* [2] blocks that came to a barrier of the grid; that have ended. 0 between launches */
};

/* What the block's dynamic shared memory holds besides x, which comes last. */
struct step_shared {
    unsigned char ring[STEP_RING_BYTES];
    uint64_t barriers[STEP_WARPS * STEP_SLOTS];
    step_op ops[STEP_WINDOW];
};

/* Op `at` to its place in the window, without waiting. */
__device__ __forceinline__ void step_fetch_op(const step_args &a, step_op *window, int at) {
    constexpr int words = (int)sizeof(step_op) / 16;
    if (at < a.n_op && (int)threadIdx.x < words)
        fd_copy_async16((float *)(window + at % STEP_WINDOW) + 4 * threadIdx.x,
                        (const float *)(a.ops + at) + 4 * threadIdx.x, true);
}

__device__ __forceinline__ void step_arrive(const step_args &a) {
    __syncthreads();
    if (threadIdx.x == 0) fd_add_release(a.arrived);
}

/* `round` counts the grid's barriers. */
__device__ __forceinline__ void step_wait(const step_args &a, unsigned round) {
    if (threadIdx.x == 0) {
        while (fd_load_acquire(a.arrived) < round * gridDim.x) {}
    }
    __syncthreads();
}

__device__ __forceinline__ void step_embed_op(const step_op &op, int token) {
    if (blockIdx.x != 0) return;
    const step_embed &e = op.embed;
    const uint8_t *row = e.table + token * e.row_bytes;
    switch (op.dtype) {
    case FD_F32: fd_embed_row<fd_lane_format<FD_F32, 8>>(row, e.scale_offset, e.n_col, e.out); break;
    case FD_F16: fd_embed_row<fd_lane_format<FD_F16, 8>>(row, e.scale_offset, e.n_col, e.out); break;
    case FD_BF16: fd_embed_row<fd_lane_format<FD_BF16, 8>>(row, e.scale_offset, e.n_col, e.out); break;
    case FD_Q8_0: fd_embed_row<fd_lane_format<FD_Q8_0, 8>>(row, e.scale_offset, e.n_col, e.out); break;
    case FD_Q4_0: fd_embed_row<fd_lane_format<FD_Q4_0, 8>>(row, e.scale_offset, e.n_col, e.out); break;
    case FD_Q4_K: fd_embed_row<fd_lane_format<FD_Q4_K, 8>>(row, e.scale_offset, e.n_col, e.out); break;
    case FD_Q6_K: fd_embed_row<fd_lane_format<FD_Q6_K, 8>>(row, e.scale_offset, e.n_col, e.out); break;
    }
}

__global__ void __launch_bounds__(STEP_THREADS, 1) decode_step(const __grid_constant__ step_args a) {
    step_shared &shared = *(step_shared *)fd_shared_floats();
    float *xs = (float *)(&shared + 1);
    constexpr int ahead = STEP_WINDOW - 1;
    for (int i = 0; i < ahead; i++) step_fetch_op(a, shared.ops, i);
    if (threadIdx.x < STEP_WARPS * STEP_SLOTS)
        fd_barrier_init((uint32_t)__cvta_generic_to_shared(shared.barriers + threadIdx.x));
    fd_copy_async_wait();
    __syncthreads();

    step_stream stream;
    step_stream_begin(stream, shared.ops, shared.ring, shared.barriers);
    step_tasks tasks = {};
    unsigned round = 0;
    for (int at = 0; at < a.n_op; at++) {
        const step_op &op = shared.ops[at % STEP_WINDOW];
        /* The op before `at` is through in the whole block: its place is free for another. */
        step_fetch_op(a, shared.ops, at + ahead);
        const int limit = at + ahead < a.n_op ? at + ahead : a.n_op;
        step_fill(stream, limit);
        step_enter(tasks, op);
        step_norm norm;
        if (op.kind == STEP_MATVEC && !op.matvec.keep_x) step_load_norm(op.matvec, norm);
        if (op.wait) step_wait(a, round);

        if (op.kind == STEP_MATVEC)
            step_matvec_op(op, norm, tasks, stream, shared.ring, xs, limit);
        else if (op.kind == STEP_EMBED)
            step_embed_op(op, a.token);
        else
            step_attention_op(op.attention, a.pos, xs, [&]() {
                step_arrive(a);
                step_wait(a, ++round);
            });
        step_leave(tasks);

        fd_copy_async_wait();
        if (at + 1 < a.n_op && shared.ops[(at + 1) % STEP_WINDOW].wait) {
            step_arrive(a);
            round++;
        } else {
            __syncthreads();
        }
    }
    /* Who ends last has seen all pass every barrier. */
    if (threadIdx.x == 0 && atomicAdd(a.arrived + 1, 1u) == gridDim.x - 1) {
        a.arrived[0] = 0;
        a.arrived[1] = 0;
    }
}

/* ---- the list ---- */

enum { TOUCHED = 64 };

struct fd_step {
    step_op *host;
    void *device;
    unsigned *arrived;
    int32_t n_op, max_op, n_sm, positions, x_floats;
    size_t max_shared, shared;
    /* What has been read and written since the last barrier of the grid. */
    const void *read[TOUCHED], *written[TOUCHED];
    int32_t n_read, n_written;
    const step_matvec *x_of; /* whose x is in shared memory; NULL none */
    uint32_t x_dtype;
};

fd_code fd_step_new(const fd_queue *queue, int32_t max_op, fd_step **out, fd_error *err) {
    *out = nullptr;
    int device = 0, major = 0, cooperative = 0;
    FD_TRY(fd_cuda_check(cudaGetDevice(&device), "device", err));
    FD_TRY(fd_cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "device", err));
    FD_TRY(fd_cuda_check(cudaDeviceGetAttribute(&cooperative, cudaDevAttrCooperativeLaunch, device), "device", err));
    if (major < 9 || !cooperative)
        return fd_fail(err, FD_ERR_UNSUPPORTED, "persistent step: compute capability %d, expected 9 or more", major);
    fd_step *step = (fd_step *)calloc(1, sizeof *step);
    if (step) step->host = (step_op *)calloc((size_t)max_op + 1, sizeof *step->host);
    if (!step || !step->host) {
        fd_step_free(step);
        return fd_fail(err, FD_ERR_MEMORY, "persistent step: out of memory for %d ops", max_op);
    }
    step->max_op = max_op;
    step->n_sm = queue->n_sm;
    step->max_shared = queue->max_shared;
    step->x_floats = STEP_MIN_X;
    step->positions = INT32_MAX;
    *out = step;
    return FD_OK;
}

void fd_step_free(fd_step *step) {
    if (!step) return;
    if (step->device) (void)cudaFree(step->device);
    free(step->host);
    free(step);
}

static bool touches(const void *const *list, int n, const void *what) {
    for (int i = 0; i < n; i++)
        if (list[i] == what) return true;
    return false;
}

/* Whether an op that reads and writes these must wait for the ops since the last barrier; remembers them. */
static bool must_wait(fd_step *step, const void *const *read, int n_read, const void *const *written, int n_written) {
    bool wait = step->n_read + n_read > TOUCHED || step->n_written + n_written > TOUCHED;
    for (int i = 0; i < n_read; i++) wait = wait || touches(step->written, step->n_written, read[i]);
    for (int i = 0; i < n_written; i++)
        wait = wait || touches(step->written, step->n_written, written[i]) ||
               touches(step->read, step->n_read, written[i]);
    if (wait) step->n_read = step->n_written = 0;
    for (int i = 0; i < n_read; i++) step->read[step->n_read++] = read[i];
    for (int i = 0; i < n_written; i++) step->written[step->n_written++] = written[i];
    return wait;
}

static fd_code next_op(fd_step *step, step_op **out, fd_error *err) {
    if (step->n_op >= step->max_op)
        return fd_fail(err, FD_ERR_INPUT, "persistent step: more than %d ops", step->max_op);
    *out = &step->host[step->n_op++];
    return FD_OK;
}

fd_code fd_step_add_embed(fd_step *step, const fd_device_matrix *table, float *out, fd_error *err) {
    step_op *op = nullptr;
    if (!fd_can_pack(table->dtype))
        return fd_fail(err, FD_ERR_UNSUPPORTED, "persistent step: embedding of type %u", (unsigned)table->dtype);
    FD_TRY(next_op(step, &op, err));
    op->kind = STEP_EMBED;
    op->dtype = table->dtype;
    op->embed = {(const uint8_t *)table->data, out, table->row_bytes, table->scale_offset, table->n_col};
    const void *written[] = {out};
    op->wait = must_wait(step, nullptr, 0, written, 1);
    return FD_OK;
}

fd_code fd_step_add_matvec(fd_step *step, const fd_matvec *in, fd_error *err) {
    const fd_device_matrix *first = &in->part[0].weight;
    int64_t n_row = 0;
    for (int i = 0; i < in->n_part; i++) n_row += in->part[i].weight.n_row;
    if (in->n_tok != 1 || in->n_part < 1 || in->n_part > FD_MATVEC_PARTS || first->n_col % 64 != 0 ||
        n_row > INT32_MAX / step->n_sm || first->row_bytes > INT32_MAX ||
        step_slice_of(first->dtype, 1).unit_bytes == 0 || (in->norm_weight && first->n_col > STEP_MAX_NORM))
        return fd_fail(err, FD_ERR_UNSUPPORTED, "persistent step: %lld rows of %lld columns of type %u, %d tokens",
                       (long long)n_row, (long long)first->n_col, (unsigned)first->dtype, in->n_tok);
    step_op *op = nullptr;
    FD_TRY(next_op(step, &op, err));
    op->kind = STEP_MATVEC;
    op->dtype = first->dtype;
    step_matvec *m = &op->matvec;
    const void *read[1 + FD_MATVEC_PARTS] = {in->x}, *written[FD_MATVEC_PARTS];
    int n_read = 1, n_written = 0;
    for (int i = 0; i < in->n_part; i++) {
        const fd_matvec_part *part = &in->part[i];
        m->part[i] = {(const uint8_t *)part->weight.data, part->bias, part->residual, part->out,
                      (int32_t)part->weight.n_row,        0};
        if (part->residual) read[n_read++] = part->residual;
        if (part->out) written[n_written++] = part->out;
    }
    m->x = in->x;
    m->norm_weight = in->norm_weight;
    m->norm_eps = in->norm_eps;
    m->n_col = (int32_t)first->n_col;
    m->row_bytes = (int32_t)first->row_bytes;
    m->scale_offset = (int32_t)first->scale_offset;
    m->pair = in->silu_pair ? 2 : 1;
    m->share = (int32_t)(n_row / m->pair / step->n_sm);
    m->extra = (int32_t)(n_row / m->pair % step->n_sm);
    /* Few rows: as many warps as there are. Many: a lane reads x once for several rows. */
    const int64_t rows = n_row / step->n_sm;
    if (step_has_blocks(op->dtype))
        m->task_rows = rows < STEP_MANY_ROWS ? 4 : 8;
    else
        m->task_rows = rows < STEP_FEW_ROWS && m->pair == 1 ? 1 : 4;
    const step_slice slice = step_slice_of(op->dtype, m->task_rows);
    m->n_unit = (m->n_col + slice.elements - 1) / slice.elements;
    m->unit_bytes = (uint16_t)slice.unit_bytes;
    m->scale_bytes = (uint16_t)slice.scale_bytes;
    m->slice_units = (uint16_t)slice.units;
    op->wait = must_wait(step, read, n_read, written, n_written);
    m->keep_x = !op->wait && step->x_of && step->x_of->x == m->x && step->x_of->n_col == m->n_col &&
                step->x_of->norm_weight == m->norm_weight && step->x_of->norm_eps == m->norm_eps &&
                step_has_blocks(step->x_dtype) == step_has_blocks(op->dtype);
    step->x_of = m;
    step->x_dtype = op->dtype;
    if (step->x_floats < m->n_col) step->x_floats = m->n_col;
    return FD_OK;
}

fd_code fd_step_add_attention(fd_step *step, const fd_attn_decode *in, fd_error *err) {
    const int sharing = in->n_head / in->n_head_kv, width = in->head_dim <= 64 ? 64 : in->head_dim <= 128 ? 128 : 256;
    if (in->head_dim > FD_ATTENTION_MAX_HEAD_DIM || (sharing + 1) * width > STEP_MIN_X)
        return fd_fail(err, FD_ERR_UNSUPPORTED, "persistent step: %d heads of %d elements over %d", in->n_head,
                       in->head_dim, in->n_head_kv);
    step_op *op = nullptr;
    FD_TRY(next_op(step, &op, err));
    op->kind = STEP_ATTENTION;
    op->attention = *in;
    const void *read[] = {in->q, in->k, in->v}, *written[] = {in->out, in->scratch, in->cache_k, in->cache_v};
    op->wait = must_wait(step, read, 3, written, 4);
    step->x_of = nullptr;
    return FD_OK;
}

fd_code fd_step_finish(fd_step *step, fd_error *err) {
    cudaFuncAttributes kernel;
    FD_TRY(fd_cuda_check(cudaFuncGetAttributes(&kernel, decode_step), "the decode step", err));
    step->shared = sizeof(step_shared) + sizeof(float) * (size_t)step->x_floats;
    if (step->shared + kernel.sharedSizeBytes > step->max_shared)
        return fd_fail(err, FD_ERR_UNSUPPORTED, "persistent step: %zu bytes of shared memory, the device gives %zu",
                       step->shared, step->max_shared);
    /* Softmax and mix keep the head's scores beside a few scalars. */
    step->positions = step->x_floats - 2 * STEP_WARPS;
    const size_t size = sizeof *step->host * (size_t)step->n_op;
    FD_TRY(fd_cuda_check(cudaMalloc(&step->device, size + 2 * sizeof *step->arrived), "the decode step", err));
    step->arrived = (unsigned *)((char *)step->device + size);
    FD_TRY(fd_cuda_check(cudaMemcpy(step->device, step->host, size, cudaMemcpyHostToDevice), "the decode step", err));
    FD_TRY(fd_cuda_check(cudaMemset(step->arrived, 0, 2 * sizeof *step->arrived), "the decode step", err));
    return fd_cuda_check(
        cudaFuncSetAttribute(decode_step, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)step->shared),
        "the decode step", err);
}

int32_t fd_step_positions(const fd_step *step) {
    return step->positions;
}

fd_code fd_launch_step(const fd_queue *queue, const fd_step *step, int32_t token, int32_t pos, fd_error *err) {
    if (!step->device || pos < 0 || pos >= step->positions)
        return fd_fail(err, FD_ERR_INPUT, "kernel decode_step: position %d of %d", pos, step->positions);
    step_args args = {(const step_op *)step->device, step->n_op, token, pos, step->arrived};
    cudaLaunchAttribute together = {};
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)step->n_sm);
    config.blockDim = dim3(STEP_THREADS);
    config.dynamicSmemBytes = step->shared;
    config.stream = queue->stream;
    config.attrs = &together;
    config.numAttrs = 1;
    FD_TRY(fd_cuda_check(cudaLaunchKernelEx(&config, decode_step, args), "decode_step", err));
    return fd_cuda_check(cudaGetLastError(), "decode_step", err);
}
