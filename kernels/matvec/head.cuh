/* The first weights of a warp beyond those that its registers hold, copied to shared memory by bulk copies (sm_90)
 * while the block loads x and norms it: registers hold what memory delivers in 2 µs, x and the norm take 3 and more.
 * They are requested after x, so that x does not wait for them. For rows without a plane of scales, two of them a lane,
 * which is the form of the largest products; with one it gains nothing (docs/performance-diary.md). */
#ifndef FD_KERNELS_MATVEC_HEAD_CUH
#define FD_KERNELS_MATVEC_HEAD_CUH

#include "kernels/formats/formats.cuh"
#include "kernels/pipeline.cuh"

enum { HEAD_WARPS = 8 }; /* of a block, at most */

template <class Format, int P, int R> struct matvec_head {
    static constexpr int lanes = 64 / P, rows = 32 / lanes * R; /* of a row; of a warp's tile */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
    static constexpr bool possible = false;
#else
    static constexpr bool possible = Format::shared_step == 0 && R == 2;
#endif
    int units; /* of each row, 0: there is no head */
    uint32_t barrier;
    const unsigned char *own; /* the lane's first row in shared memory */

    /* `all`: units·rows·Format::own_step bytes of shared memory for each warp. Called by whole warps. */
    __device__ __forceinline__ void begin(int n_unit, const unsigned char *all) {
        __shared__ __align__(8) uint64_t barriers[HEAD_WARPS];
        const int warp = (int)threadIdx.x / 32, group = (int)threadIdx.x % 32 / lanes;
        units = n_unit;
        barrier = fd_shared_address(barriers + warp);
        own = all + (warp * rows + group * R) * units * Format::own_step;
        if (threadIdx.x % 32 == 0) fd_mbarrier_init(barrier, rows);
        __syncwarp();
    }
    /* The units after the first `from` of the lane's rows, by one lane each. */
    __device__ __forceinline__ void request(const fd_cursor (&row)[R], int from) const {
        const int lane = (int)threadIdx.x % lanes, bytes = units * Format::own_step;
        if (lane >= R) return;
        const uint8_t *first = (lane == 0 ? row[0].own : row[R - 1].own) - lane * (Format::own_step / lanes);
        fd_mbarrier_arrive_expect_tx(barrier, (uint32_t)bytes);
        fd_cp_async_bulk(fd_shared_address(own) + (uint32_t)(lane * bytes), first + from * Format::own_step,
                         (uint32_t)bytes, barrier, fd_policy_evict_first());
    }
    __device__ __forceinline__ void await() const {
        fd_mbarrier_wait(barrier, 0);
        __syncwarp();
    }
    __device__ __forceinline__ typename Format::unit unit(int r, int at, int lane) const {
        const fd_cursor c = Format::begin(own + r * units * Format::own_step, 0, lane);
        return Format::template load<FD_READ_SHARED>(c, at, lane);
    }
};

#endif
