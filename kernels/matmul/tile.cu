/* Tiled matrix product for many token rows, in the order of the dot.
 *
 * A dot has 64 running sums, so an output takes 64 accumulators and a block of 65,536 registers holds 640 outputs: 20
 * rows × 32 tokens, eight warps. Two warps share a tile of 10 × 16: lane l of the first follows partial l of each of
 * its 160 outputs, of the second partial 32 + l. Per group of 64 columns a warp reads 10 + 16 values from shared memory
 * for 160 fused multiply-adds. (12 × 16 would read less, but leaves too few registers for the rest.) A group is one
 * iteration of a loop: for two groups in one piece the compiler moves the sums to other registers.
 *
 * Four producer warps fill three stages of shared memory, each a chunk of four groups: x by TMA, weights through
 * registers, dequantised on their way. Consumers have 208 registers, producers 88 (setmaxnreg, sm_90a; elsewhere all
 * have 168, and it is slow).
 *
 *   W ── units in registers ── dequantised ──┐                     ┌── consumer warps: packed_sums, 160 outputs a pair
 *        (3 producer warps)                  ├─ stage, shared ─────┤   of warps, 64 partials each
 *   x ── TMA boxes (1 producer warp) ────────┘  full/empty mbarrier └── add_up: tree over the two warps' lanes ── out
 *
 * Blocks are persistent and walk through tiles; the next tile's first chunks arrive while this one's sums are added. */
#include "kernels/matmul/matmul.h"

#include "kernels/formats/formats.cuh"
#include "kernels/launch.cuh"
#include "kernels/matmul/tile_producer.cuh"
#include "kernels/matmul/tile_sums.cuh"

/* The stages as a consumer warp walks through them. */
struct consumer {
    uint32_t full, empty; /* barriers of stage 0 */
    operand_place first;  /* of stage 0's first group */
    stage_ring now;
    bool signals; /* its warp's first lane */

    __device__ __forceinline__ void wait() const { fd_mbarrier_wait(full + now.stage * 8, now.parity); }
    __device__ __forceinline__ void hand_back(unsigned stage) const {
        fd_mbarrier_arrive_warp(empty + stage * 8, signals);
    }
    __device__ __forceinline__ operand_place begin() const {
        const uint32_t bytes = now.stage * STAGE * (uint32_t)sizeof(float);
        return {first.w + bytes, first.x + bytes};
    }
};

static __device__ __forceinline__ void consume(const tile_args &a, float *shared, uint32_t full, uint32_t empty) {
    constexpr uint32_t group_bytes = GROUP * sizeof(float);
    const int warp = (int)(threadIdx.x / 32), lane = (int)(threadIdx.x % 32), half = warp % 2, pair = warp / 2;
    const int partial = half * 32 + lane;
    const int own_w = fd_opaque_register(pair / 2 * PAIR_ROWS * 64 + swizzled(partial / 2) * 4 + partial % 2 * 2);
    const int own_x = fd_opaque_register((ROWS + pair % 2 * PAIR_TOKENS) * 64 + partial);
    consumer in = {full, empty, {fd_shared_address(shared + own_w), fd_shared_address(shared + own_x)}, {}, lane == 0};
    float *exchange = shared + STAGES * STAGE + pair * OUTPUTS;
    unsigned turn = 0;
#pragma unroll 1
    for (unsigned tile = blockIdx.x; tile < a.n_tile; tile += gridDim.x) {
        packed_sums sums = {};
        operands now;
        in.wait();
        operand_place at = in.begin();
        read_first(now, at);
        int left = GROUPS, columns = a.n_col; /* left: groups of the stage */
#pragma unroll 1
        for (; columns >= 2 * 64; columns -= 64) {
            operand_place next = {at.w + group_bytes, at.x + group_bytes};
            const unsigned stage = in.now.stage;
            const bool last = --left == 0;
            if (last) {
                left = GROUPS;
                in.now.advance();
                in.wait();
                if (in.now.stage == 0) next = in.first;
            }
            add_group<true>(sums, now, at.x, next);
            at = next;
            if (last) in.hand_back(stage);
        }
        /* The last whole group, and one that is not whole. */
#pragma unroll 1
        for (int k = 0; k < columns; k += 64) {
            if (left == 0) {
                left = GROUPS;
                in.hand_back(in.now.stage);
                in.now.advance();
                in.wait();
                at = in.begin();
            }
            if (k + partial < columns) {
                read_first(now, at);
                add_group<false>(sums, now, at.x, at);
            }
            at = {at.w + group_bytes, at.x + group_bytes};
            left--;
        }
        in.hand_back(in.now.stage);
        in.now.advance();
        add_up(a, place_of(a, tile), sums, half, pair, exchange + turn * 4 * OUTPUTS);
        turn ^= 1u;
    }
}

