/* The ops of the persistent decode step as they lie in device memory, and the shape of its shared memory. */
#ifndef FD_KERNELS_STEP_OP_CUH
#define FD_KERNELS_STEP_OP_CUH

#include "base/dtype.h"
#include "kernels/attention.h"
#include "kernels/matmul.h"

/* A block: 8 warps, so that a thread has 255 registers and keeps nothing in local memory (beside so much shared memory
 * there is next to no cache for it); each warp has a ring of four slots. A slot holds a slice of one row, of four rows
 * or of eight. Slots are as large as leaves room for an x of 14,336 elements beside the rings. */
enum {
    STEP_WARPS = 8,
    STEP_THREADS = STEP_WARPS * 32,
    STEP_SLOTS = 4,
    STEP_SLOT_BYTES = 5376,
    STEP_RING_BYTES = STEP_WARPS * STEP_SLOTS * STEP_SLOT_BYTES,
    STEP_COPIES = 10, /* of 16 bytes that a lane makes of a row's slice at most, beside its scales */
    STEP_WINDOW = 8,  /* ops in shared memory: the one that runs and those whose weights may be on their way */
    STEP_MIN_X = 4096,
    STEP_FEW_ROWS = 36, /* of a block: a row a warp; of a type of blocks: four rows a warp, below STEP_MANY_ROWS */
    STEP_MANY_ROWS = 96,
    STEP_MAX_NORM = 8192, /* columns of an x that is RMS-normed */
    STEP_NEAR = FD_ATTENTION_NEAR,
};

enum step_kind { STEP_EMBED, STEP_MATVEC, STEP_ATTENTION };

struct step_part {
    const uint8_t *data;
    const float *bias, *residual;
    float *out;
    int32_t n_row, unused;
};

/* What the list's maker works out once, so that no thread divides. */
struct step_matvec {
    step_part part[FD_MATVEC_PARTS];
    const float *x, *norm_weight;
    float norm_eps;
    int32_t n_col, n_unit;
    int32_t share,
        extra; /* of the rows of all parts (of their pairs): `share` a block, one more for the first `extra` */
    int32_t row_bytes, scale_offset;
    uint16_t unit_bytes, scale_bytes, slice_units;
    uint8_t task_rows; /* rows a warp follows at once: 1, 4 or 8 */
    uint8_t pair;      /* 2: silu; the parts' rows interleave: row 2i of part 0, 2i + 1 of part 1. 1: they follow */
    bool keep_x;       /* shared memory holds this x already */
};

struct step_embed {
    const uint8_t *table;
    float *out;
    int64_t row_bytes, scale_offset, n_col;
};

struct alignas(16) step_op {
    int32_t kind;
    uint32_t dtype;
    bool wait; /* for all blocks to be through with the ops before */
    union {
        step_embed embed;
        step_matvec matvec;
        fd_attn_decode attention;
    };
};

/* How a row of a type streams: elements and bytes of a unit, its scale bytes in the row's plane, units of a slice. */
struct step_slice {
    int elements, unit_bytes, scale_bytes, units;
};

constexpr __host__ __device__ step_slice step_slice_of(uint32_t dtype, int task_rows) {
    const bool one = task_rows == 1, eight = task_rows == 8;
    switch (dtype) {
    case FD_F32: return {64, 256, 0, one ? 20 : 5};
    case FD_F16:
    case FD_BF16: return {64, 128, 0, one ? 40 : 10};
    case FD_Q8_0: return {128, 128, 8, eight ? 4 : 8};
    case FD_Q4_0: return {128, 64, 8, eight ? 8 : 16};
    case FD_Q4_K: return {256, 144, 0, eight ? 4 : 8};
    case FD_Q6_K: return {256, 208, 2, eight ? 3 : 6};
    default: return {64, 0, 0, 0};
    }
}

/* Types of blocks: eight lanes a row; the others: a warp a row. */
constexpr __host__ __device__ bool step_has_blocks(uint32_t dtype) {
    return dtype == FD_Q8_0 || dtype == FD_Q4_0 || dtype == FD_Q4_K || dtype == FD_Q6_K;
}

/* Bytes of a row's slice in a slot before its scales. */
constexpr __host__ __device__ int step_scale_at(uint32_t dtype, int task_rows) {
    return step_slice_of(dtype, task_rows).units * step_slice_of(dtype, task_rows).unit_bytes;
}

constexpr bool step_slice_fits(uint32_t dtype, int task_rows) {
    /* Scales are copied from a multiple of 16 bytes to one. */
    const step_slice s = step_slice_of(dtype, task_rows);
    const int scales = s.scale_bytes == 0 ? 0 : s.units * s.scale_bytes % 16 == 0 ? s.units * s.scale_bytes : 32;
    return step_scale_at(dtype, task_rows) <= STEP_COPIES * 16 * (task_rows == 1 ? 32 : 8) && scales <= 128 &&
           step_scale_at(dtype, task_rows) + scales <= STEP_SLOT_BYTES / task_rows;
}
static_assert(step_slice_fits(FD_F32, 1) && step_slice_fits(FD_F16, 1) && step_slice_fits(FD_BF16, 1), "slot");
static_assert(step_slice_fits(FD_F32, 4) && step_slice_fits(FD_F16, 4) && step_slice_fits(FD_BF16, 4), "slot");
static_assert(step_slice_fits(FD_Q8_0, 4) && step_slice_fits(FD_Q8_0, 8), "slot");
static_assert(step_slice_fits(FD_Q4_0, 4) && step_slice_fits(FD_Q4_0, 8), "slot");
static_assert(step_slice_fits(FD_Q4_K, 4) && step_slice_fits(FD_Q4_K, 8), "slot");
static_assert(step_slice_fits(FD_Q6_K, 4) && step_slice_fits(FD_Q6_K, 8), "slot");

#endif
