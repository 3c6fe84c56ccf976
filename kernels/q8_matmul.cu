/* Matrix product of q8act on tensor cores, for several rows of activations.
 *
 * A thread block computes 128 rows of weights by 16·NT tokens. Half of its warps take the blocks of even number, half
 * those of odd number, which are the two partial sums; they meet at the end. One mma.m16n8k32 is the integer dot of one
 * block for 16 × 8 outputs (k16 where a block has two scales); it starts at the bits that make the sum a float, so that
 * what is left are two fused multiply-adds an output. Activations come through a ring of stages in shared memory;
 * weights through registers, a unit ahead, from which they are stored as int8 in the file's order, with their scales as
 * floats.
 *
 * Rows of 128 bytes in shared memory are swizzled, piece of 16 bytes p of row r at p ^ r % 8: ldmatrix reads eight rows
 * at once. */
#include "kernels/launch.cuh"
#include "kernels/q8.h"
#include "kernels/q8_formats.cuh"

namespace {

constexpr int ROWS = 128;
/* A warp has MT tiles of 16 rows and NT tiles of 8 tokens; 128 rows and two columns of warps make a parity. */
template <int MT> constexpr int threads_of = 2 * 2 * ROWS / (16 * MT) * 32;

struct q8_matmul_args {
    const uint8_t *data;
    int64_t row_bytes, scale_offset, n_row;
    int n_block, n_tok;
    const float *bias;
    fd_q8_rows x;
    float *out;
};

/* Shared memory, in bytes: two buffers of weights and their scales, then the ring of activations. */
template <uint32_t DTYPE, int NT> struct layout_of {
    using F = q8_format<DTYPE>;
    static constexpr int tokens = 16 * NT;
    static constexpr int subs = F::blocks / 2; /* a unit in rows of 128 elements */
    static constexpr int weights = ROWS * 128 * subs;
    static constexpr int scales = F::halves + F::minimum; /* floats a row and block */
    static constexpr int table = 4 * subs * scales * ROWS * (int)sizeof(float);
    static constexpr int at_stages = 2 * (weights + table);
    static constexpr int at_d = tokens * 128 * subs; /* of a stage */
    static constexpr int at_sum = at_d + tokens * 16 * subs;
    static constexpr int stage = at_sum + (F::minimum ? tokens * 16 * subs : 0);
    static constexpr int room = (226 * 1024 - at_stages) / stage;
    static constexpr int depth = room > 4 ? 4 : room;
    static_assert(depth >= 2 && stage % 128 == 0, "a stage to read and one to fill, each from a bank's beginning");
};

__device__ __forceinline__ void copy16(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(__cvta_generic_to_global(from)) : "memory");
}

/* Four tiles of 8 rows of 16 bytes; thread 4g + t gets bytes 4t … 4t + 3 of row g of each. `at`: of row lane % 8 of
 * tile lane / 8. */
__device__ __forceinline__ void load_tiles(uint32_t (&w)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "r"(at)
                 : "memory");
}

/* s = Σ w·x + magic for 16 rows by 8 tokens: thread 4g + t has rows g, g + 8 and tokens 2t, 2t + 1. */
__device__ __forceinline__ void mma(int (&s)[4], const uint32_t (&w)[4], uint32_t low, uint32_t high) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=r"(s[0]), "=r"(s[1]), "=r"(s[2]), "=r"(s[3])
        : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(low), "r"(high), "r"(FD_Q8_MAGIC_BITS));
}
__device__ __forceinline__ void mma16(int (&s)[4], uint32_t w0, uint32_t w1, uint32_t x) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
        : "=r"(s[0]), "=r"(s[1]), "=r"(s[2]), "=r"(s[3])
        : "r"(w0), "r"(w1), "r"(x), "r"(FD_Q8_MAGIC_BITS));
}

/* ---- weights: from memory to registers, from registers to shared memory ---- */

/* Eight threads have the eight lanes' words (kernels/pack.h) of a row, of several rows in turn; two threads the scales
 * of a row. */
