/* A warp's stream of weights: its share of every matrix-vector op, in order, through a ring of slots in shared memory.
 *
 * Rows of an op go to blocks in equal shares, a block's rows in tasks of 1, 4 or 8 rows to its warps in turn; the turn
 * goes on from op to op, so that ops of few rows do not all fall to the same warps. The warp that uses a slot refills
 * it: no other thread is asked. */
#ifndef FD_KERNELS_STEP_STREAM_CUH
#define FD_KERNELS_STEP_STREAM_CUH

#include "kernels/device.cuh"
#include "kernels/step_op.cuh"

__device__ __forceinline__ int step_shift(int task_rows) {
    return task_rows == 8 ? 3 : task_rows == 4 ? 2 : 0;
}

/* Which tasks of an op are the warp's. */
struct step_tasks {
    int first;         /* the block's tasks before this op, modulo the warps */
    int row0, row_end; /* the block's rows */
    int n_task;        /* of the block; 0 for other ops */
    int task;          /* the warp's next */
};

__device__ __forceinline__ void step_enter(step_tasks &t, const step_op &op) {
    t.n_task = 0;
    if (op.kind == STEP_MATVEC) {
        const step_matvec &m = op.matvec;
        const int block = (int)blockIdx.x, more = block < m.extra;
        t.row0 = (block * m.share + (more ? block : m.extra)) * m.pair;
        t.row_end = t.row0 + (m.share + more) * m.pair;
        /* 1, 4 or 8 rows a task: shifts by 0, 2 or 3. */
        t.n_task = (t.row_end - t.row0 + m.task_rows - 1) >> step_shift(m.task_rows);
    }
    t.task = ((int)threadIdx.x / 32 - t.first) & (STEP_WARPS - 1);
}

__device__ __forceinline__ void step_leave(step_tasks &t) {
    t.first = (t.first + t.n_task) & (STEP_WARPS - 1);
}

/* Where row `at` of all the parts lies. */
__device__ __forceinline__ int step_row_of(const step_matvec &m, int at, int *part) {
    *part = 0;
    if (m.pair == 2) {
        *part = at & 1;
        return at >> 1;
    }
#pragma unroll
    for (int i = 0; i < FD_MATVEC_PARTS - 1; i++)
        if (*part == i && at >= m.part[i].n_row) {
            at -= m.part[i].n_row;
            *part = i + 1;
        }
    return at;
}

/* Slots are counted without end; slot n lies at n modulo STEP_SLOTS. What is known of the op whose weights come next is
 * kept in registers: a warp that has used a slot has little time to fill it again. */
struct step_stream {
    const step_op *ops;       /* shared, the window */
    uint32_t slots, barriers; /* shared addresses of the warp's */
    unsigned head, tail;      /* filled (or on their way), used */
    unsigned phases;          /* bit n: which phase of slot n's barrier is to be waited for */
    int op;                   /* whose weights come next */
    bool entered;             /* and all of what follows is of that op */
    step_tasks tasks;
    int n_unit, unit; /* first of the next slice; 0: the task begins */
    int slice_units, unit_bytes, scale_bytes, scale_offset, row_bytes, task_rows;
    const uint8_t *row[2]; /* where the lane's share of its rows of the task begins */
    uint64_t policy;       /* weights leave L2 before anything else does */
};

__device__ __forceinline__ void step_stream_begin(step_stream &s, const step_op *ops, unsigned char *slots,
                                                  uint64_t *barriers) {
    const int warp = (int)threadIdx.x / 32;
    s.ops = ops;
    s.slots = (uint32_t)__cvta_generic_to_shared(slots) + warp * STEP_SLOTS * STEP_SLOT_BYTES;
    s.barriers = (uint32_t)__cvta_generic_to_shared(barriers) + warp * STEP_SLOTS * 8;
    s.head = s.tail = s.phases = 0;
    s.op = 0;
    s.unit = 0;
    s.tasks.first = 0;
    s.entered = false;
    s.policy = fd_policy_evict_first();
}

