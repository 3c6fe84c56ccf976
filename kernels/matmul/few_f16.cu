/* The matrix product of few tokens with weights in binary16 (kernels/matmul/few_f16.h).
 *
 * A thread block computes `rows` rows of weights for all tokens, so that weights are read once, through a ring of stages
 * of one or more panels of 64 columns in shared memory; the tokens' halves of these columns are in the same stage. Half
 * of the warps that multiply have the first 32 columns of each panel, half the others; they meet at the end. */
#include "kernels/attention/mma_f16.cuh"
#include "kernels/launch.cuh"
#include "kernels/matmul/few.cuh"
#include "kernels/matmul/few_f16.h"

namespace {

enum {
    COLUMNS = 64,                   /* of a stage */
    WEIGHTS = COLUMNS * 2,          /* bytes of a row */
    PADDING = 16,                   /* of a row in a stage: eight rows then lie in different banks */
    TOKEN_BYTES = 2 * WEIGHTS + 16, /* first halves, second halves; likewise */
    TILE_BYTES = 8 * TOKEN_BYTES,   /* of eight tokens */
    COPIERS = 4,                    /* warps */
    BARRIERS = 2 * FEW_RING * (int)sizeof(uint64_t)
};

/* Halves of activations in device memory: panels of 64 columns, each a tile for every eight tokens as shared memory
 * has it; behind them the factors that undo each token's scale. */
struct halves {
    uint8_t *panels;
    float *unscale; /* [tokens] */
    int tokens;     /* of a panel: 8, 16, 32 or 64 */
};

struct few_f16_args {
    tile_product product; /* its x is not read */
    halves x;
    int rows, n_panel;               /* of a block, of a row */
    int panels, n_ring, stage_bytes; /* panels of a stage */
};

/* ---- halves ---- */

enum { SPLIT_THREADS = 256 };

/* A block a token. */
__global__ void __launch_bounds__(SPLIT_THREADS) few_f16_split(const float *x, int n_col, halves to) {
    __shared__ float of_warp[SPLIT_THREADS / 32];
    const int token = (int)blockIdx.x, thread = (int)threadIdx.x;
    const float *row = x + (int64_t)token * n_col;
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    float largest = 0.0f;
    for (int k = thread; k < n_col; k += SPLIT_THREADS) largest = fmaxf(largest, fabsf(row[k]));
#pragma unroll
    for (int i = 16; i > 0; i /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, i));
    if (thread % 32 == 0) of_warp[thread / 32] = largest;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < SPLIT_THREADS / 32; i++) largest = fmaxf(largest, of_warp[i]);
    /* 2^(14 - e) for a largest magnitude of 2^e and more; both factors are ordinary numbers. */
    const int exponent = (int)(__float_as_uint(largest) >> 23 & 255u) - 127;
    const int e = exponent < -100 ? -100 : exponent;
    const float scale = __uint_as_float((uint32_t)(127 + 14 - e) << 23);
    if (thread == 0) to.unscale[token] = __uint_as_float((uint32_t)(127 - 14 + e) << 23);
    uint8_t *own = to.panels + token / 8 * TILE_BYTES + token % 8 * TOKEN_BYTES;
    const int64_t panel = (int64_t)(to.tokens / 8) * TILE_BYTES;
    const int padded = (n_col + COLUMNS - 1) / COLUMNS * COLUMNS;
    for (int k = 2 * thread; k < padded; k += 2 * SPLIT_THREADS) {
        const float a = k < n_col ? row[k] * scale : 0.0f, b = k + 1 < n_col ? row[k + 1] * scale : 0.0f;
        const __half2 first = __floats2half2_rn(a, b);
        const float2 back = __half22float2(first);
        uint8_t *at = own + k / COLUMNS * panel + k % COLUMNS * 2;
        *(__half2 *)at = first;
        *(__half2 *)(at + WEIGHTS) = __floats2half2_rn(a - back.x, b - back.y);
    }
}

/* ---- the product ---- */

struct barriers {
    uint32_t copied, free; /* shared addresses, one for each place of the ring */
    __device__ __forceinline__ explicit barriers(const uint8_t *memory) {
        copied = fd_shared_address(memory);
        free = copied + FEW_RING * 8;
    }
    __device__ __forceinline__ void init(int n_ring, int n_warp) const {
        if ((int)threadIdx.x >= n_ring) return;
        fd_mbarrier_init(copied + threadIdx.x * 8, COPIERS * 32);
        fd_mbarrier_init(free + threadIdx.x * 8, (unsigned)n_warp * FD_WARP_ARRIVALS);
    }
};

/* The copying warps: eight lanes share a row of a panel of weights, neighbours have its next panel. Of a block's rows
 * those that there are: what is made of the others is not stored. */