template <uint32_t DTYPE, int NT, int THREADS> struct weights_in_flight {
    using L = layout_of<DTYPE, NT>;
    using F = q8_format<DTYPE>;
    static constexpr int turns = ROWS * 8 / THREADS;

    const uint8_t *row[turns], *head_row;
    uint32_t w[turns][F::words], head[F::head_words];

    __device__ __forceinline__ weights_in_flight(const q8_matmul_args &a, int64_t row0) {
#pragma unroll
        for (int i = 0; i < turns; i++) row[i] = row_at(a, row0 + (int)threadIdx.x / 8 + i * (THREADS / 8));
        head_row = row_at(a, row0 + (int)threadIdx.x % ROWS);
    }
    /* Rows past the last are the last again. */
    __device__ __forceinline__ static const uint8_t *row_at(const q8_matmul_args &a, int64_t at) {
        return a.data + (at < a.n_row ? at : a.n_row - 1) * a.row_bytes;
    }

    __device__ __forceinline__ void load(const q8_matmul_args &a, int unit) {
        const int lane = (int)threadIdx.x % 8;
#pragma unroll
        for (int i = 0; i < turns; i++) {
            const uint8_t *from = row[i] + unit * F::unit_bytes;
            if constexpr (DTYPE == FD_Q4_0) {
                const uint2 q = __ldg((const uint2 *)(from + lane * 8));
                w[i][0] = q.x, w[i][1] = q.y;
            } else {
                const uint4 q = __ldg((const uint4 *)(from + (DTYPE == FD_Q4_K ? 16 : 0) + lane * 16));
                w[i][0] = q.x, w[i][1] = q.y, w[i][2] = q.z, w[i][3] = q.w;
            }
            if constexpr (DTYPE == FD_Q6_K) {
                const uint2 high = __ldg((const uint2 *)(from + 128 + lane * 8));
                w[i][4] = high.x, w[i][5] = high.y;
            }
        }
        if (threadIdx.x >= 2 * ROWS) return;
        const int parity = (int)threadIdx.x / ROWS;
        if constexpr (DTYPE == FD_Q4_K) {
            const uint4 h = __ldg((const uint4 *)(head_row + unit * 144));
            head[0] = h.x, head[1] = h.y, head[2] = h.z, head[3] = h.w;
        } else if constexpr (DTYPE == FD_Q6_K) {
            const uint2 h = __ldg((const uint2 *)(head_row + unit * 208 + 192 + parity * 8));
            head[0] = h.x, head[1] = h.y, head[2] = __ldg((const uint16_t *)(head_row + a.scale_offset + unit * 2));
        } else {
            const uint2 h = __ldg((const uint2 *)(head_row + a.scale_offset + unit * 8));
            head[0] = h.x, head[1] = h.y;
        }
    }

    /* weights [sub][row][128], then table [block][half or minimum][row]. */
    __device__ __forceinline__ void store(uint8_t *to) const {
        const int lane = (int)threadIdx.x % 8, parity = lane / 4;
#pragma unroll
        for (int i = 0; i < turns; i++) {
            const int at = (int)threadIdx.x / 8 + i * (THREADS / 8);
#pragma unroll
            for (int j = 0; j < F::blocks; j++) {
                const int piece = 2 * (parity + 2 * (j % 2)) + lane % 4 / 2;
                uint2 q;
                F::ints(w[i], j, q.x, q.y);
                *(uint2 *)(to + j / 2 * ROWS * 128 + at * 128 + (piece ^ at % 8) * 16 + lane % 2 * 8) = q;
            }
        }
        if (threadIdx.x >= 2 * ROWS) return;
        const int head_parity = (int)threadIdx.x / ROWS;
        float *table = (float *)(to + L::weights) + (int)threadIdx.x % ROWS;
#pragma unroll
        for (int j = 0; j < F::blocks; j++) {
            float *block = table + (head_parity + 2 * j) * L::scales * ROWS;
#pragma unroll
            for (int k = 0; k < F::halves; k++) block[k * ROWS] = F::scale(head, head_parity, j, k);
            if (F::minimum) block[F::halves * ROWS] = F::min(head, head_parity, j);
        }
    }
};

/* ---- activations: a thread's pieces of some tokens and of their scales, copied without waiting ---- */

