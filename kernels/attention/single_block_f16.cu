/* Attention of one row in a short context: a block a query head, which sees all positions and waits for no other block.
 *
 * Latency after the wait for the previous kernel takes the time. So cached rows and angles are loaded before it, as
 * many rows as registers hold. After it each thread rotates one element of the query or of the newest key, so that a
 * block loads q, k and v once. Each warp keeps a maximum and a sum of its own; a second barrier joins them. */
#include "kernels/attention/attention.h"
#include "kernels/attention/decode_f16.cuh"
#include "kernels/launch.cuh"
#include "kernels/elementwise/rope.cuh"
#include "kernels/tree.cuh"

enum { STEP = 64 }; /* positions that are scored together */

/* Adds up what the 32 / LANES groups of a warp's lanes have; a lane keeps 8·LANES / 32 of its eight sums, those from
 * the returned one on. */
template <int LANES> __device__ __forceinline__ int add_groups(float (&sum)[8]) {
    int first = 0;
#pragma unroll
    for (int offset = 16, n = 4; offset >= LANES; offset /= 2, n /= 2) {
        const bool upper = threadIdx.x & offset;
#pragma unroll
        for (int i = 0; i < n; i++) {
            const float keep = upper ? sum[i + n] : sum[i], give = upper ? sum[i] : sum[i + n];
            sum[i] = keep + __shfl_xor_sync(0xffffffffu, give, offset);
        }
        first += upper ? n : 0;
    }
    return first;
}

/* Where element d of a query lies in shared memory: all lanes' first quads, then their second ones, so that eight lanes
 * read 128 bytes in a row. */
template <int WIDTH> __device__ __forceinline__ int query_at(int d) {
    return d / 4 % 2 * (WIDTH / 2) + d / 8 * 4 + d % 4;
}

/* LANES lanes share a cached row, eight elements each; a thread holds its share of ROUNDS rows of K and of V. */
template <int LANES, int THREADS, int ROUNDS> struct layout {
    static constexpr int warps = THREADS / 32, width = LANES * 8, rounds = ROUNDS;
    static constexpr int at_once = THREADS / LANES, batch = at_once * ROUNDS; /* positions of a round; that are held */
    static constexpr int together = STEP / at_once;                           /* rounds */
    static_assert(THREADS >= 2 * width, "a thread an element of q and of k");
};

template <class L> struct block_shared {
    alignas(16) float query[L::width];
    alignas(16) float sums[L::warps][L::width];
    float tops[L::warps], totals[L::warps];   /* a warp's maximum and sum */
    alignas(16) uint16_t newest[2][L::width]; /* the newest row of K and of V */
};

/* What a thread computes. */
struct thread_work {
    int head, sharing;       /* the query head; how many share its K/V head */
    int pos, first;          /* the row's position; the first one it sees */
    int cached, newest_row;  /* rows that the caches hold already; the one that the block makes, or -1 */
    int group, at;           /* its row of a round; its first element */
    int64_t stride, of_head; /* elements from one cached row to the next; of the K/V head within a row */
};
template <int LANES> __device__ __forceinline__ thread_work work_of(const fd_attn_f16 &a) {
    thread_work w;
    w.head = (int)blockIdx.x, w.sharing = a.n_head / a.n_head_kv;
    w.group = (int)threadIdx.x / LANES, w.at = (int)threadIdx.x % LANES * 8;
    w.pos = __ldcg(a.pos0), w.cached = a.k ? w.pos : w.pos + 1, w.newest_row = a.k ? w.pos : -1;
    w.first = fd_first_seen(a, w.pos);
    w.stride = (int64_t)a.n_head_kv * a.head_dim, w.of_head = (int64_t)(w.head / w.sharing) * a.head_dim;
    return w;
}

template <class L>
__device__ __forceinline__ void load_rows(const fd_attn_f16 &a, const thread_work &w, const uint16_t *cache, int base,
                                          uint4 (&rows)[L::rounds]) {
#pragma unroll
    for (int r = 0; r < L::rounds; r++) {
        const int t = base + r * L::at_once + w.group;
        rows[r] = w.at < a.head_dim && t < w.cached ? __ldcg((const uint4 *)(cache + t * w.stride + w.of_head + w.at))
                                                    : make_uint4(0, 0, 0, 0);
    }
}

/* The query after RoPE and the newest rows, which the first of the heads that share them writes to the caches. The
 * first `width` threads rotate the query, the next ones the newest key; angles are loaded before the wait. Ends with a
 * barrier. */