template <class Format> __global__ void __launch_bounds__(THREADS, 1) matmul_tile(const __grid_constant__ tile_args a) {
    float *shared = fd_shared_floats();
    const uint32_t full = fd_shared_address(shared + SHARED) - 2 * STAGES * 8, empty = full + STAGES * 8;
    if (threadIdx.x == 0)
        for (int s = 0; s < STAGES; s++) {
            fd_mbarrier_init(full + s * 8, (WEIGHT_WARPS + 1) * FD_WARP_ARRIVALS);
            fd_mbarrier_init(empty + s * 8, CONSUMERS / 32 * FD_WARP_ARRIVALS);
        }
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    __syncthreads();
    if (threadIdx.x < CONSUMERS) {
        fd_setmaxnreg_inc<208>();
        consume(a, shared, full, empty);
    } else {
        fd_setmaxnreg_dec<88>();
        if (threadIdx.x < CONSUMERS + WEIGHT_WARPS * 32)
            produce_w<Format>(a, shared, full, empty);
        else
            produce_x(a, shared, full, empty);
    }
}

static fd_code map_of_x(const float *x, int32_t n_tok, int64_t n_col, CUtensorMap *map, fd_error *err) {
    typedef CUresult encode_tiled(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                  const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                                  CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    static encode_tiled *encode; /* the driver's, the same for every caller */
    if (!encode) {
        void *found = nullptr;
        cudaDriverEntryPointQueryResult status;
        FD_TRY(fd_cuda_check(
            cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &status),
            "matmul_tile", err));
        if (!found) return fd_fail(err, FD_ERR_UNSUPPORTED, "kernel matmul_tile: the driver has no tensor maps");
        encode = (encode_tiled *)found;
    }
    const cuuint64_t sizes[2] = {(cuuint64_t)n_col, (cuuint64_t)n_tok}, stride = (cuuint64_t)n_col * sizeof(float);
    const cuuint32_t box[2] = {64, TOKENS}, steps[2] = {1, 1};
    const CUresult result = encode(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, (void *)x, sizes, &stride, box, steps,
                                   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        return fd_fail(err, FD_ERR_DEVICE, "kernel matmul_tile: no tensor map of [%d, %lld] (error %d)", n_tok,
                       (long long)n_col, (int)result);
    return FD_OK;
}

fd_code fd_launch_matmul_tile_large(const fd_launch_context *ctx, const fd_matmul *in, fd_error *err) {
    const fd_device_matrix *first = &in->part[0].weight;
    const int64_t token_tiles = (in->n_tok + TOKENS - 1) / TOKENS;
    int64_t row_tiles;
    tile_args args = {};
    FD_TRY(fd_tile_product(in, "matmul_tile", ROWS, &args, &row_tiles, err));
    if (row_tiles * token_tiles > 1 << 30)
        return fd_fail(err, FD_ERR_UNSUPPORTED, "kernel matmul_tile: %lld tiles of rows times %d rows",
                       (long long)row_tiles, in->n_tok);
    args.n_chunk = (args.n_col + WIDTH - 1) / WIDTH;
    args.row_tiles = (unsigned)row_tiles;
    args.token_tiles = (unsigned)token_tiles;
    args.n_tile = (unsigned)(row_tiles * token_tiles);
    args.boxes = first->n_col % 4 == 0 && (uintptr_t)in->x % 16 == 0; /* what a map asks for */
    if (args.boxes) FD_TRY(map_of_x(in->x, in->n_tok, first->n_col, &args.x_map, err));
    const unsigned blocks = args.n_tile < (unsigned)ctx->n_sm ? args.n_tile : (unsigned)ctx->n_sm;
    return fd_with_format(first->dtype, err, [&](auto format) {
        args.last_unit = (args.n_col - 1) / (64 * decltype(format)::groups);
        return fd_launch(ctx, "matmul_tile", matmul_tile<decltype(format)>, dim3(blocks), THREADS,
                         sizeof(float) * SHARED, err, args);
    });
}