template <uint32_t DTYPE, int NT, int THREADS> struct activations {
    using L = layout_of<DTYPE, NT>;
    static constexpr int quads = L::tokens / 4; /* of tokens, in a row of scales */

    const int8_t *x;
    const float *d;
    int64_t step, sum_from_d;
    int at;

    __device__ __forceinline__ activations(const q8_matmul_args &a, int token0) {
        const int thread = (int)threadIdx.x, token = thread / 8;
        x = a.x.q + (token0 + token) * a.x.row_bytes + thread % 8 * 16;
        step = a.x.row_bytes * (THREADS / 8);
        at = token * 128 + (thread % 8 ^ token % 8) * 16;
        d = a.x.d + (int64_t)(thread / quads) * a.x.tok_stride + token0 + thread % quads * 4;
        sum_from_d = a.x.sum - a.x.d;
    }

    __device__ __forceinline__ void copy(uint32_t to, int unit, const q8_matmul_args &a) const {
#pragma unroll
        for (int sub = 0; sub < L::subs; sub++)
#pragma unroll
            for (int i = 0; i < L::tokens * 8; i += THREADS)
                if (i + THREADS <= L::tokens * 8 || (int)threadIdx.x < L::tokens * 8 - i)
                    copy16(to + at + sub * L::tokens * 128 + i / 8 * 128,
                           x + (unit * L::subs + sub) * 128 + i / THREADS * step);
#pragma unroll
        for (int i = 0; i < 4 * L::subs * quads; i += THREADS)
            if (i + (int)threadIdx.x < 4 * L::subs * quads) {
                const float *from = d + (int64_t)(unit * 4 * L::subs + i / quads) * a.x.tok_stride;
                copy16(to + L::at_d + (i + (int)threadIdx.x) * 16, from);
                if (L::F::minimum) copy16(to + L::at_sum + (i + (int)threadIdx.x) * 16, from + sum_from_d);
            }
    }
};

/* One unit: its blocks of the warp's parity, in order. */
template <uint32_t DTYPE, int MT, int NT>
__device__ __forceinline__ void add_unit(const uint8_t *weights, const uint8_t *stage, int n_block, int warp_row,
                                         int warp_token, int parity, float (&acc)[MT][NT][4]) {
    using L = layout_of<DTYPE, NT>;
    using F = q8_format<DTYPE>;
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t of_w = (uint32_t)__cvta_generic_to_shared(weights) + (warp_row + lane % 16) * 128;
    const uint32_t of_x = (uint32_t)__cvta_generic_to_shared(stage) + (warp_token + lane / 16 * 8 + lane % 8) * 128;
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
            load_tiles(w[m], of_w + (j / 2 * ROWS + 16 * m) * 128 + ((piece + lane / 16) ^ lane % 8) * 16);
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
                load_tiles(x, of_x + (j / 2 * L::tokens + 8 * n) * 128 + ((piece + lane / 8 % 2) ^ lane % 8) * 16);
            const float2 dn = *(const float2 *)(d + 8 * n);
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int k = 0; k < F::halves; k++) {
                    int s[4];
                    if (F::halves == 1)
                        mma(s, w[m], x[n % 2 * 2], x[n % 2 * 2 + 1]);
                    else
                        mma16(s, w[m][2 * k], w[m][2 * k + 1], x[n % 2 * 2 + k]);
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
__device__ __forceinline__ void finish(const q8_matmul_args &a, float *shared, int64_t row0, int token0, int parity,
                                       float (&acc)[MT][NT][4]) {
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
                if (row >= a.n_row || token >= a.n_tok) continue;
                float y = (parity ? acc[m + half][n][i] : acc[m][n][i]) + add[i];
                if (a.bias) y = y + a.bias[row];
                a.out[token * a.n_row + row] = y;
            }
        }
}

