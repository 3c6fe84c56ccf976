/* Matrix product of q8act on tensor cores, for several rows of activations.
 *
 * A thread block computes 128 rows of weights by 16·NT tokens. Half of its warps take the blocks of even number, half those of odd
 * number, which are the two partial sums; they meet at the end. One mma.m16n8k32 is the
 * integer dot of one block for 16 × 8 outputs; it starts at the bits that make the sum a float, so that what is left are
 * two fused multiply-adds an output. Units of weights and activations come through a ring of stages in shared memory.
 *
 * Shared rows are swizzled so that the eight (sixteen) threads whose 16 (8) bytes are read at once hit different banks. */
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

/* What a stage holds, in bytes from its start. */
template <uint32_t DTYPE, int NT> struct stage_of {
    using F = q8_format<DTYPE>;
    static constexpr int tokens = 16 * NT;
    static constexpr int subs = F::blocks / 2;                       /* units of 128 activations */
    static constexpr int row = DTYPE == FD_Q4_0 ? 64 : 128;          /* a row's words; Q6_K: without the high bits */
    static constexpr int high = DTYPE == FD_Q6_K ? 64 : 0;           /* those */
    static constexpr int head = DTYPE == FD_Q8_0 || DTYPE == FD_Q4_0 ? 8 : 16;
    static constexpr int last = DTYPE == FD_Q6_K ? 4 : 0;            /* d of two units */
    static constexpr int at_high = ROWS * row;
    static constexpr int at_head = at_high + ROWS * high;
    static constexpr int at_last = at_head + ROWS * head;
    static constexpr int at_x = at_last + ROWS * last;
    static constexpr int at_d = at_x + tokens * 128 * subs;
    static constexpr int at_sum = at_d + tokens * 16 * subs;
    static constexpr int bytes = at_sum + (F::minimum ? tokens * 16 * subs : 0);
    static constexpr int depth = 200 * 1024 / bytes > 4 ? 4 : 200 * 1024 / bytes;
    static_assert(at_x % 128 == 0 && bytes % 128 == 0 && depth >= 2, "rows of 128 bytes start at a bank's beginning");
};

__device__ __forceinline__ void copy16(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(__cvta_generic_to_global(from)) : "memory");
}
template <int BYTES> __device__ __forceinline__ void copy_small(uint32_t to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(__cvta_generic_to_global(from)), "n"(BYTES)
                 : "memory");
}

/* s = Σ w·x + magic for 16 rows by 8 tokens: thread 4g + t has rows g, g + 8 and tokens 2t, 2t + 1. */
__device__ __forceinline__ void mma(int (&s)[4], const uint32_t (&w)[4], uint32_t low, uint32_t high) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=r"(s[0]), "=r"(s[1]), "=r"(s[2]), "=r"(s[3])
        : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(low), "r"(high), "r"(FD_Q8_MAGIC_BITS));
}

/* Where 16 bytes of a row go: pieces of 128-byte rows by pairs of rows, of 64-byte rows by fours. */
template <int ROW> __device__ __forceinline__ int swizzled(int row, int piece) {
    return ROW == 128 ? row * 128 + (piece ^ (row & 1) << 2) * 16 : row * 64 + (piece ^ (row >> 1 & 1) << 1) * 16;
}
/* Of activations a block of 32 bytes stays together. */
__device__ __forceinline__ int swizzled_x(int token, int block) { return token * 128 + (block ^ (token & 3)) * 32; }