__device__ __forceinline__ void copy_weights(const few_f16_args &a, const uint8_t *rows, int n_row, uint32_t stage,
                                             int panel, int n_panel, int thread) {
    const int of_row = 8 * a.panels, own = thread % of_row * 16, first = thread / of_row;
    const int row_bytes = a.panels * WEIGHTS + PADDING, rows_at_once = COPIERS * 32 / of_row;
    const uint8_t *from = rows + first * a.product.row_bytes + (int64_t)panel * WEIGHTS + own;
    const int64_t step = a.product.row_bytes * rows_at_once;
    uint32_t to = stage + (uint32_t)(first * row_bytes + own);
    if (own >= n_panel * WEIGHTS) return;
#pragma unroll 4
    for (int r = first; r < n_row; r += rows_at_once) {
        fd_cp_async16(to, from);
        from += step;
        to += (uint32_t)(rows_at_once * row_bytes);
    }
}

__device__ __forceinline__ void copy_all(const few_f16_args &a, const uint8_t *rows, int n_row, uint32_t stages,
                                         const barriers &of, int thread) {
    const int at_x = a.rows * (a.panels * WEIGHTS + PADDING), panel_bytes = a.x.tokens / 8 * TILE_BYTES;
    const auto left = [&](int s) { return min(a.panels, a.n_panel - s * a.panels); };
    few_fill((a.n_panel + a.panels - 1) / a.panels, a.n_ring, of.copied, of.free,
             [&](int s, int at) {
                 copy_weights(a, rows, n_row, stages + (uint32_t)(at * a.stage_bytes), s * a.panels, left(s), thread);
             },
             [&](int s, int at, uint32_t barrier) {
                 few_copy_panel(stages + (uint32_t)(at * a.stage_bytes + at_x),
                                a.x.panels + (int64_t)s * a.panels * panel_bytes, left(s) * panel_bytes, barrier,
                                thread, COPIERS * 32);
             });
}

/* A warp's half of a panel: two steps of 16 columns. `rows`, `x`: shared addresses of what the lane names to
 * ldmatrix. */
template <int MT, int NW>
__device__ __forceinline__ void add_panel(uint32_t rows, int row_bytes, uint32_t x, float (&acc)[NW][MT][4]) {
#pragma unroll
    for (int step = 0; step < 2; step++) {
        uint32_t w[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++) fd_ldmatrix(w[m], rows + (uint32_t)(16 * m * row_bytes + step * 32));
#pragma unroll
        for (int n = 0; n < NW; n++) {
            uint32_t b[4]; /* first halves, second halves */
            fd_ldmatrix(b, x + (uint32_t)(n * TILE_BYTES + step * 32));
#pragma unroll
            for (int m = 0; m < MT; m++) {
                fd_mma(acc[n][m], w[m], b[2], b[3]);
                fd_mma(acc[n][m], w[m], b[0], b[1]);
            }
        }
    }
}

/* The sums of the warp's rows and tokens. */
template <int MT, int NW>
__device__ __forceinline__ void store(const few_f16_args &a, const tile_part &part, int64_t row0, int token0,
                                      const float (&acc)[NW][MT][4]) {
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < NW; n++) {
        const float2 unscale = *(const float2 *)(a.x.unscale + token0 + 8 * n + lane % 4 * 2);
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                fd_tile_store(a.product, part, row0 + 16 * m + 8 * (i / 2) + lane / 4,
                              token0 + 8 * n + lane % 4 * 2 + i % 2, acc[n][m][i] * (i % 2 ? unscale.y : unscale.x));
    }
}

/* The multiplying warps: columns, then tokens, then rows. */
template <int MT, int NW>
__device__ __forceinline__ void multiply(const few_f16_args &a, const tile_part &part, int64_t row0, uint8_t *stages,
                                         const barriers &of) {
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, of_half = (int)blockDim.x / 64 - COPIERS / 2;
    const int row_warps = a.rows / (16 * MT), warp_row = warp % row_warps * 16 * MT, side = warp / of_half;
    const int tile = warp % of_half / row_warps * NW, row_bytes = a.panels * WEIGHTS + PADDING;
    const uint32_t memory = fd_shared_address(stages) + (uint32_t)(side * 64);
    const uint32_t rows = memory + (uint32_t)((warp_row + lane % 16) * row_bytes + lane / 16 * 16);
    const uint32_t x = memory + (uint32_t)(a.rows * row_bytes + tile * TILE_BYTES + lane % 8 * TOKEN_BYTES +
                                           lane / 8 % 2 * 16 + lane / 16 * WEIGHTS);
    const uint32_t panel_bytes = (uint32_t)(a.x.tokens / 8 * TILE_BYTES);
    float acc[NW][MT][4] = {};
    few_place place;
    for (int panel = 0; panel < a.n_panel; panel += a.panels) {
        const uint32_t at = (uint32_t)(place.at * a.stage_bytes);
        const int count = min(a.panels, a.n_panel - panel);
        fd_mbarrier_wait_asleep(of.copied + (uint32_t)place.at * 8, place.round);
        for (int p = 0; p < count; p++)
            add_panel<MT, NW>(rows + at + (uint32_t)(p * WEIGHTS), row_bytes, x + at + (uint32_t)p * panel_bytes, acc);
        fd_mbarrier_arrive_warp(of.free + (uint32_t)place.at * 8, lane == 0);
        place.advance(a.n_ring);
    }
    fd_pdl_wait(); /* the scales are another kernel's, and others may still read what is written over */
    if (few_add_up<MT, NW>((float4 *)stages, of_half * 32, acc)) store<MT, NW>(a, part, row0 + warp_row, tile * 8, acc);
}

