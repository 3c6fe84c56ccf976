/* Attention of one row near the beginning: a block a query head, which sees all positions and waits for no other block.
 *
 * What takes the time is latency behind the wait for the previous kernel. So the cached rows and the angles are asked
 * for before it, as many rows as registers hold; behind it each thread turns one element of the query or of the newest
 * key, so that q, k and v are fetched once a block; each warp then has a maximum and a sum of its own, and the block
 * meets a second time to add up what its warps have. */
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

/* Grid: query heads. LANES lanes share a row of a cache, 8 elements each; a thread holds its share of ROUNDS rows of K
 * and of V. Rows before *pos0 are in the caches when the kernel begins, as *pos0 is. */
template <int LANES, int THREADS, int ROUNDS>
__global__ void __launch_bounds__(THREADS) attention_single_block_f16(const __grid_constant__ fd_attn_f16 a) {
    constexpr int WARPS = THREADS / 32, WIDTH = LANES * 8, KEPT = WIDTH / 32;
    constexpr int AT_ONCE = THREADS / LANES, BATCH = AT_ONCE * ROUNDS, TOGETHER = STEP / AT_ONCE;
    static_assert(THREADS >= 2 * WIDTH, "a thread an element of q and of k");
    __shared__ __align__(16) float all_query[WIDTH], sums[WARPS][WIDTH], tops[WARPS], totals[WARPS];
    __shared__ __align__(16) uint16_t newest[2][WIDTH]; /* the newest row of K and of V */
    const bool writes = a.k != nullptr;
    fd_pdl_launch_dependents();
    if (!writes) fd_pdl_wait();
    const int head = (int)blockIdx.x, sharing = a.n_head / a.n_head_kv, kv_head = head / sharing;
    const int tid = (int)threadIdx.x, warp = tid / 32, group = tid / LANES, at = tid % LANES * 8;
    const int pos = __ldcg(a.pos0), cached = writes ? pos : pos + 1, newest_row = writes ? pos : -1;
    const int first = a.window > 0 && pos >= a.window ? pos - a.window + 1 : 0;
    const int64_t stride = (int64_t)a.n_head_kv * a.head_dim, of_head = (int64_t)kv_head * a.head_dim;
    const uint32_t own_newest = fd_opaque_shared_address(newest[0] + at);

    uint4 key[ROUNDS], value[ROUNDS];
    const auto load = [&](const uint16_t *cache, int base, uint4(&rows)[ROUNDS]) {
#pragma unroll
        for (int r = 0; r < ROUNDS; r++) {
            const int t = base + r * AT_ONCE + group;
            rows[r] = at < a.head_dim && t < cached ? __ldcg((const uint4 *)(cache + t * stride + of_head + at))
                                                    : make_uint4(0, 0, 0, 0);
        }
    };
    load(a.cache_k, 0, key);
    load(a.cache_v, 0, value);
    /* The first WIDTH threads turn the query, the next ones the newest key. */
    const int d = tid % WIDTH;
    const bool of_query = tid < WIDTH, of_newest = writes && tid / WIDTH == 1;
    fd_rope_angle turn = {-1, -1, false, true, 0.0f, 0.0f};
    if (of_query) turn = fd_rope_angle_of(a.q_rope, d, a.head_dim, pos);
    if (of_newest) turn = fd_rope_angle_of(a.k_rope, d, a.head_dim, pos);
    const float *from = of_newest ? a.k + of_head : a.q + (int64_t)head * a.head_dim;
    if (writes) fd_pdl_wait();

    const float2 pair = fd_rope_load(turn, from);
    const float new_value = of_newest && d < a.head_dim ? __ldcg(a.v + of_head + d) : 0.0f;
    const float turned = fd_rope_rotate(turn, pair);
    if (of_query) all_query[query_at<WIDTH>(d)] = turned;
    if (of_newest) {
        const uint16_t k = fd_to_half(turned), v = fd_to_half(new_value);
        newest[0][d] = k, newest[1][d] = v;
        if (head % sharing == 0 && d < a.head_dim) {
            a.cache_k[pos * stride + of_head + d] = k;
            a.cache_v[pos * stride + of_head + d] = v;
        }
    }
    __syncthreads();
    const float4 low = *(const float4 *)(all_query + at / 2), high = *(const float4 *)(all_query + WIDTH / 2 + at / 2);
    const float query[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};

    float most = -(float)INFINITY, sum = 0.0f, out[8] = {};
    for (int base = 0;; base += BATCH) {
        const bool is_last = BATCH >= FD_ATTENTION_SHORT_CONTEXT || base + BATCH > pos;
        float score[ROUNDS], x[8], now = most;
#pragma unroll
        for (int begin = 0; begin < ROUNDS; begin += TOGETHER) {
            if (base + begin * AT_ONCE > pos) break;
#pragma unroll
            for (int r = begin; r < begin + TOGETHER; r++) {
                if (base + r * AT_ONCE + group == newest_row) {
                    key[r] = fd_load_shared16(own_newest);
                    value[r] = fd_load_shared16(own_newest + WIDTH * sizeof(uint16_t));
                }
                fd_unpack_halves(key[r], x);
                score[r] = fd_dot8(query, x);
            }
#pragma unroll
            for (int offset = 1; offset < LANES; offset *= 2)
#pragma unroll
                for (int r = begin; r < begin + TOGETHER; r++)
                    score[r] = score[r] + __shfl_xor_sync(0xffffffffu, score[r], offset);
            if (a.softcap != 0.0f) {
#pragma unroll
                for (int r = begin; r < begin + TOGETHER; r++)
                    score[r] = fd_approx_softcap(score[r] * a.scale, a.softcap);
            } else {
#pragma unroll
                for (int r = begin; r < begin + TOGETHER; r++) score[r] = score[r] * a.scale;
            }
#pragma unroll
            for (int r = begin; r < begin + TOGETHER; r++) {
                const int t = base + r * AT_ONCE + group;
                if (t > pos || t < first) score[r] = -(float)INFINITY;
                now = fmaxf(now, score[r]);
            }
        }
        if (!is_last) load(a.cache_k, base + BATCH, key);
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
#pragma unroll
        for (int begin = 0; begin < ROUNDS; begin += TOGETHER) {
            if (base + begin * AT_ONCE > pos) break;
#pragma unroll
            for (int r = begin; r < begin + TOGETHER; r++) score[r] = fd_approx_exp(score[r], reference);
#pragma unroll
            for (int r = begin; r < begin + TOGETHER; r++) {
                sum = sum + score[r];
                fd_unpack_halves(value[r], x);
#pragma unroll
                for (int i = 0; i < 8; i++) out[i] = fmaf(score[r], x[i], out[i]);
            }
        }
        if (is_last) break;
        load(a.cache_v, base + BATCH, value);
    }

#pragma unroll
    for (int offset = LANES; offset < 32; offset *= 2) sum = sum + __shfl_xor_sync(0xffffffffu, sum, offset);
    const int kept = add_groups<LANES>(out);
#pragma unroll
    for (int i = 0; i < KEPT; i++) sums[warp][at + kept + i] = out[i];
    if (tid % 32 == 0) tops[warp] = most, totals[warp] = sum;
    __syncthreads();
    if (tid >= a.head_dim) return;
    float top = -(float)INFINITY, all_sum = 0.0f, mix = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) top = fmaxf(top, tops[w]);
    const float reference = top == -(float)INFINITY ? 0.0f : top;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        const float factor = fd_approx_exp(tops[w], reference);
        all_sum = fmaf(factor, totals[w], all_sum);
        mix = fmaf(factor, sums[w][tid], mix);
    }
    const float scale = fd_approx_mix_factor(a.sinks ? a.sinks + head : nullptr, top, all_sum);
    store(a.out, (int64_t)head * a.head_dim + tid, mix * scale);
}

template <int LANES, int THREADS, int ROUNDS>
static fd_code launch(const fd_launch_context *ctx, const fd_attn_f16 *in, fd_error *err) {
    return fd_launch(ctx, "attention_single_block_f16", attention_single_block_f16<LANES, THREADS, ROUNDS>,
                     dim3((unsigned)in->n_head), THREADS, 0, err, *in);
}

/* As measured near the beginning and over positions 16 to 215 (docs/performance-diary.md): registers hold all positions of heads
 * of 64 elements. Those for all of wider heads would keep rings of the product behind off the multiprocessor; 128
 * positions do not. Heads of more than 128 elements have not been measured. */
fd_code fd_launch_attn_single_block_f16(const fd_launch_context *ctx, const fd_attn_f16 *in, fd_error *err) {
    if (in->head_dim <= 64) return launch<8, 256, 8>(ctx, in, err);
    if (in->head_dim <= 128) return launch<16, 512, 4>(ctx, in, err);
    return launch<32, 512, 4>(ctx, in, err);
}