/* The lane's bytes of one row: `bytes` of units and `scale_bytes` of scales, LANES lanes side by side. */
template <int LANES>
__device__ __forceinline__ void step_copy_row(uint32_t to, const uint8_t *from, int own, int bytes, uint64_t policy) {
#pragma unroll
    for (int i = 0; i < STEP_COPIES; i++)
        if (own + i * LANES * 16 < bytes) fd_copy_async16_once(to + i * LANES * 16, from + i * LANES * 16, policy);
}

/* Copies the next slice to its slot: all lanes a row of its own, or eight lanes a row (or two). */
__device__ __forceinline__ void step_copy_slice(step_stream &s) {
    const unsigned slot = s.head++ % STEP_SLOTS;
    const int lane = (int)threadIdx.x % 32, group = s.task_rows == 1 ? 0 : lane / 8;
    const int own = (s.task_rows == 1 ? lane : lane % 8) * 16;
    const int left = s.n_unit - s.unit, n = left < s.slice_units ? left : s.slice_units, bytes = n * s.unit_bytes;
    const int first = s.tasks.row0 + s.tasks.task * s.task_rows + group;
    if (s.unit == 0) {
        const step_matvec &m = s.ops[s.op % STEP_WINDOW].matvec;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int part;
            const int at = first + 4 * r < s.tasks.row_end ? first + 4 * r : s.tasks.row_end - 1;
            const int row = step_row_of(m, at, &part);
            s.row[r] = m.part[part].data + (int64_t)row * s.row_bytes + own;
        }
    }
    const int stride = s.task_rows == 1 ? 0 : s.task_rows == 4 ? STEP_SLOT_BYTES / 4 : STEP_SLOT_BYTES / 8;
    const uint32_t to = s.slots + slot * STEP_SLOT_BYTES + (uint32_t)(group * stride + own);
    if (s.task_rows == 1)
        step_copy_row<32>(to, s.row[0] + s.unit * s.unit_bytes, own, bytes, s.policy);
    else
        step_copy_row<8>(to, s.row[0] + s.unit * s.unit_bytes, own, bytes, s.policy);
    if (s.task_rows == 8) step_copy_row<8>(to + 4 * stride, s.row[1] + s.unit * s.unit_bytes, own, bytes, s.policy);
    if (s.scale_bytes > 0) {
        const int from = s.unit * s.scale_bytes & ~15, end = ((s.unit + n) * s.scale_bytes + 15) & ~15;
        const uint32_t at = to + s.slice_units * s.unit_bytes;
        if (own < end - from) {
            fd_copy_async16_once(at, s.row[0] + s.scale_offset + from, s.policy);
            if (s.task_rows == 8) fd_copy_async16_once(at + 4 * stride, s.row[1] + s.scale_offset + from, s.policy);
        }
    }
    fd_barrier_arrive_copied(s.barriers + slot * 8);
    s.unit += n;
    if (s.unit >= s.n_unit) {
        s.unit = 0;
        s.tasks.task += STEP_WARPS;
    }
}

/* Fills the free slots with what comes next, no further than op `limit` - 1. */
__device__ __forceinline__ void step_fill(step_stream &s, int limit) {
    while (s.head - s.tail < STEP_SLOTS) {
        while (!s.entered || s.tasks.task >= s.tasks.n_task) {
            if (s.entered) {
                step_leave(s.tasks);
                s.entered = false;
                s.op++;
            }
            if (s.op >= limit) return;
            const step_op &op = s.ops[s.op % STEP_WINDOW];
            step_enter(s.tasks, op);
            s.entered = true;
            s.n_unit = op.matvec.n_unit;
            s.slice_units = op.matvec.slice_units;
            s.unit_bytes = op.matvec.unit_bytes;
            s.scale_bytes = op.matvec.scale_bytes;
            s.scale_offset = op.matvec.scale_offset;
            s.row_bytes = op.matvec.row_bytes;
            s.task_rows = op.matvec.task_rows;
        }
        step_copy_slice(s);
    }
}

#endif
