/* Matrix product of q8act on tensor cores, for up to FD_Q8_FEW rows of activations.
 *
 * A thread block computes `rows` rows of weights for all tokens, so that weights are read once, as they are packed,
 * through a ring of stages of 256 columns in shared memory; the activations of these columns are in the same stage.
 *
 *   W ── cp.async ── rows, as packed ──┬─ registers: int8 words ─┐
 *                                      └─ table: scales, minima ─┼─ mma ── two or three fma an output and block
 *   x ── cp.async ── panels ─────────────────────────────────────┘
 *
 * A multiplying warp has 16·MT rows, 8·NW tokens and the blocks of one parity, which is one partial sum. Half of the
 * warps have the even blocks, half the odd ones; they meet at the end. Lane 4g + t owns elements 8t … 8t + 7 of a block
 * (kernels/int8/formats.cuh), of weights and activations alike. */
#include "kernels/launch.cuh"
#include "kernels/int8/few_stage.cuh"
#include "kernels/int8/mma.cuh"

namespace {

/* What a lane reads of a stage: its first row of weights, its row's scales, its eight elements of its token of the
 * first tile, and the scales of its two tokens. */
template <uint32_t DTYPE> struct few_operands {
    const uint8_t *rows;
    const typename few_stage<DTYPE>::Scale *scale;
    const uint8_t *q, *d;
};

/* A block of a tile of 16 rows: int8 words; scales and minima of the lane's two rows. */
template <uint32_t DTYPE> struct few_weights {
    using F = q8_format<DTYPE>;
    uint32_t a[4];
    float scale[2][F::halves], min[2];

    __device__ __forceinline__ void take(const uint32_t (&w)[2][F::words], int j,
                                         const typename few_stage<DTYPE>::Scale *of_block) {
        F::ints(w[0], j, a[0], a[2]);
        F::ints(w[1], j, a[1], a[3]);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const auto of = of_block[8 * h];
            scale[h][0] = of.first;
            if constexpr (F::halves == 2) scale[h][1] = of.second;
            if constexpr (F::minimum) min[h] = of.second;
        }
    }
};

/* Adds a block of the rows, for eight tokens: q their int8, d their scales and sums. */
template <uint32_t DTYPE, int MT>
__device__ __forceinline__ void few_add_block(const few_weights<DTYPE> (&w)[MT], uint2 q, float4 d,
                                              float (&acc)[MT][4]) {
    using F = q8_format<DTYPE>;
    const int t = (int)threadIdx.x % 4;
#pragma unroll
    for (int k = 0; k < F::halves; k++) {
        /* Two lanes of four hold a half: the others' elements are zeros for it. */
        const bool mine = F::halves == 1 || t / 2 == k;
        int s[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++) q8_mma(s[m], w[m].a, mine ? q.x : 0, mine ? q.y : 0);
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                acc[m][i] =
                    fmaf(fd_q8_times(__int_as_float(s[m][i]), w[m].scale[i / 2][k]), i % 2 ? d.y : d.x, acc[m][i]);
    }
    if constexpr (F::minimum) {
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) acc[m][i] = fd_q8_subtract(acc[m][i], w[m].min[i / 2], i % 2 ? d.w : d.z);
    }
}

