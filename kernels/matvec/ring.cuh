/* A warp's ring of pipeline stages of weights in shared memory.
 *
 * A warp follows its own rows and shares no weights with others, so it needs no barrier of the block: its lanes copy a
 * stage side by side (cp.async, 16 bytes each), wait for their own copies, and meet at __syncwarp. Registers hold no
 * weights on their way, so the bytes in flight are bound by shared memory alone, and the first stages are requested
 * before the previous kernel has ended. kernels/matvec/ring_bulk.cuh has the ring that bulk copies fill. */
#ifndef FD_KERNELS_MATVEC_RING_CUH
#define FD_KERNELS_MATVEC_RING_CUH

#include "kernels/formats/formats.cuh"
#include "kernels/matvec/stage.cuh"

enum {
    RING_THREADS = FD_MATVEC_WARPS * 32,
    RING_STAGE_BYTES = 4096, /* of units, at most */
};

struct matvec_ring_args {
    matvec_args matvec;
    int32_t n_task, n_unit, n_stage;
    /* Neighbouring tasks of a block, and how many blocks have one more; `each` 0: tasks go round the grid. */
    int32_t each, more;
};

/* The stages of a warp that follows `rows` rows at once. The plane of scales is copied in windows of 16 bytes, so a
 * stage's scales are whole windows or lie within one. */
template <class Format, int P, int R> struct ring_stage {
    static constexpr int lanes = 64 / P, rows = 32 / lanes * R;
    static constexpr int unit_bytes = Format::own_step;
    static constexpr int scale_bytes = Format::shared_step == Format::own_step ? 0 : Format::shared_step; /* a unit */
    static constexpr int most = RING_STAGE_BYTES / rows / unit_bytes;
    static constexpr int units = scale_bytes == 0 ? (most > 3 ? most & ~1 : most)
                                 : most >= 32     ? 32
                                 : most >= 16     ? 16
                                 : most >= 8      ? 8
                                 : most >= 4      ? 4
                                 : most >= 2      ? 2
                                                  : 1;
    static constexpr int window = (units * scale_bytes + 15) / 16 * 16;
    /* With eight partials the four rows that two neighbouring lanes of each read together (kernels/matvec/tokens.cu) lie
     * in different banks where a stage has room for that: R rows on are 32 bytes on. Of F16 they all lay in the same. */
    static constexpr int padding(int packed) {
        for (int pad = 0; P == 8 && rows * (packed + pad) <= FD_MATVEC_STAGE_BYTES; pad += 16)
            if (R * (packed + pad) % 64 == 32) return pad;
        return 0;
    }
    static constexpr int row_bytes = units * unit_bytes + window + padding(units * unit_bytes + window);
    static constexpr int bytes = row_bytes * rows;
    static constexpr int copies = (units * unit_bytes + lanes * 16 - 1) / (lanes * 16); /* a lane makes, a row */
    static_assert(bytes <= FD_MATVEC_STAGE_BYTES, "rings are sized before the type is known");
    static_assert(window <= lanes * 16, "one copy a lane fetches a stage's scales");
    static_assert(units * scale_bytes % 16 == 0 || 16 % (units * scale_bytes == 0 ? 16 : units * scale_bytes) == 0,
                  "a stage's scales do not straddle windows");
};

/* The tasks of a warp: every `step`th from `first` on, before `end`. Either they go to the warps of the grid in turn,
 * block by block, then warp by warp, or each block has neighbouring ones and deals them to its warps. In both no
 * multiprocessor has more than one task more than another. */
struct ring_tasks {
    int first, step, end;
};
__device__ __forceinline__ ring_tasks tasks_of(const matvec_ring_args &a) {
    const int warp = (int)threadIdx.x / 32, n_warp = (int)blockDim.x / 32, block = (int)blockIdx.x;
    if (a.each == 0) return {warp * (int)gridDim.x + block, n_warp * (int)gridDim.x, a.n_task};
    const int begin = block * a.each + min(block, a.more);
    return {begin + warp, n_warp, begin + a.each + (block < a.more)};
}

template <class Format, int P, int R> struct matvec_ring {
    using Stage = ring_stage<Format, P, R>;
    uint32_t stages; /* shared address: the lane's 16 bytes of its first row in stage 0 */
    int stage;       /* to be filled next */
    int task, unit;  /* of that stage */
    ring_tasks tasks;
    int first_row;         /* of the lane's in task 0 */
    const uint8_t *row[R]; /* where the lane copies from, at `unit` */
    const uint8_t *scales[R];
    uint64_t policy;

    /* Nothing is requested yet. */
    __device__ __forceinline__ void begin(const matvec_ring_args &a, const unsigned char *warp_stages) {
        const int lane = (int)threadIdx.x % 32, row_group = lane / Stage::lanes;
        stages =
            fd_shared_address(warp_stages) + (uint32_t)(row_group * R * Stage::row_bytes + lane % Stage::lanes * 16);
        stage = unit = 0;
        tasks = tasks_of(a);
        task = tasks.first;
        first_row = row_group * R;
        policy = fd_policy_evict_first();
    }

    /* The lane's share of `n` units of its rows; inlined twice, once with n known. */
    __device__ __forceinline__ void copy(uint32_t to, int n, int own) {
        const int bytes = n * Stage::unit_bytes - own;
#pragma unroll
        for (int r = 0; r < R; r++) {
            const uint32_t row_to = to + (uint32_t)(r * Stage::row_bytes);
#pragma unroll
            for (int i = 0; i < Stage::copies; i++)
                if ((n == Stage::units && (i + 1) * Stage::lanes * 16 <= Stage::units * Stage::unit_bytes) ||
                    i * Stage::lanes * 16 < bytes)
                    fd_cp_async16_hinted(row_to + (uint32_t)(i * Stage::lanes * 16), row[r] + i * Stage::lanes * 16,
                                         policy);
            row[r] += Stage::units * Stage::unit_bytes;
            if (Stage::scale_bytes > 0) {
                const int from = unit * Stage::scale_bytes & ~15, end = (unit + n) * Stage::scale_bytes;
                if (own < end - from)
                    fd_cp_async16_hinted(row_to + (uint32_t)(Stage::units * Stage::unit_bytes), scales[r] + from,
                                         policy);
            }
        }
    }

    /* Returns to the whole warp when the oldest stage that was requested is there. */
    __device__ __forceinline__ void await(const matvec_ring_args &a, int, unsigned) {
        fd_cp_async_wait_group(a.n_stage - 1);
        __syncwarp();
    }

    /* One stage into the next stage, or nothing when there is none; in any case a group of copies. */
    __device__ __forceinline__ void request(const matvec_ring_args &a) {
        if (task < tasks.end) {
            const int own = (int)threadIdx.x % Stage::lanes * 16;
            if (unit == 0) {
#pragma unroll
                for (int r = 0; r < R; r++) {
                    row[r] = row_data(a.matvec, first_row + (int64_t)task * Stage::rows + r) + own;
                    scales[r] = row[r] + a.matvec.scale_offset;
                }
            }
            const uint32_t to = stages + (uint32_t)(stage * Stage::bytes);
            const int left = a.n_unit - unit;
            if (left >= Stage::units)
                copy(to, Stage::units, own);
            else
                copy(to, left, own);
            unit += Stage::units;
            if (unit >= a.n_unit) {
                unit = 0;
                task += tasks.step;
            }
        }
        fd_cp_async_commit_group();
        stage = stage + 1 == a.n_stage ? 0 : stage + 1;
    }
};

#endif