template <uint32_t DTYPE, int NT, int THREADS>
__device__ __forceinline__ void load_stage(const q8_matmul_args &a, uint32_t to, int unit, int64_t row0, int token0) {
    using S = stage_of<DTYPE, NT>;
    using F = q8_format<DTYPE>;
    const int thread = (int)threadIdx.x;
    {
        /* Four or two threads a row. Rows past the last are the last again. */
        constexpr int each = THREADS / ROWS;
        const int row = thread / each, part = thread % each;
        const int64_t at = row0 + row < a.n_row ? row0 + row : a.n_row - 1;
        const uint8_t *from = a.data + at * a.row_bytes + (int64_t)unit * F::unit_bytes;
        const uint8_t *words = from + (DTYPE == FD_Q4_K ? 16 : 0);
#pragma unroll
        for (int piece = part; piece < S::row / 16; piece += each)
            copy16(to + swizzled<S::row>(row, piece), words + piece * 16);
#pragma unroll
        for (int piece = part; piece < S::high / 16; piece += each)
            copy16(to + S::at_high + swizzled<64>(row, piece), from + 128 + piece * 16);
        if (part == 0) {
            if (DTYPE == FD_Q4_K) copy16(to + S::at_head + row * 16, from);
            if (DTYPE == FD_Q6_K) copy16(to + S::at_head + row * 16, from + 192);
            if (S::head == 8) copy_small<8>(to + S::at_head + row * 8, a.data + at * a.row_bytes + a.scale_offset + unit * 8);
            if (S::last)
                copy_small<4>(to + S::at_last + row * 4, a.data + at * a.row_bytes + a.scale_offset + unit / 2 * 4);
        }
    }
#pragma unroll
    for (int i = thread; i < S::tokens * 8 * S::subs; i += THREADS) {
        const int sub = i / (S::tokens * 8), token = i / 8 % S::tokens, piece = i % 8;
        const int at = token0 + token < a.n_tok ? token0 + token : a.n_tok - 1;
        copy16(to + S::at_x + sub * S::tokens * 128 + swizzled_x(token, piece / 2) + piece % 2 * 16,
               a.x.q + at * a.x.row_bytes + (int64_t)(unit * S::subs + sub) * 128 + piece * 16);
    }
    for (int i = thread; i < S::tokens * S::subs; i += THREADS) { /* four tokens of one block */
        const int block = i / (S::tokens / 4), token = i % (S::tokens / 4) * 4;
        const int at = token0 + token < a.x.tok_stride ? token0 + token : a.x.tok_stride - 4;
        const int64_t from = (int64_t)(unit * S::subs * 4 + block) * a.x.tok_stride + at;
        copy16(to + S::at_d + (block * S::tokens + token) * 4, a.x.d + from);
        if (F::minimum) copy16(to + S::at_sum + (block * S::tokens + token) * 4, a.x.sum + from);
    }
}

/* A thread's words of a row in a unit: lane 4·parity + t of the eight of kernels/pack.h. */
template <uint32_t DTYPE, int NT>
__device__ __forceinline__ void read_words(const uint8_t *stage, int row, int lane, uint32_t (&w)[q8_format<DTYPE>::words]) {
    using S = stage_of<DTYPE, NT>;
    if constexpr (DTYPE == FD_Q4_0) {
        const uint2 q = *(const uint2 *)(stage + swizzled<64>(row, lane / 2) + lane % 2 * 8);
        w[0] = q.x, w[1] = q.y;
    } else {
        const uint4 q = *(const uint4 *)(stage + swizzled<128>(row, lane));
        w[0] = q.x, w[1] = q.y, w[2] = q.z, w[3] = q.w;
        if constexpr (DTYPE == FD_Q6_K) {
            const uint2 high = *(const uint2 *)(stage + S::at_high + swizzled<64>(row, lane / 2) + lane % 2 * 8);
            w[4] = high.x, w[5] = high.y;
        }
    }
}

template <uint32_t DTYPE, int NT>
__device__ __forceinline__ void read_head(const uint8_t *stage, int row, int parity, int unit,
                                          uint32_t (&head)[q8_format<DTYPE>::head_words]) {
    using S = stage_of<DTYPE, NT>;
    const uint8_t *from = stage + S::at_head + row * S::head;
    if constexpr (DTYPE == FD_Q4_K) {
        const uint4 h = *(const uint4 *)from;
        head[0] = h.x, head[1] = h.y, head[2] = h.z, head[3] = h.w;
    } else if constexpr (DTYPE == FD_Q6_K) {
        const uint2 h = *(const uint2 *)(from + parity * 8);
        head[0] = h.x, head[1] = h.y;
        head[2] = *(const uint16_t *)(stage + S::at_last + row * 4 + unit % 2 * 2);
    } else {
        const uint2 h = *(const uint2 *)from;
        head[0] = h.x, head[1] = h.y;
    }
}

/* One unit: its blocks of the warp's parity, in order. */
template <uint32_t DTYPE, int MT, int NT>
__device__ __forceinline__ void add_unit(const q8_matmul_args &a, const uint8_t *stage, int unit, int warp_row, int warp_token,
                                         int parity, float (&acc)[MT][NT][4]) {
    using S = stage_of<DTYPE, NT>;
    using F = q8_format<DTYPE>;
    const int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    uint32_t words[MT][2][F::words], heads[MT][2][F::head_words];
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = warp_row + 16 * m + 8 * h + g;
            read_words<DTYPE, NT>(stage, row, 4 * parity + t, words[m][h]);
            read_head<DTYPE, NT>(stage, row, parity, unit, heads[m][h]);
        }
#pragma unroll
    for (int j = 0; j < F::blocks; j++) {
        const int in_unit = parity + 2 * j;
        if (F::blocks == 2 && unit * 4 + in_unit >= a.n_block) break; /* a row's last unit may have blocks past its end */
        uint32_t w[MT][4];
        float scale[MT][2][F::halves], min[MT][2];
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                F::ints(words[m][h], j, w[m][h], w[m][h + 2]);
#pragma unroll
                for (int k = 0; k < F::halves; k++) scale[m][h][k] = F::scale(heads[m][h], parity, j, k);
                min[m][h] = F::min(heads[m][h], parity, j);
            }
        const uint8_t *x = stage + S::at_x + j / 2 * S::tokens * 128;
        const int of_x = parity + 2 * (j % 2); /* block of its 128 activations */
        const float *d = (const float *)(stage + S::at_d) + in_unit * S::tokens + warp_token + 2 * t;
        const float *sum = (const float *)(stage + S::at_sum) + in_unit * S::tokens + warp_token + 2 * t;