/* A stage: its blocks of the warp's parity, in order. `n_block` blocks of the rows are left. */
template <uint32_t DTYPE, int MT, int NW>
__device__ __forceinline__ void few_add_stage(const few_operands<DTYPE> &in, int n_block, int parity,
                                              float (&acc)[NW][MT][4]) {
    using F = q8_format<DTYPE>;
    using Stage = few_stage<DTYPE>;
#pragma unroll
    for (int u = 0; u < Stage::units; u++) {
        uint32_t w[MT][2][F::words];
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                F::template load<FD_READ_SHARED>(in.rows + (16 * m + 8 * h) * Stage::row_bytes + u * F::unit_bytes,
                                                 4 * parity + (int)threadIdx.x % 4, w[m][h]);
#pragma unroll
        for (int j = 0; j < F::blocks; j++) {
            const int even = 2 * (u * F::blocks + j); /* the block, or the one before */
            if (F::blocks == 2 && even + parity >= n_block)
                return; /* rows of types in blocks of 256 end with a stage */
            few_weights<DTYPE> weights[MT];
#pragma unroll
            for (int m = 0; m < MT; m++) weights[m].take(w[m], j, in.scale + (m * Q8_PANEL_BLOCKS + even) * 16);
#pragma unroll
            for (int n = 0; n < NW; n++)
                few_add_block<DTYPE, MT>(weights, *(const uint2 *)(in.q + n * Q8_PANEL_TILE + even * 32),
                                         *(const float4 *)(in.d + n * Q8_PANEL_TILE + even * 64), acc[n]);
        }
    }
}

/* The sums of the warp's rows and tokens. */
template <int MT, int NW>
__device__ __forceinline__ void few_store(const q8_few_args &a, const tile_part &part, int64_t row0, int token0,
                                          const float (&acc)[NW][MT][4]) {
    const int lane = (int)threadIdx.x % 32, own = few_row_of_lane(lane / 4);
#pragma unroll
    for (int n = 0; n < NW; n++)
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                fd_tile_store(a.product, part, row0 + 16 * m + 8 * (i / 2) + own, token0 + 8 * n + lane % 4 * 2 + i % 2,
                              acc[n][m][i]);
}

/* The multiplying warps: parity, then tokens, then rows. */
template <uint32_t DTYPE, int MT, int NW>
__device__ __forceinline__ void few_multiply(const q8_few_args &a, const tile_part &part, int64_t row0, uint8_t *stages,
                                             const few_barriers &barriers) {
    using Stage = few_stage<DTYPE>;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int of_parity = (int)blockDim.x / 64 - FEW_HELPERS / 2, parity = warp / of_parity;
    const int row_warps = a.rows / (16 * MT), warp_row = warp % row_warps * 16 * MT, own = few_row_of_lane(g);
    const int tile = warp % of_parity / row_warps * NW;
    const int x_at = Stage::at_x(a.rows) + tile * Q8_PANEL_TILE;
    const uint8_t *rows = stages + (warp_row + own) * Stage::row_bytes;
    const uint8_t *scale = stages + Stage::at_table(a.rows, a.tokens) +
                           Stage::scale_at(warp_row + own, parity) * (int)sizeof(typename Stage::Scale);
    const uint8_t *q = stages + x_at + g * Q8_PANEL_TOKEN + t * 8 + parity * 32;
    const uint8_t *d = stages + x_at + Q8_PANEL_SCALES + t * 16 + parity * 64;
    float acc[NW][MT][4] = {};
    few_place place;
    for (int s = 0; s < a.n_stage; s++) {
        const int at = place.at * a.stage_bytes;
        fd_mbarrier_wait_asleep(barriers.made + (uint32_t)place.at * 8, place.round);
        const few_operands<DTYPE> in = {rows + at, (const typename Stage::Scale *)(scale + at), q + at, d + at};
        few_add_stage<DTYPE, MT, NW>(in, a.n_block - Q8_PANEL_BLOCKS * s, parity, acc);
        fd_mbarrier_arrive_warp(barriers.free + (uint32_t)place.at * 8, lane == 0);
        place.advance(a.n_ring);
    }
    fd_pdl_wait(); /* others may still read what is written over */
    if (few_add_up<MT, NW>((float4 *)stages, of_parity * 32, acc))
        few_store<MT, NW>(a, part, row0 + warp_row, tile * 8, acc);
}

