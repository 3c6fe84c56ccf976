/* Tiled matrix product for many token rows, in the order of the dot.
 *
 * A dot has 64 running sums, so an output takes 64 accumulators and a block of 65,536 registers holds 768 outputs:
 * 24 rows × 32 tokens, eight warps. Two warps share a tile of 12 × 16: lane l of the first follows partial l of each of
 * its 192 outputs, of the second partial 32 + l. Per group of 64 columns a warp reads 12 + 16 values from shared memory
 * for 192 fused multiply-adds.
 *
 * Chunks of four groups go round three stages of shared memory. While chunk c is multiplied, c + 1 is complete or nearly
 * so; at its end the block's warps fill c + 2: x comes by one copy of a box, weights through registers, dequantised on
 * their way, asked for a chunk earlier. One barrier a stage is enough: a warp arrives there after its part of the fill,
 * hence after its work on the chunk before the last, whose stage is the one that is filled next.
 *
 * Blocks are persistent and walk through tiles; the next tile's first chunks arrive while this one's sums are added. */
#include "kernels/matmul.h"

#include "kernels/formats.cuh"
#include "kernels/launch.cuh"
#include "kernels/matmul_tile_fill.cuh"
#include "kernels/matmul_tile_sums.cuh"

template <class Format> __global__ void __launch_bounds__(THREADS, 1) matmul_tile(const __grid_constant__ tile_args a) {
    float *shared = fd_shared_floats(), *exchange = shared + STAGES * STAGE;
    const uint32_t barriers = fd_shared_address(exchange + 2 * 4 * OUTPUTS);
    if (threadIdx.x == 0)
        for (int s = 0; s < STAGES; s++) fd_phase_init(barriers + s * 8, WARPS);
    fd_allow_next();
    fd_wait_previous();
    __syncthreads();

    const int warp = (int)(threadIdx.x / 32), lane = (int)(threadIdx.x % 32), half = warp % 2, pair = warp / 2;
    const int partial = half * 32 + lane;
    const int own_w = fd_hold(pair / 2 * PAIR_ROWS * WIDTH + swizzled(partial / 4) * 4 + partial % 4);
    const int own_x = fd_hold((ROWS + pair % 2 * PAIR_TOKENS) * WIDTH + partial);
    const int fill_at = (int)(threadIdx.x / 16) * WIDTH + (int)(threadIdx.x / 8 % 2) * 128;
    const int quad = (int)(threadIdx.x % 8) * 2;
    const swizzle to = {fd_hold(fill_at + swizzled(quad) * 4), fd_hold(fill_at + swizzled(quad + 1) * 4)};
    const uint32_t magic = fd_magic();

    item<Format> items[2];
    fill_place f;
    fill_tile(a, blockIdx.x, f);
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; i++) {
        load_items<Format>(a, f, items);
        fill<Format>(a, items, to, magic, shared, barriers, f);
    }
    load_items<Format>(a, f, items);

    stage_ring now;
    fd_phase_wait(barriers, 0);
    unsigned turn = 0;
    /* At the end of a chunk: on to the next one, if there is one; then all have left the stage that is filled now. */
    auto next = [&](bool more) {
        now.advance();
        if (more) fd_phase_wait(barriers + now.stage * 8, now.parity);
        fill<Format>(a, items, to, magic, shared, barriers, f);
        load_items<Format>(a, f, items);
    };
