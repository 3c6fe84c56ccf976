/* Attention of many rows: a block takes 64 rows of a head, a warp 16 of them, and walks over the keys in tiles with a
 * running maximum and sum (online softmax), while the next tile of K and V is copied. */
#include "kernels/attention/attention_f16.h"

#include "kernels/attention/attention.h"
#include "kernels/approx_math.cuh"
#include "kernels/attention/mma_f16.cuh"
#include "kernels/launch.cuh"

enum { ROWS = 64, WARPS = 4, THREADS = 32 * WARPS };

/* Keys of a tile: 64; 32 for long heads, whose sums fill the registers. */
template <int WIDTH> struct tile_of {
    static constexpr int keys = WIDTH > 128 ? 32 : 64;
    static constexpr size_t shared = sizeof(uint16_t) * WIDTH * (ROWS + 2 * 2 * keys);
};

/* Rows [first, first + KEYS) of one head of a cache; zeros past the cache's end and past the head's. */
template <int WIDTH>
__device__ __forceinline__ void load_tile(const fd_attn_f16 &a, const uint16_t *cache, int kv_head, int first,
                                          uint16_t *tile) {
    constexpr int chunks = WIDTH / 8;
    for (int i = (int)threadIdx.x; i < tile_of<WIDTH>::keys * chunks; i += THREADS) {
        const int row = i / chunks, chunk = i % chunks, at = first + row;
        const uint16_t *from = cache + ((int64_t)at * a.n_head_kv + kv_head) * a.head_dim + chunk * 8;
        uint16_t *to = tile + fd_tile_at<WIDTH>(row, chunk);
        if (a.head_dim % 8 == 0) {
            const bool valid = at < a.n_ctx && chunk * 8 < a.head_dim;
            fd_cp_async16(to, valid ? from : cache, valid);
        } else {
            for (int k = 0; k < 8; k++) to[k] = at < a.n_ctx && chunk * 8 + k < a.head_dim ? from[k] : (uint16_t)0;
        }
    }
}

template <int WIDTH>
__device__ __forceinline__ void load_queries(const fd_attn_f16 &a, int head, int first, uint16_t *tile) {
    constexpr int chunks = WIDTH / 8;
    for (int i = (int)threadIdx.x; i < ROWS * chunks; i += THREADS) {
        const int row = i / chunks, chunk = i % chunks;
        const float *from = a.q + ((int64_t)(first + row) * a.n_head + head) * a.head_dim + chunk * 8;
        float q[8];
#pragma unroll
        for (int k = 0; k < 8; k++) q[k] = first + row < a.n_tok && chunk * 8 + k < a.head_dim ? from[k] : 0.0f;
        *(uint4 *)(tile + fd_tile_at<WIDTH>(row, chunk)) = make_uint4(
            fd_half_pair(q[0], q[1]), fd_half_pair(q[2], q[3]), fd_half_pair(q[4], q[5]), fd_half_pair(q[6], q[7]));
    }
}