/* Grid: a block for `rows` rows of a part. */
template <uint32_t DTYPE, int MT, int NW>
__global__ void __maxnreg__(FEW_REGISTERS) q8_matmul_few(const __grid_constant__ q8_few_args a) {
    uint8_t *memory = (uint8_t *)fd_shared_floats(), *stages = memory + FEW_BARRIERS;
    const few_barriers barriers(memory);
    const int multiplying = (int)blockDim.x - FEW_HELPERS * 32, helper = (int)threadIdx.x - multiplying;
    unsigned row_tile = blockIdx.x;
    const tile_part &part = *fd_tile_part(a.product, &row_tile);
    const int64_t row0 = (int64_t)row_tile * a.rows;

    fd_pdl_launch_dependents();
    barriers.init(a.n_ring, multiplying / 32);
    __syncthreads();
    if (helper < 0) {
        few_multiply<DTYPE, MT, NW>(a, part, row0, stages, barriers);
    } else if (helper < FEW_COPIERS * 32) {
        const int64_t left = part.n_row - row0;
        const few_copier<DTYPE> copier = {a, part.data + row0 * a.product.row_bytes, left < a.rows ? (int)left : a.rows,
                                          fd_shared_address(stages), helper};
        copier.run(barriers);
    } else {
        few_make_tables<DTYPE>(a, stages, barriers, helper - FEW_COPIERS * 32);
    }
}

/* ---- launching ---- */

template <uint32_t DTYPE> int ring_of(const fd_launch_context *ctx, const few_form &form) {
    return few_ring_of(ctx, few_stage<DTYPE>::bytes(form.rows, form.tokens), FEW_BARRIERS);
}

template <uint32_t DTYPE>
fd_code launch(const fd_launch_context *ctx, const fd_q8_matmul *in, int rows, fd_error *err) {
    const int64_t row_bytes = in->product.part[0].weight.row_bytes;
    const int64_t n_panel = (in->product.part[0].weight.n_col + 32 * Q8_PANEL_BLOCKS - 1) / (32 * Q8_PANEL_BLOCKS);
    const few_form form = few_form_of(
        ctx, in->product, in->x.panel, rows, [&](const few_form &one) { return ring_of<DTYPE>(ctx, one); },
        [&](const few_form &one) { return one.rows * row_bytes + n_panel * q8_panel_bytes(one.tokens); });
    q8_few_args args = {};
    int64_t blocks = 0;
    if (form.rows < 16 || form.rows % 16 != 0 || form.warps > FEW_WARPS || ring_of<DTYPE>(ctx, form) < 3)
        return fd_fail(err, FD_ERR_INPUT, "kernel q8_matmul_few: no form of %d rows for panels of %d tokens", form.rows,
                       in->x.panel);
    FD_TRY(fd_tile_product(&in->product, "q8_matmul_few", form.rows, &args.product, &blocks, err));
    args.x = in->x.q;
    args.rows = form.rows;
    args.tokens = form.tokens;
    args.n_block = args.product.n_col / 32;
    args.n_stage = (args.n_block + Q8_PANEL_BLOCKS - 1) / Q8_PANEL_BLOCKS;
    args.n_ring = ring_of<DTYPE>(ctx, form);
    args.stage_bytes = few_stage<DTYPE>::bytes(form.rows, form.tokens);
    return few_with_tiles(form, [&](auto tiles) {
        using T = decltype(tiles);
        return fd_launch(ctx, "q8_matmul_few", q8_matmul_few<DTYPE, T::mt, T::nw>, dim3((unsigned)blocks),
                         (form.warps + FEW_HELPERS) * 32,
                         FEW_BARRIERS + T::shared(form, args.n_ring * args.stage_bytes), err, args);
    });
}

} // namespace

fd_code fd_launch_q8_matmul_few(const fd_launch_context *ctx, const fd_q8_matmul *in, int32_t rows, fd_error *err) {
    if (in->product.n_tok < 1 || in->product.n_tok > in->x.panel)
        return fd_fail(err, FD_ERR_INPUT, "kernel q8_matmul_few: %d tokens, panels of %d", in->product.n_tok,
                       in->x.panel);
    return q8_with_type(in->product.part[0].weight.dtype, err,
                        [&](auto type) { return launch<decltype(type)::value>(ctx, in, rows, err); });
}