template <class L>
__device__ __forceinline__ void stage_rows(const fd_attn_f16 &a, const thread_work &w, block_shared<L> &b) {
    const int tid = (int)threadIdx.x, d = tid % L::width;
    const bool of_query = tid < L::width, of_newest = a.k && tid / L::width == 1;
    fd_rope_angle angle = {-1, -1, false, true, 0.0f, 0.0f};
    if (of_query) angle = fd_rope_angle_of(a.q_rope, d, a.head_dim, w.pos);
    if (of_newest) angle = fd_rope_angle_of(a.k_rope, d, a.head_dim, w.pos);
    const float *from = of_newest ? a.k + w.of_head : a.q + (int64_t)w.head * a.head_dim;
    if (a.k) fd_pdl_wait();
    const float2 pair = fd_rope_load(angle, from);
    const float new_value = of_newest && d < a.head_dim ? __ldcg(a.v + w.of_head + d) : 0.0f;
    const float rotated = fd_rope_rotate(angle, pair);
    if (of_query) b.query[query_at<L::width>(d)] = rotated;
    if (of_newest)
        fd_write_newest(a, w.pos * w.stride + w.of_head, d, rotated, new_value, w.head % w.sharing == 0, b.newest);
    __syncthreads();
}

/* Scores of the batch of positions from `base` on, -inf where the row does not look; puts the newest row into its
 * place. Returns the largest of them and of `most`. `newest`: the thread's share of it, a shared address. */
template <class L>
__device__ __forceinline__ float score_batch(const fd_attn_f16 &a, const thread_work &w, int base,
                                             const float (&query)[8], uint32_t newest, uint4 (&key)[L::rounds],
                                             uint4 (&value)[L::rounds], float (&score)[L::rounds], float most) {
#pragma unroll
    for (int begin = 0; begin < L::rounds; begin += L::together) {
        if (base + begin * L::at_once > w.pos) break;
#pragma unroll
        for (int r = begin; r < begin + L::together; r++) {
            if (base + r * L::at_once + w.group == w.newest_row) {
                key[r] = fd_load_shared16(newest);
                value[r] = fd_load_shared16(newest + L::width * sizeof(uint16_t));
            }
            float x[8];
            fd_unpack_halves(key[r], x);
            score[r] = fd_dot8(query, x);
        }
#pragma unroll
        for (int offset = 1; offset < L::width / 8; offset *= 2)
#pragma unroll
            for (int r = begin; r < begin + L::together; r++)
                score[r] = score[r] + __shfl_xor_sync(0xffffffffu, score[r], offset);
        if (a.softcap != 0.0f) {
#pragma unroll
            for (int r = begin; r < begin + L::together; r++)
                score[r] = fd_approx_softcap(score[r] * a.scale, a.softcap);
        } else {
#pragma unroll
            for (int r = begin; r < begin + L::together; r++) score[r] = score[r] * a.scale;
        }
#pragma unroll
        for (int r = begin; r < begin + L::together; r++) {
            const int t = base + r * L::at_once + w.group;
            if (t > w.pos || t < w.first) score[r] = -(float)INFINITY;
            most = fmaxf(most, score[r]);
        }
    }
    return most;
}

/* sum += e^(score − reference), out += that · v, over the batch. */
template <class L>
__device__ __forceinline__ void mix_batch(const thread_work &w, int base, float reference,
                                          const uint4 (&value)[L::rounds], float (&score)[L::rounds], float &sum,
                                          float (&out)[8]) {
#pragma unroll
    for (int begin = 0; begin < L::rounds; begin += L::together) {
        if (base + begin * L::at_once > w.pos) break;
#pragma unroll
        for (int r = begin; r < begin + L::together; r++) score[r] = fd_approx_exp(score[r], reference);
#pragma unroll
        for (int r = begin; r < begin + L::together; r++) {
            float x[8];
            sum = sum + score[r];
            fd_unpack_halves(value[r], x);
#pragma unroll
            for (int i = 0; i < 8; i++) out[i] = fmaf(score[r], x[i], out[i]);
        }
    }
}

/* Joins what the warps have: a thread an element of the head. */
template <class L>
__device__ __forceinline__ void write_head(const fd_attn_f16 &a, int head, const block_shared<L> &b) {
    const int d = (int)threadIdx.x;
    if (d >= a.head_dim) return;
    float top = -(float)INFINITY, total = 0.0f, mix = 0.0f;
#pragma unroll
    for (int w = 0; w < L::warps; w++) top = fmaxf(top, b.tops[w]);
    const float reference = top == -(float)INFINITY ? 0.0f : top;
#pragma unroll
    for (int w = 0; w < L::warps; w++) {
        const float factor = fd_approx_exp(b.tops[w], reference);
        total = fmaf(factor, b.totals[w], total);
        mix = fmaf(factor, b.sums[w][d], mix);
    }
    const float scale = fd_approx_mix_factor(a.sinks ? a.sinks + head : nullptr, top, total);
    fd_store(a.out, (int64_t)head * a.head_dim + d, mix * scale);
}