__device__ __forceinline__ float max_of_four(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float sum_of_four(float x) {
    x = x + __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

template <int WIDTH> using scores_of = float[tile_of<WIDTH>::keys / 8][4];
template <int WIDTH> using sums_of = float[WIDTH / 8][4];

/* Which of an ldmatrix's four 8 × 8 matrices this lane names a row of, and which row: passed on, because the compiler
 * spends registers on addresses where each phase finds it out for itself. */
struct matrix_place {
    int matrix, row;
};

/* A warp's 16 queries as fragments; those of long heads are read again for each tile of keys. */
template <int WIDTH> struct query_fragments {
    static constexpr bool held = WIDTH <= 128;
    static constexpr int steps = WIDTH / 16;
    const matrix_place place;
    const uint16_t *tile;
    uint32_t q[held ? steps : 1][4];

    __device__ __forceinline__ const uint16_t *at(int k) const {
        const int row = (int)threadIdx.x / 32 * 16 + place.matrix % 2 * 8 + place.row;
        return tile + fd_tile_at<WIDTH>(row, 2 * k + place.matrix / 2);
    }
    __device__ __forceinline__ query_fragments(const uint16_t *queries, const matrix_place &at_place)
        : place(at_place), tile(queries) {
        if constexpr (held) {
#pragma unroll
            for (int k = 0; k < steps; k++) fd_ldmatrix(q[k], fd_shared_address(at(k)));
        }
    }
};

/* s = q·k of the warp's rows and a tile of keys. */
template <int WIDTH>
__device__ __forceinline__ void score_tile(const query_fragments<WIDTH> &queries, const uint16_t *keys,
                                           scores_of<WIDTH> &s) {
    using Q = query_fragments<WIDTH>;
#pragma unroll
    for (int k = 0; k < Q::steps; k++) {
        uint32_t now[4];
        if constexpr (!Q::held) fd_ldmatrix(now, fd_shared_address(queries.at(k)));
#pragma unroll
        for (int j = 0; j < tile_of<WIDTH>::keys / 8; j += 2) {
            uint32_t b[4]; /* keys 8j …: elements 16k …, 16k + 8 …; then keys 8j + 8 … */
            fd_ldmatrix(
                b, fd_shared_address(keys + fd_tile_at<WIDTH>(j * 8 + queries.place.matrix / 2 * 8 + queries.place.row,
                                                              2 * k + queries.place.matrix % 2)));
            if constexpr (Q::held) {
                fd_mma(s[j], queries.q[k], b[0], b[1]);
                fd_mma(s[j + 1], queries.q[k], b[2], b[3]);
            } else {
                fd_mma(s[j], now, b[0], b[1]);
                fd_mma(s[j + 1], now, b[2], b[3]);
            }
        }
    }
}

/* Scale, softcap, and -inf where a row does not look; the warp's first row is at position `warp_pos`. */
template <int WIDTH>
__device__ __forceinline__ void mask_tile(const fd_attn_f16 &a, int tile, int warp_pos, scores_of<WIDTH> &s) {
    constexpr int KEYS = tile_of<WIDTH>::keys, KEY_TILES = KEYS / 8;
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < KEY_TILES; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) s[j][i] *= a.scale;
    if (a.softcap != 0.0f) {
#pragma unroll
        for (int j = 0; j < KEY_TILES; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[j][i] = fd_approx_softcap(s[j][i], a.softcap);
    }
    /* All rows of the warp see most tiles whole. */
    if (tile * KEYS + KEYS - 1 <= warp_pos && !(a.window > 0 && tile * KEYS <= warp_pos + 15 - a.window)) return;
#pragma unroll
    for (int j = 0; j < KEY_TILES; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int pos = warp_pos + lane / 4 + i / 2 * 8, key = tile * KEYS + j * 8 + lane % 4 * 2 + i % 2;
            if (key > pos || (a.window > 0 && key <= pos - a.window)) s[j][i] = -(float)INFINITY;
        }
    }
}

/* The softmax so far of the lane's two rows. */
struct running {
    float max[2], sum[2];
};

/* s to e^(s − maximum), the maximum and the sum moved on, out scaled down to the new maximum. */
template <int WIDTH>
__device__ __forceinline__ void softmax_tile(scores_of<WIDTH> &s, running &of, sums_of<WIDTH> &out) {
    constexpr int KEY_TILES = tile_of<WIDTH>::keys / 8;
    float largest[2] = {of.max[0], of.max[1]}, base[2];
#pragma unroll
    for (int j = 0; j < KEY_TILES; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) largest[i / 2] = fmaxf(largest[i / 2], s[j][i]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        largest[r] = max_of_four(largest[r]);
        base[r] = largest[r] == -(float)INFINITY ? 0.0f : largest[r]; /* no key seen so far: e^-inf all the same */
        const float shrink = fd_approx_exp(of.max[r], base[r]);
        of.max[r] = largest[r];
        of.sum[r] *= shrink;
#pragma unroll
        for (int d = 0; d < WIDTH / 8; d++) out[d][2 * r] *= shrink, out[d][2 * r + 1] *= shrink;
    }
#pragma unroll
    for (int j = 0; j < KEY_TILES; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s[j][i] = fd_approx_exp(s[j][i], base[i / 2]);
            of.sum[i / 2] += s[j][i];
        }
    }
}

/* out += p·v, p rounded to binary16. */
template <int WIDTH>
__device__ __forceinline__ void mix_tile(const scores_of<WIDTH> &p_of, const uint16_t *values,
                                         const matrix_place &place, sums_of<WIDTH> &out) {
#pragma unroll
    for (int j = 0; j < tile_of<WIDTH>::keys / 8; j += 2) {
        const uint32_t p[4] = {fd_half_pair(p_of[j][0], p_of[j][1]), fd_half_pair(p_of[j][2], p_of[j][3]),
                               fd_half_pair(p_of[j + 1][0], p_of[j + 1][1]),
                               fd_half_pair(p_of[j + 1][2], p_of[j + 1][3])};
#pragma unroll
        for (int d = 0; d < WIDTH / 8; d += 2) {
            uint32_t b[4]; /* elements 8d …: keys 8j …, 8j + 8 …; then elements 8d + 8 … */
            fd_ldmatrix_transposed(
                b, fd_shared_address(
                       values + fd_tile_at<WIDTH>(j * 8 + place.matrix % 2 * 8 + place.row, d + place.matrix / 2)));
            fd_mma(out[d], p, b[0], b[1]);
            fd_mma(out[d + 1], p, b[2], b[3]);
        }
    }
}

template <int WIDTH>
__device__ __forceinline__ void write_rows(const fd_attn_f16 &a, int head, int first_row, const running &of,
                                           const sums_of<WIDTH> &out) {
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = first_row + r * 8;
        const float factor =
            fd_approx_mix_factor(a.sinks ? a.sinks + head : nullptr, of.max[r], sum_of_four(of.sum[r]));
        if (row >= a.n_tok) continue;
        const int64_t row_head = (int64_t)row * a.n_head + head;
#pragma unroll
        for (int d = 0; d < WIDTH / 8; d++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int at = d * 8 + lane % 4 * 2 + i;
                const float value = out[d][2 * r + i] * factor;
                if (at >= a.head_dim) continue;
                if (a.out.half) a.out.half[row_head * a.head_dim + at] = __half_as_ushort(__float2half_rn(value));
                if (a.out.real) a.out.real[row_head * a.head_dim + at] = value;
            }
        }
    }
}