/* Grid: a block for `rows` rows of a part. */
template <int MT, int NW> __global__ void __maxnreg__(FEW_REGISTERS) few_f16(const __grid_constant__ few_f16_args a) {
    uint8_t *memory = (uint8_t *)fd_shared_floats(), *stages = memory + BARRIERS;
    const barriers of(memory);
    const int multiplying = (int)blockDim.x - COPIERS * 32, copier = (int)threadIdx.x - multiplying;
    unsigned row_tile = blockIdx.x;
    const tile_part &part = *fd_tile_part(a.product, &row_tile);
    const int64_t row0 = (int64_t)row_tile * a.rows, left = part.n_row - row0;

    fd_pdl_launch_dependents();
    of.init(a.n_ring, multiplying / 32);
    __syncthreads();
    if (copier < 0)
        multiply<MT, NW>(a, part, row0, stages, of);
    else
        copy_all(a, part.data + row0 * a.product.row_bytes, left < a.rows ? (int)left : a.rows,
                 fd_shared_address(stages), of, copier);
}

/* ---- launching ---- */

int panels_of(int64_t n_col) {
    return (int)((n_col + COLUMNS - 1) / COLUMNS);
}

int stage_bytes(const few_form &form, int panels) {
    return form.rows * (panels * WEIGHTS + PADDING) + panels * (form.tokens / 8) * TILE_BYTES;
}

/* Panels of a stage: several, so that what is read of a row at a time is long, and of few rows more, so that the ring
 * holds enough bytes on their way; as long as four stages fit (docs/performance-diary.md). */
int stage_panels(const fd_launch_context *ctx, const few_form &form) {
    int panels = form.rows >= 48 ? 2 : 4;
    while (panels > 1 && few_ring_of(ctx, stage_bytes(form, panels), BARRIERS) < 4) panels /= 2;
    return panels;
}
int ring_of(const fd_launch_context *ctx, const few_form &form) {
    return few_ring_of(ctx, stage_bytes(form, stage_panels(ctx, form)), BARRIERS);
}
/* What a block reads; 6 % more where it reads but 128 bytes of a row at a time, which takes DRAM as much longer. */
int64_t bytes_of(const fd_launch_context *ctx, const few_form &form, int64_t n_col) {
    const int64_t bytes = (int64_t)panels_of(n_col) * (form.rows * WEIGHTS + form.tokens / 8 * TILE_BYTES);
    return stage_panels(ctx, form) == 1 ? bytes / 50 * 53 : bytes;
}

} // namespace

size_t fd_few_f16_bytes(int64_t n_col, int32_t n_tok) {
    const size_t tokens = (size_t)few_panel_of(n_tok);
    return (size_t)panels_of(n_col) * (tokens / 8) * TILE_BYTES + tokens * sizeof(float);
}

fd_code fd_launch_few_f16(const fd_launch_context *ctx, const fd_matmul *in, void *memory, int32_t rows,
                          fd_error *err) {
    const int64_t n_col = in->part[0].weight.n_col;
    const int tokens = few_panel_of(in->n_tok);
    const few_form form = few_form_of(
        ctx, *in, tokens, rows, [&](const few_form &one) { return ring_of(ctx, one); },
        [&](const few_form &one) { return bytes_of(ctx, one, n_col); });
    few_f16_args args = {};
    int64_t blocks = 0;
    if (in->n_tok < 1 || in->n_tok > FD_FEW_F16 || in->part[0].weight.dtype != FD_F16 || form.rows < 16 ||
        form.rows % 16 != 0 || form.warps > FEW_WARPS || ring_of(ctx, form) < 3)
        return fd_fail(err, FD_ERR_INPUT, "kernel few_f16: no form of %d rows for %d tokens and weights of type %u",
                       form.rows, in->n_tok, (unsigned)in->part[0].weight.dtype);
    FD_TRY(fd_tile_product(in, "few_f16", form.rows, &args.product, &blocks, err));
    args.n_panel = panels_of(n_col);
    args.x.panels = (uint8_t *)memory;
    args.x.unscale = (float *)(args.x.panels + (int64_t)args.n_panel * (tokens / 8) * TILE_BYTES);
    args.x.tokens = tokens;
    args.rows = form.rows;
    args.panels = stage_panels(ctx, form);
    args.n_ring = ring_of(ctx, form);
    args.stage_bytes = stage_bytes(form, args.panels);
    FD_TRY(fd_launch(ctx, "few_f16_split", few_f16_split, dim3((unsigned)in->n_tok), SPLIT_THREADS, 0, err, in->x,
                     (int)n_col, args.x));
    return few_with_tiles(form, [&](auto tiles) {
        using T = decltype(tiles);
        return fd_launch(ctx, "few_f16", few_f16<T::mt, T::nw>, dim3((unsigned)blocks), (form.warps + COPIERS) * 32,
                         BARRIERS + T::shared(form, args.n_ring * args.stage_bytes), err, args);
    });
}
