/* Matrix product of q8act on tensor cores, for more than FD_Q8_FEW rows of activations.
 *
 * A thread block computes ROWS rows of weights by 16·NT tokens. Half of its warps take the blocks of even
 * number, half those of odd number, which are the two partial sums; they meet at the end. One mma.m16n8k32 is the
 * integer dot of one block for 16 × 8 outputs (k16 where a block has two scales); it starts at the bits that make the
 * sum a float, so that what is left are two fused multiply-adds an output. */
#include "kernels/launch.cuh"
#include "kernels/int8/matmul_stage.cuh"
#include "kernels/int8/mma.cuh"

namespace {

/* One unit: its blocks of the warp's parity, in order. */
template <uint32_t DTYPE, int MT, int NT>
__device__ __forceinline__ void add_unit(const uint8_t *weights, const uint8_t *stage, int n_block, int warp_row,
                                         int warp_token, int parity, float (&acc)[MT][NT][4]) {
    using L = layout_of<DTYPE, NT>;
    using F = q8_format<DTYPE>;
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t of_w = fd_shared_address(weights) + (warp_row + lane % 16) * 128;
    const uint32_t of_x = fd_shared_address(stage) + (warp_token + lane / 16 * 8 + lane % 8) * 128;
#pragma unroll
    for (int j = 0; j < F::blocks; j++) {
        const int block = parity + 2 * j, piece = 2 * (parity + 2 * (j % 2)); /* in the unit; in its 128 elements */
        if (F::blocks == 2 && block >= n_block) break; /* a row's last unit may have blocks past its end */
        const float *scales = (const float *)(weights + L::weights) + block * L::scales * ROWS + warp_row + g;
        const float *d = (const float *)(stage + L::at_d) + block * L::tokens + warp_token + 2 * t;
        const float *sum = (const float *)(stage + L::at_sum) + block * L::tokens + warp_token + 2 * t;
        uint32_t w[MT][4];
        float scale[MT][2][F::halves], min[MT][2];
#pragma unroll
        for (int m = 0; m < MT; m++) {
            fd_ldmatrix(w[m], of_w + (j / 2 * ROWS + 16 * m) * 128 + ((piece + lane / 16) ^ lane % 8) * 16);
#pragma unroll
            for (int h = 0; h < 2; h++) {
#pragma unroll
                for (int k = 0; k < F::halves; k++) scale[m][h][k] = scales[k * ROWS + 16 * m + 8 * h];
                min[m][h] = F::minimum ? scales[F::halves * ROWS + 16 * m + 8 * h] : 0.0f;
            }
        }
        uint32_t x[4];
#pragma unroll
        for (int n = 0; n < NT; n++) {
            if (n % 2 == 0) /* of this tile and the next */
                fd_ldmatrix(x, of_x + (j / 2 * L::tokens + 8 * n) * 128 + ((piece + lane / 8 % 2) ^ lane % 8) * 16);
            const float2 dn = *(const float2 *)(d + 8 * n);
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int k = 0; k < F::halves; k++) {
                    int s[4];
                    if (F::halves == 1)
                        q8_mma(s, w[m], x[n % 2 * 2], x[n % 2 * 2 + 1]);
                    else
                        q8_mma_half(s, w[m][2 * k], w[m][2 * k + 1], x[n % 2 * 2 + k]);
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        acc[m][n][i] = fmaf(fd_q8_times(__int_as_float(s[i]), scale[m][i / 2][k]), i % 2 ? dn.y : dn.x,
                                            acc[m][n][i]);
                }
            if (F::minimum) {
                const float2 sn = *(const float2 *)(sum + 8 * n);
#pragma unroll
                for (int m = 0; m < MT; m++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        acc[m][n][i] = fd_q8_subtract(acc[m][n][i], min[m][i / 2], i % 2 ? sn.y : sn.x);
            }
        }
    }
}

/* The two partial sums meet: each half of the warps finishes half of its tiles of 16 rows. */
template <int MT, int NT>
__device__ __forceinline__ void finish(const q8_matmul_args &a, const tile_part &part, float *shared, int64_t row0,
                                       int token0, int parity, float (&acc)[MT][NT][4]) {
    constexpr int half = MT / 2, pairs = threads_of<MT> / 64;
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = (int)threadIdx.x / 32;
    float4 *mine = (float4 *)shared + warp * half * NT * 32 + lane;
    float4 *other = (float4 *)shared + (warp ^ pairs) * half * NT * 32 + lane;
    __syncthreads();
#pragma unroll
    for (int m = 0; m < half; m++)
#pragma unroll
        for (int n = 0; n < NT; n++) {
            float give[4];
#pragma unroll
            for (int i = 0; i < 4; i++) give[i] = parity ? acc[m][n][i] : acc[m + half][n][i];
            mine[(m * NT + n) * 32] = make_float4(give[0], give[1], give[2], give[3]);
        }
    __syncthreads();
#pragma unroll
    for (int m = 0; m < half; m++)
#pragma unroll
        for (int n = 0; n < NT; n++) {
            const float4 from = other[(m * NT + n) * 32];
            const float add[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int64_t row = row0 + 16 * (m + half * parity) + 8 * (i / 2) + g;
                const int token = token0 + 8 * n + 2 * t + i % 2;
                fd_tile_store(a.product, part, row, token, (parity ? acc[m + half][n][i] : acc[m][n][i]) + add[i]);
            }
        }
}

template <uint32_t DTYPE, int MT, int NT>
__global__ void __launch_bounds__(threads_of<MT>, 1) q8_matmul(const __grid_constant__ q8_matmul_args a) {
    using L = layout_of<DTYPE, NT>;
    using F = q8_format<DTYPE>;
    constexpr int down = ROWS / (16 * MT), buffer = L::weights + L::table; /* warps; bytes */
    uint8_t *shared = (uint8_t *)fd_shared_floats(), *stages = shared + L::at_stages;
    const uint32_t stages_at = fd_shared_address(stages);
    const int warp = (int)threadIdx.x / 32, parity = warp / (2 * down);
    const int warp_row = warp % down * 16 * MT, warp_token = warp / down % 2 * 8 * NT;
    unsigned row_tile = blockIdx.y;
    const tile_part &part = *fd_tile_part(a.product, &row_tile);
    const int64_t row0 = (int64_t)row_tile * ROWS;
    const int token0 = (int)blockIdx.x * L::tokens;
    const int n_unit = (a.n_block + 2 * F::blocks - 1) / (2 * F::blocks);
    float acc[MT][NT][4] = {};
    weights_in_flight<DTYPE, NT, threads_of<MT>> weights(a, part, row0);
    activations<DTYPE, NT, threads_of<MT>> x(a, token0);

    fd_pdl_launch_dependents();
    weights.load(a, 0);
    fd_pdl_wait();
#pragma unroll
    for (int u = 0; u < L::depth - 1; u++) {
        if (u < n_unit) x.copy(stages_at + u * L::stage, u, a);
        fd_cp_async_commit_group();
    }
    weights.store(shared);
    if (n_unit > 1) weights.load(a, 1);
    int at = 0;
    for (int unit = 0; unit < n_unit; unit++) {
        fd_cp_async_wait_group<L::depth - 2>();
        __syncthreads(); /* this unit is there, and the one before it is read */
        const int ahead = unit + L::depth - 1, stage = at == 0 ? L::depth - 1 : at - 1;
        if (ahead < n_unit) x.copy(stages_at + stage * L::stage, ahead, a);
        fd_cp_async_commit_group();
        if (unit + 1 < n_unit) weights.store(shared + (unit + 1) % 2 * buffer);
        if (unit + 2 < n_unit) weights.load(a, unit + 2);
        add_unit<DTYPE, MT, NT>(shared + unit % 2 * buffer, stages + at * L::stage, a.n_block - unit * 2 * F::blocks,
                                warp_row, warp_token, parity, acc);
        at = at == L::depth - 1 ? 0 : at + 1;
    }
    fd_cp_async_wait_all();
    finish<MT, NT>(a, part, (float *)shared, row0 + warp_row, token0 + warp_token, parity, acc);
}

template <uint32_t DTYPE, int MT, int NT>
fd_code launch(const fd_launch_context *ctx, const fd_q8_matmul *in, fd_error *err) {
    using L = layout_of<DTYPE, NT>;
    q8_matmul_args args = {};
    int64_t row_tiles = 0;
    FD_TRY(fd_tile_product(&in->product, "q8_matmul", ROWS, &args.product, &row_tiles, err));
    if (row_tiles > 65535)
        return fd_fail(err, FD_ERR_UNSUPPORTED, "kernel q8_matmul: %lld tiles of %d rows", (long long)row_tiles, ROWS);
    args.n_block = args.product.n_col / 32;
    args.x = in->x;
    /* Token tiles first: blocks that run together share rows of weights. */
    const dim3 grid(fd_blocks(args.product.n_tok, L::tokens), (unsigned)row_tiles);
    constexpr size_t ring = (size_t)L::at_stages + (size_t)L::depth * L::stage,
                     end = (size_t)threads_of<MT> * MT / 2 * NT * sizeof(float4);
    return fd_launch(ctx, "q8_matmul", q8_matmul<DTYPE, MT, NT>, grid, threads_of<MT>, ring > end ? ring : end, err,
                     args);
}

template <uint32_t DTYPE> fd_code launch_dtype(const fd_launch_context *ctx, const fd_q8_matmul *in, fd_error *err) {
    int tile = in->tile;
    if (tile == 0) {
        int64_t row_tiles = 0;
        for (int i = 0; i < in->product.n_part; i++) row_tiles += (in->product.part[i].weight.n_row + ROWS - 1) / ROWS;
        /* Narrower tiles where wide ones would leave half of the multiprocessors without work. */
        const int64_t wide = row_tiles * ((in->product.n_tok + 127) / 128);
        tile = wide * 4 <= ctx->n_sm + ctx->n_sm / 8 ? 32 : wide * 2 <= ctx->n_sm + ctx->n_sm / 8 ? 64 : 128;
    }
    if (tile == 32) return launch<DTYPE, 2, 2>(ctx, in, err);
    return tile == 64 ? launch<DTYPE, 2, 4>(ctx, in, err) : launch<DTYPE, 4, 8>(ctx, in, err);
}

} // namespace

fd_code fd_launch_q8_matmul(const fd_launch_context *ctx, const fd_q8_matmul *in, fd_error *err) {
    const fd_device_matrix *first = &in->product.part[0].weight;
    if (in->x.panel > 0) return fd_launch_q8_matmul_few(ctx, in, 0, err);
    if (in->tile != 0 && in->tile != 32 && in->tile != 64 && in->tile != 128)
        return fd_fail(err, FD_ERR_INPUT, "kernel q8_matmul: tiles of %d tokens, expected 32, 64 or 128", in->tile);
    if (!fd_q8_can(first->dtype) || first->n_col < 32 || first->n_col % 32 != 0 || first->n_col > in->x.row_bytes)
        return fd_fail(err, FD_ERR_UNSUPPORTED, "kernel q8_matmul: %lld columns of type %u times rows of %lld bytes",
                       (long long)first->n_col, (unsigned)first->dtype, (long long)in->x.row_bytes);
    return q8_with_type(first->dtype, err,
                        [&](auto type) { return launch_dtype<decltype(type)::value>(ctx, in, err); });
}