template <uint32_t DTYPE, int MT, int NT>
__global__ void __launch_bounds__(threads_of<MT>, 1) q8_matmul(const __grid_constant__ q8_matmul_args a) {
    using L = layout_of<DTYPE, NT>;
    using F = q8_format<DTYPE>;
    constexpr int down = ROWS / (16 * MT), buffer = L::weights + L::table; /* warps; bytes */
    uint8_t *shared = (uint8_t *)fd_shared_floats(), *stages = shared + L::at_stages;
    const uint32_t stages_at = (uint32_t)__cvta_generic_to_shared(stages);
    const int warp = (int)threadIdx.x / 32, parity = warp / (2 * down);
    const int warp_row = warp % down * 16 * MT, warp_token = warp / down % 2 * 8 * NT;
    const int64_t row0 = (int64_t)blockIdx.y * ROWS;
    const int token0 = (int)blockIdx.x * L::tokens;
    const int n_unit = (a.n_block + 2 * F::blocks - 1) / (2 * F::blocks);
    float acc[MT][NT][4] = {};
    weights_in_flight<DTYPE, NT, threads_of<MT>> weights(a, row0);
    activations<DTYPE, NT, threads_of<MT>> x(a, token0);

    fd_allow_next();
    weights.load(a, 0);
    fd_wait_previous();
#pragma unroll
    for (int u = 0; u < L::depth - 1; u++) {
        if (u < n_unit) x.copy(stages_at + u * L::stage, u, a);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    weights.store(shared);
    if (n_unit > 1) weights.load(a, 1);
    int at = 0;
    for (int unit = 0; unit < n_unit; unit++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(L::depth - 2) : "memory");
        __syncthreads(); /* this unit is there, and the one before it is read */
        const int ahead = unit + L::depth - 1, slot = at == 0 ? L::depth - 1 : at - 1;
        if (ahead < n_unit) x.copy(stages_at + slot * L::stage, ahead, a);
        asm volatile("cp.async.commit_group;" ::: "memory");
        if (unit + 1 < n_unit) weights.store(shared + (unit + 1) % 2 * buffer);
        if (unit + 2 < n_unit) weights.load(a, unit + 2);
        add_unit<DTYPE, MT, NT>(shared + unit % 2 * buffer, stages + at * L::stage, a.n_block - unit * 2 * F::blocks,
                                warp_row, warp_token, parity, acc);
        at = at == L::depth - 1 ? 0 : at + 1;
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    finish<MT, NT>(a, (float *)shared, row0 + warp_row, token0 + warp_token, parity, acc);
}

template <uint32_t DTYPE, int MT, int NT>
fd_code launch(const fd_queue *queue, const q8_matmul_args &args, fd_error *err) {
    using L = layout_of<DTYPE, NT>;
    /* Token tiles first: blocks that run together share rows of weights. */
    const dim3 grid(fd_blocks(args.n_tok, L::tokens), fd_blocks(args.n_row, ROWS));
    constexpr size_t ring = (size_t)L::at_stages + (size_t)L::depth * L::stage,
                     end = (size_t)threads_of<MT> * MT / 2 * NT * sizeof(float4);
    return fd_launch(queue, "q8_matmul", q8_matmul<DTYPE, MT, NT>, grid, threads_of<MT>, ring > end ? ring : end, err,
                     args);
}

template <uint32_t DTYPE>
fd_code launch_dtype(const fd_queue *queue, const q8_matmul_args &args, int tile, fd_error *err) {
    if (tile == 0) {
        /* Narrower tiles where wide ones would leave half of the multiprocessors without work, or tokens are few. */
        const int64_t wide = (args.n_row + ROWS - 1) / ROWS * ((args.n_tok + 127) / 128);
        tile = args.n_tok <= 32 || wide * 4 <= queue->n_sm + queue->n_sm / 8   ? 32
               : args.n_tok <= 64 || wide * 2 <= queue->n_sm + queue->n_sm / 8 ? 64
                                                                               : 128;
    }
    if (tile == 32) return launch<DTYPE, 2, 2>(queue, args, err);
    return tile == 64 ? launch<DTYPE, 2, 4>(queue, args, err) : launch<DTYPE, 4, 8>(queue, args, err);
}

} // namespace

fd_code fd_launch_q8_matmul(const fd_queue *queue, const fd_device_matrix *weight, const float *bias,
                            const fd_q8_rows *x, int32_t n_tok, int32_t tile, float *out, fd_error *err) {
    if (tile != 0 && tile != 32 && tile != 64 && tile != 128)
        return fd_fail(err, FD_ERR_INPUT, "kernel q8_matmul: tiles of %d tokens, expected 32, 64 or 128", tile);
    if (!fd_q8_can(weight->dtype) || n_tok < 1 || weight->n_row < 1 || weight->n_row > 65535 * (int64_t)ROWS ||
        weight->n_col < 32 || weight->n_col % 32 != 0 || weight->n_col > x->row_bytes)
        return fd_fail(err, FD_ERR_UNSUPPORTED, "kernel q8_matmul: [%lld, %lld] of type %u times %d rows of %lld bytes",
                       (long long)weight->n_row, (long long)weight->n_col, (unsigned)weight->dtype, n_tok,
                       (long long)x->row_bytes);
    q8_matmul_args args = {};
    args.data = (const uint8_t *)weight->data;
    args.row_bytes = weight->row_bytes;
    args.scale_offset = weight->scale_offset;
    args.n_row = weight->n_row;
    args.n_block = (int)(weight->n_col / 32);
    args.n_tok = n_tok;
    args.bias = bias;
    args.x = *x;
    args.out = out;
    switch (weight->dtype) {
    case FD_Q8_0: return launch_dtype<FD_Q8_0>(queue, args, tile, err);
    case FD_Q4_0: return launch_dtype<FD_Q4_0>(queue, args, tile, err);
    case FD_Q4_K: return launch_dtype<FD_Q4_K>(queue, args, tile, err);
    default: return launch_dtype<FD_Q6_K>(queue, args, tile, err);
    }
}