/* Grid: tiles of rows, those with most keys first × heads.
 *
 *   q ── binary16 ── shared ── query fragments ──┐
 *   K ── cp.async ── shared, two tiles ──────────┴─ score_tile: s (registers) ── mask_tile
 *                                                        │
 *                                                   softmax_tile: maximum, sum; out scaled down
 *                                                        │ p, binary16
 *   V ── cp.async ── shared, two tiles ───────────── mix_tile: out (registers)      next tile ▲
 *                                                        │
 *                                                   write_rows: out / sum */
template <int WIDTH> __global__ void __launch_bounds__(THREADS) attention_fused_f16(const fd_attn_f16 a) {
    constexpr int KEYS = tile_of<WIDTH>::keys;
    uint16_t *queries = (uint16_t *)fd_shared_floats();
    uint16_t *keys = queries + ROWS * WIDTH, *values = keys + 2 * KEYS * WIDTH;
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const int head = (int)blockIdx.y, kv_head = head / (a.n_head / a.n_head_kv);
    const int row0 = (int)(gridDim.x - 1 - blockIdx.x) * ROWS, pos0 = *a.pos0, warp = (int)threadIdx.x / 32;
    const int last_row = row0 + ROWS < a.n_tok ? row0 + ROWS - 1 : a.n_tok - 1;
    const int seen = a.window > 0 && pos0 + row0 >= a.window ? pos0 + row0 - a.window + 1 : 0;
    const int begin = seen / KEYS, end = (pos0 + last_row) / KEYS + 1;

    load_tile<WIDTH>(a, a.cache_k, kv_head, begin * KEYS, keys);
    load_tile<WIDTH>(a, a.cache_v, kv_head, begin * KEYS, values);
    fd_cp_async_commit_group();
    load_queries<WIDTH>(a, head, row0, queries);
    __syncthreads();
    const int lane = (int)threadIdx.x % 32;
    const matrix_place place = {lane / 8, lane % 8};
    const query_fragments<WIDTH> fragments(queries, place);
    sums_of<WIDTH> out = {};
    running of = {{-(float)INFINITY, -(float)INFINITY}, {0.0f, 0.0f}};
    for (int tile = begin; tile < end; tile++) {
        const int at = (tile - begin) % 2;
        if (tile + 1 < end) {
            load_tile<WIDTH>(a, a.cache_k, kv_head, (tile + 1) * KEYS, keys + (1 - at) * KEYS * WIDTH);
            load_tile<WIDTH>(a, a.cache_v, kv_head, (tile + 1) * KEYS, values + (1 - at) * KEYS * WIDTH);
        }
        fd_cp_async_commit_group();
        fd_cp_async_wait_group<1>();
        __syncthreads();
        scores_of<WIDTH> s = {};
        score_tile<WIDTH>(fragments, keys + at * KEYS * WIDTH, s);
        mask_tile<WIDTH>(a, tile, pos0 + row0 + warp * 16, s);
        softmax_tile<WIDTH>(s, of, out);
        mix_tile<WIDTH>(s, values + at * KEYS * WIDTH, place, out);
        __syncthreads(); /* the next round's copies write over this tile */
    }
    write_rows<WIDTH>(a, head, row0 + warp * 16 + (int)threadIdx.x % 32 / 4, of, out);
}

template <int WIDTH> static fd_code launch(const fd_launch_context *ctx, const fd_attn_f16 *in, fd_error *err) {
    const dim3 grid(fd_blocks(in->n_tok, ROWS), (unsigned)in->n_head);
    return fd_launch(ctx, "attention_fused_f16", attention_fused_f16<WIDTH>, grid, THREADS, tile_of<WIDTH>::shared, err,
                     *in);
}

fd_code fd_launch_attn_fused_f16(const fd_launch_context *ctx, const fd_attn_f16 *in, fd_error *err) {
    if (in->n_head_kv < 1 || in->n_head % in->n_head_kv != 0 || in->n_tok < 1 || in->head_dim < 1)
        return fd_fail(err, FD_ERR_INPUT, "kernel attention_fused_f16: %d heads over %d, %d rows", in->n_head,
                       in->n_head_kv, in->n_tok);
    if (in->head_dim <= 64) return launch<64>(ctx, in, err);
    if (in->head_dim <= 128) return launch<128>(ctx, in, err);
    if (in->head_dim <= FD_ATTENTION_MAX_HEAD_DIM) return launch<256>(ctx, in, err);
    return fd_fail(err, FD_ERR_UNSUPPORTED, "attention: heads of %d elements, the kernels take %d at most",
                   in->head_dim, FD_ATTENTION_MAX_HEAD_DIM);
}