#pragma unroll 1
    for (unsigned tile = blockIdx.x; tile < a.n_tile; tile += gridDim.x) {
        float acc[PAIR_ROWS][PAIR_TOKENS] = {};
        const int whole = a.n_col / WIDTH;
#pragma unroll 1
        for (int chunk = 0; chunk < whole; chunk++) {
            const float *ws = shared + now.stage * STAGE + own_w, *xs = shared + now.stage * STAGE + own_x;
#pragma unroll
            for (int g = 0; g < GROUPS; g++) add_group(ws + g * 64, xs + g * 64, acc);
            next(chunk + 1 < a.n_chunk || tile + gridDim.x < a.n_tile);
        }
        if (whole < a.n_chunk) {
            const float *ws = shared + now.stage * STAGE + own_w, *xs = shared + now.stage * STAGE + own_x;
#pragma unroll 1
            for (int g = 0; g < GROUPS; g++)
                if (whole * WIDTH + g * 64 + partial < a.n_col) add_group(ws + g * 64, xs + g * 64, acc);
            next(tile + gridDim.x < a.n_tile);
        }
        add_up(a, place_of(a, tile), acc, half, pair, exchange + (turn * 4 + pair) * OUTPUTS);
        turn ^= 1u;
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
    const cuuint32_t box[2] = {WIDTH, TOKENS}, steps[2] = {1, 1};
    const CUresult result = encode(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, (void *)x, sizes, &stride, box, steps,
                                   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        return fd_fail(err, FD_ERR_DEVICE, "kernel matmul_tile: no tensor map of [%d, %lld] (error %d)", n_tok,
                       (long long)n_col, (int)result);
    return FD_OK;
}

fd_code fd_launch_matmul_tile_large(const fd_queue *queue, const fd_device_matrix *weight, const float *bias,
                                    const float *x, int32_t n_tok, float *out, fd_error *err) {
    const int64_t row_tiles = (weight->n_row + ROWS - 1) / ROWS, token_tiles = (n_tok + TOKENS - 1) / TOKENS;
    if (n_tok < 1 || weight->n_row < 1 || row_tiles * token_tiles > 1 << 30 || weight->n_col < 1 ||
        weight->n_col > 1 << 30)
        return fd_fail(err, FD_ERR_UNSUPPORTED, "kernel matmul_tile: [%lld, %lld] times %d rows",
                       (long long)weight->n_row, (long long)weight->n_col, n_tok);
    tile_args args = {};
    args.data = (const uint8_t *)weight->data;
    args.row_bytes = weight->row_bytes;
    args.scale_offset = weight->scale_offset;
    args.n_row = weight->n_row;
    args.n_col = (int)weight->n_col;
    args.n_tok = n_tok;
    args.n_chunk = (args.n_col + WIDTH - 1) / WIDTH;
    args.row_tiles = (unsigned)row_tiles;
    args.token_tiles = (unsigned)token_tiles;
    args.n_tile = (unsigned)(row_tiles * token_tiles);
    args.boxes = weight->n_col % 4 == 0 && (uintptr_t)x % 16 == 0; /* what a map asks for */
    args.bias = bias;
    args.x = x;
    args.out = out;
    if (args.boxes) FD_TRY(map_of_x(x, n_tok, weight->n_col, &args.x_map, err));
    const unsigned blocks = args.n_tile < (unsigned)queue->n_sm ? args.n_tile : (unsigned)queue->n_sm;
    return fd_with_format(weight->dtype, err, [&](auto format) {
        args.last_unit = (args.n_col - 1) / (64 * decltype(format)::groups);
        return fd_launch(queue, "matmul_tile", matmul_tile<decltype(format)>, dim3(blocks), THREADS,
                         sizeof(float) * SHARED, err, args);
    });
}

fd_code fd_launch_matmul_tile(const fd_queue *queue, const fd_device_matrix *weight, const float *bias, const float *x,
                              int32_t n_tok, float *out, fd_error *err) {
    enum { SMALL = 16 };
    int device, major;
    FD_TRY(fd_cuda_check(cudaGetDevice(&device), "matmul_tile", err));
    FD_TRY(
        fd_cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "matmul_tile", err));
    return n_tok <= SMALL || major < 9 ? fd_launch_matmul_tile_small(queue, weight, bias, x, n_tok, out, err)
                                       : fd_launch_matmul_tile_large(queue, weight, bias, x, n_tok, out, err);
}