#pragma unroll
        for (int n = 0; n < NT; n++) {
            const uint2 q = *(const uint2 *)(x + swizzled_x(warp_token + 8 * n + g, of_x) + 8 * t);
            const float2 dn = *(const float2 *)(d + 8 * n);
#pragma unroll
            for (int k = 0; k < F::halves; k++) {
                /* Threads 0 and 1 of four hold the first 16 elements, 2 and 3 the last: zeros leave the others out. */
                const bool in = F::halves == 1 || t / 2 == k;
                const uint32_t low = in ? q.x : 0, high = in ? q.y : 0;
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    int s[4];
                    mma(s, w[m], low, high);
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        acc[m][n][i] = fmaf(fd_q8_times(__int_as_float(s[i]), scale[m][i / 2][k]), i % 2 ? dn.y : dn.x,
                                            acc[m][n][i]);
                }
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
    using S = stage_of<DTYPE, NT>;
    using F = q8_format<DTYPE>;
    uint8_t *shared = (uint8_t *)fd_shared_floats();
    const uint32_t shared_at = (uint32_t)__cvta_generic_to_shared(shared);
    constexpr int down = ROWS / (16 * MT); /* warps */
    const int warp = (int)threadIdx.x / 32, parity = warp / (2 * down);
    const int warp_row = warp % down * 16 * MT, warp_token = warp / down % 2 * 8 * NT;
    const int64_t row0 = (int64_t)blockIdx.y * ROWS;
    const int token0 = (int)blockIdx.x * S::tokens;
    const int n_unit = (a.n_block + 2 * F::blocks - 1) / (2 * F::blocks);
    float acc[MT][NT][4] = {};

    fd_allow_next();
    fd_wait_previous();
#pragma unroll
    for (int u = 0; u < S::depth - 1; u++) {
        if (u < n_unit) load_stage<DTYPE, NT, threads_of<MT>>(a, shared_at + u * S::bytes, u, row0, token0);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    int at = 0;
    for (int unit = 0; unit < n_unit; unit++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(S::depth - 2) : "memory");
        __syncthreads(); /* the stage is there, and the one before it is read */
        const int ahead = unit + S::depth - 1, slot = at == 0 ? S::depth - 1 : at - 1;
        if (ahead < n_unit) load_stage<DTYPE, NT, threads_of<MT>>(a, shared_at + slot * S::bytes, ahead, row0, token0);
        asm volatile("cp.async.commit_group;" ::: "memory");
        add_unit<DTYPE, MT, NT>(a, shared + at * S::bytes, unit, warp_row, warp_token, parity, acc);
        at = at == S::depth - 1 ? 0 : at + 1;
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    finish<MT, NT>(a, (float *)shared, row0 + warp_row, token0 + warp_token, parity, acc);
}

template <uint32_t DTYPE, int MT, int NT>
fd_code launch(const fd_queue *queue, const q8_matmul_args &args, fd_error *err) {
    using S = stage_of<DTYPE, NT>;
    /* Token tiles first: blocks that run together share rows of weights. */
    const dim3 grid(fd_blocks(args.n_tok, S::tokens), fd_blocks(args.n_row, ROWS));
    constexpr size_t ring = (size_t)S::depth * S::bytes, end = (size_t)threads_of<MT> * MT / 2 * NT * sizeof(float4);
    return fd_launch(queue, "q8_matmul", q8_matmul<DTYPE, MT, NT>, grid, threads_of<MT>, ring > end ? ring : end, err, args);
}

template <uint32_t DTYPE> fd_code launch_dtype(const fd_queue *queue, const q8_matmul_args &args, fd_error *err) {
    if (args.n_tok <= 32) return launch<DTYPE, 2, 2>(queue, args, err);
    return launch<DTYPE, 4, 8>(queue, args, err);
}

} // namespace

fd_code fd_launch_q8_matmul(const fd_queue *queue, const fd_device_matrix *weight, const float *bias, const fd_q8_rows *x,
                            int32_t n_tok, float *out, fd_error *err) {
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
    case FD_Q8_0: return launch_dtype<FD_Q8_0>(queue, args, err);
    case FD_Q4_0: return launch_dtype<FD_Q4_0>(queue, args, err);
    case FD_Q4_K: return launch_dtype<FD_Q4_K>(queue, args, err);
    default: return launch_dtype<FD_Q6_K>(queue, args, err);
    }
}