/* Grid: query heads. Rows before *pos0 are in the caches when the kernel begins, as *pos0 is.
 *
 *   cached K, V ── key[], value[]: a batch of positions in registers     q ── RoPE ── query (shared, then registers)
 *   k, v ── RoPE, binary16 ── newest (shared) ── caches, by one head of those that share them
 *
 *   each batch:  score_batch  q·k in each group of lanes ── the warp's maximum
 *                mix_batch    sum, out: Σ e^(score − maximum)·v, earlier sums scaled down to the new maximum
 *   at the end:  each warp's maximum, sum and out ── shared ── write_head: one thread an element joins them */
template <int LANES, int THREADS, int ROUNDS>
__global__ void __launch_bounds__(THREADS) attention_single_block_f16(const __grid_constant__ fd_attn_f16 a) {
    using L = layout<LANES, THREADS, ROUNDS>;
    __shared__ block_shared<L> b;
    fd_pdl_launch_dependents();
    if (!a.k) fd_pdl_wait();
    const thread_work w = work_of<LANES>(a);
    const uint32_t newest = fd_opaque_shared_address(b.newest[0] + w.at);
    uint4 key[ROUNDS], value[ROUNDS];
    load_rows<L>(a, w, a.cache_k, 0, key);
    load_rows<L>(a, w, a.cache_v, 0, value);
    stage_rows<L>(a, w, b);
    const float4 low = *(const float4 *)(b.query + w.at / 2),
                 high = *(const float4 *)(b.query + L::width / 2 + w.at / 2);
    const float query[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};

    float most = -(float)INFINITY, sum = 0.0f, out[8] = {};
    for (int base = 0;; base += L::batch) {
        const bool is_last = L::batch >= FD_ATTENTION_SHORT_CONTEXT || base + L::batch > w.pos;
        float score[ROUNDS];
        float now = score_batch<L>(a, w, base, query, newest, key, value, score, most);
        if (!is_last) load_rows<L>(a, w, a.cache_k, base + L::batch, key);
#pragma unroll
        for (int offset = LANES; offset < 32; offset *= 2) now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, offset));
        const float reference = now == -(float)INFINITY ? 0.0f : now;
        if (base > 0) {
            const float factor = fd_approx_exp(most, reference);
            sum = sum * factor;
#pragma unroll
            for (int i = 0; i < 8; i++) out[i] *= factor;
        }
        most = now;
        mix_batch<L>(w, base, reference, value, score, sum, out);
        if (is_last) break;
        load_rows<L>(a, w, a.cache_v, base + L::batch, value);
    }

    const int warp = (int)threadIdx.x / 32;
#pragma unroll
    for (int offset = LANES; offset < 32; offset *= 2) sum = sum + __shfl_xor_sync(0xffffffffu, sum, offset);
    const int own = add_groups<LANES>(out);
#pragma unroll
    for (int i = 0; i < L::width / 32; i++) b.sums[warp][w.at + own + i] = out[i];
    if (threadIdx.x % 32 == 0) b.tops[warp] = most, b.totals[warp] = sum;
    __syncthreads();
    write_head(a, w.head, b);
}

template <int LANES, int THREADS, int ROUNDS>
static fd_code launch(const fd_launch_context *ctx, const fd_attn_f16 *in, fd_error *err) {
    return fd_launch(ctx, "attention_single_block_f16", attention_single_block_f16<LANES, THREADS, ROUNDS>,
                     dim3((unsigned)in->n_head), THREADS, 0, err, *in);
}

/* As measured at the beginning of a context and over positions 16 to 215 (docs/performance-diary.md): registers hold
 * all positions of heads of 64 elements. For all positions of wider heads they would keep the rings of the product
 * after this kernel off the multiprocessor; for 128 positions they do not. Heads of more than 128 elements were not
 * measured. */
fd_code fd_launch_attn_single_block_f16(const fd_launch_context *ctx, const fd_attn_f16 *in, fd_error *err) {
    if (in->head_dim <= 64) return launch<8, 256, 8>(ctx, in, err);
    if (in->head_dim <= 128) return launch<16, 512, 4>(ctx, in, err);
    return launch<32, 512, 4>(ctx, in, err);
}
