/* Attention of one row near the beginning: a block a query head, which sees all positions and waits for no other block.
 *
 * What takes the time is latency. So the cached rows are requested before the wait for the previous kernel, all of them
 * where they fit the registers; behind it every thread turns its own share of the query, and those with the newest row
 * turn that; each warp has a maximum and a sum of its own; and the block meets once, to add up what its warps have. */
#include "kernels/attention_scratch.cuh"
#include "kernels/fast_decode.cuh"
#include "kernels/launch.cuh"
#include "kernels/rope.cuh"
#include "kernels/tree.cuh"

enum { ROUNDS = 8 }; /* rows that a thread holds a share of */

/* ---- eight neighbouring elements of a head after RoPE ---- */

/* Their angles, and where the other elements of their pairs are. */
struct eight_turn {
    float cosine[8], sine[8];
    int at, other; /* other == at: the eight are whole pairs */
    bool stays;    /* nothing turns */
    bool mixed;    /* not all alike, or not aligned: element by element */
    bool first;    /* of their pairs, where the others are elsewhere */
};

__device__ __forceinline__ void read_eight(const float *from, float (&x)[8]) {
    const float4 a = __ldcg((const float4 *)from), b = __ldcg((const float4 *)from + 1);
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
    x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}

__device__ __forceinline__ void read_angles(const float *from, bool each_twice, float (&x)[8]) {
    const float4 a = *(const float4 *)from;
    if (each_twice) {
        x[0] = x[1] = a.x, x[2] = x[3] = a.y, x[4] = x[5] = a.z, x[6] = x[7] = a.w;
    } else {
        const float4 b = *((const float4 *)from + 1);
        x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
        x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
    }
}

__device__ __forceinline__ eight_turn eight_turn_of(const fd_rope_shape &shape, int at, int head_dim, int pos) {
    eight_turn turn = {};
    const int half = shape.n_rot / 2;
    turn.at = at;
    turn.stays = at >= shape.n_rot || at >= head_dim;
    turn.mixed = (shape.interleaved ? shape.n_rot : half) % 8 != 0;
    turn.first = at < half;
    turn.other = shape.interleaved ? at : turn.first ? at + half : at - half;
    if (turn.stays || turn.mixed) return turn;
    const int64_t angle = (int64_t)pos * half + (shape.interleaved ? at / 2 : turn.first ? at : at - half);
    read_angles(shape.cosine + angle, shape.interleaved, turn.cosine);
    read_angles(shape.sine + angle, shape.interleaved, turn.sine);
    return turn;
}

/* The eight elements of `head` turned: `ask` requests them, `turned` is what becomes of them. */
struct eight_elements {
    float own[8], other[8];
};
__device__ __forceinline__ void ask(const fd_rope_shape &shape, const eight_turn &turn, const float *head, int pos,
                                    eight_elements &x) {
    if (turn.mixed && !turn.stays) {
        const int64_t angles = (int64_t)pos * (shape.n_rot / 2);
#pragma unroll
        for (int i = 0; i < 8; i++)
            x.own[i] = fd_rope_element(shape, head, turn.at + i, shape.cosine + angles, shape.sine + angles);
        return;
    }
    read_eight(head + turn.at, x.own);
    if (!turn.stays && turn.other != turn.at) read_eight(head + turn.other, x.other);
}
__device__ __forceinline__ void turned(const eight_turn &turn, const eight_elements &x, float (&y)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const bool pairs = turn.other == turn.at, first = pairs ? i % 2 == 0 : turn.first;
        const float own = x.own[i], other = pairs ? x.own[i ^ 1] : x.other[i];
        const float a = fmaf(own, turn.cosine[i], -(other * turn.sine[i]));
        const float b = fmaf(other, turn.sine[i], own * turn.cosine[i]);
        y[i] = turn.stays || turn.mixed ? own : first ? a : b;
    }
}

__device__ __forceinline__ uint4 to_halves(const float (&x)[8]) {
    uint32_t pair[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair[i]) : "f"(x[2 * i + 1]), "f"(x[2 * i]));
    return make_uint4(pair[0], pair[1], pair[2], pair[3]);
}

/* ---- the kernel ---- */

/* Adds up what the 32 / LANES groups of a warp's lanes have; a lane keeps 8·LANES / 32 of its eight sums, those from the
 * returned one on. */
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

/* Grid: query heads. LANES lanes share a row of a cache, 8 elements each. Rows before *pos0 are in the caches when
 * the kernel begins, as *pos0 is. */
template <int LANES, int THREADS>
__global__ void __launch_bounds__(THREADS) fast_near(const __grid_constant__ fd_fast_attention a) {
    constexpr int WARPS = THREADS / 32, WIDTH = LANES * 8, KEPT = WIDTH / 32;
    constexpr int AT_ONCE = THREADS / LANES, BATCH = AT_ONCE * ROUNDS;
    __shared__ __align__(16) float sums[WARPS][WIDTH], tops[WARPS], totals[WARPS];
    const bool writes = a.k != nullptr;
    fd_allow_next();
    if (!writes) fd_wait_previous();
    const int head = (int)blockIdx.x, sharing = a.n_head / a.n_head_kv, kv_head = head / sharing;
    const int tid = (int)threadIdx.x, warp = tid / 32, group = tid / LANES, at = tid % LANES * 8;
    const int pos = __ldcg(a.pos0), cached = writes ? pos : pos + 1;
    const int first = a.window > 0 && pos >= a.window ? pos - a.window + 1 : 0;
    const int64_t stride = (int64_t)a.n_head_kv * a.head_dim, own = (int64_t)kv_head * a.head_dim + at;
    const bool has_elements = at < a.head_dim;

    uint4 key[ROUNDS], value[ROUNDS];
    const auto load = [&](const uint16_t *cache, int base, uint4(&rows)[ROUNDS]) {
#pragma unroll
        for (int r = 0; r < ROUNDS; r++) {
            const int t = base + r * AT_ONCE + group;
            rows[r] = has_elements && t < cached ? __ldcg((const uint4 *)(cache + t * stride + own))
                                                 : make_uint4(0, 0, 0, 0);
        }
    };
    load(a.cache_k, 0, key);
    load(a.cache_v, 0, value);
    const eight_turn q_turn = eight_turn_of(a.q_rope, at, a.head_dim, pos);
    if (writes) fd_wait_previous();

    /* The newest row is the last one of its group of lanes. */
    const bool has_newest = writes && group == pos % AT_ONCE;
    const bool warp_has_newest = writes && warp == pos % AT_ONCE * LANES / 32;
    eight_turn k_turn = {};
    eight_elements q = {}, k = {};
    float new_value[8] = {}, query[8], new_key[8];
    if (has_elements) ask(a.q_rope, q_turn, a.q + (int64_t)head * a.head_dim, pos, q);
    if (has_elements && has_newest) {
        k_turn = eight_turn_of(a.k_rope, at, a.head_dim, pos);
        ask(a.k_rope, k_turn, a.k + (int64_t)kv_head * a.head_dim, pos, k);
        read_eight(a.v + own, new_value);
    }
    turned(q_turn, q, query);
    if (warp_has_newest) {
        turned(k_turn, k, new_key);
        const uint4 k_halves = to_halves(new_key), v_halves = to_halves(new_value);
        if (has_elements && has_newest && head % sharing == 0) {
            *(uint4 *)(a.cache_k + pos * stride + own) = k_halves;
            *(uint4 *)(a.cache_v + pos * stride + own) = v_halves;
        }
        fast_to_reals(k_halves, new_key);
        fast_to_reals(v_halves, new_value);
    }
    const auto score_of = [&](const float(&x)[8]) {
        const float dot = fd_tree_lanes<LANES>(fast_dot(query, x)) * a.scale;
        return a.softcap != 0.0f ? fd_fast_softcap(dot, a.softcap) : dot;
    };

    float most = -(float)INFINITY, sum = 0.0f, out[8] = {};
    for (int base = 0; base <= pos; base += BATCH) {
        const bool is_last = base + BATCH > pos, second_half = base + BATCH / 2 <= pos;
        float score[ROUNDS], x[8], newest = -(float)INFINITY, now = most;
#pragma unroll
        for (int r = 0; r < ROUNDS; r++) {
            const int t = base + r * AT_ONCE + group;
            score[r] = -(float)INFINITY;
            if (r >= ROUNDS / 2 && !second_half) continue;
            fast_to_reals(key[r], x);
            const float s = score_of(x);
            if (t < cached && t >= first) score[r] = s;
            now = fmaxf(now, score[r]);
        }
        if (is_last && warp_has_newest) {
            const float s = score_of(new_key);
            if (has_newest) newest = s;
            now = fmaxf(now, newest);
        }
        if (!is_last) load(a.cache_k, base + BATCH, key);
#pragma unroll
        for (int offset = LANES; offset < 32; offset *= 2) now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, offset));
        const float reference = now == -(float)INFINITY ? 0.0f : now, factor = fd_fast_exp(most, reference);
        most = now;
        sum = sum * factor;
#pragma unroll
        for (int i = 0; i < 8; i++) out[i] *= factor;
        const auto add = [&](float s, const float(&v)[8]) {
            const float p = fd_fast_exp(s, reference);
            sum = sum + p;
#pragma unroll
            for (int i = 0; i < 8; i++) out[i] = fmaf(p, v[i], out[i]);
        };
#pragma unroll
        for (int r = 0; r < ROUNDS; r++) {
            if (r >= ROUNDS / 2 && !second_half) continue;
            fast_to_reals(value[r], x);
            add(score[r], x);
        }
        if (is_last && warp_has_newest) add(newest, new_value);
        if (!is_last) load(a.cache_v, base + BATCH, value);
    }

#pragma unroll
    for (int offset = LANES; offset < 32; offset *= 2) sum = sum + __shfl_xor_sync(0xffffffffu, sum, offset);
    const int kept = add_groups<LANES>(out);
#pragma unroll
    for (int i = 0; i < KEPT; i++) sums[warp][at + kept + i] = out[i];
    if (tid % 32 == 0) tops[warp] = most, totals[warp] = sum;
    __syncthreads();
    float top = -(float)INFINITY, all_sum = 0.0f, factor[WARPS];
#pragma unroll
    for (int w = 0; w < WARPS; w++) top = fmaxf(top, tops[w]);
    const float reference = top == -(float)INFINITY ? 0.0f : top;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        factor[w] = fd_fast_exp(tops[w], reference);
        all_sum = fmaf(factor[w], totals[w], all_sum);
    }
    const float scale = fd_fast_mix_factor(a.sinks ? a.sinks + head : nullptr, top, all_sum);
    for (int i = tid; i < a.head_dim; i += THREADS) {
        float mix = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) mix = fmaf(factor[w], sums[w][i], mix);
        fast_leave(a.out, (int64_t)head * a.head_dim + i, mix * scale);
    }
}

template <int LANES, int THREADS>
static fd_code launch(const fd_queue *queue, const fd_fast_attention *in, fd_error *err) {
    return fd_launch(queue, "fast_near", fast_near<LANES, THREADS>, dim3((unsigned)in->n_head), THREADS,
                     fd_near_shared(queue, in->n_head, in->head_dim, 1), err, *in);
}

/* Small heads in small blocks: where the product before still runs, they start in the place of fewer of its blocks. */
fd_code fd_launch_fast_near(const fd_queue *queue, const fd_fast_attention *in, fd_error *err) {
    if (in->head_dim <= 64) return launch<8, 128>(queue, in, err);
    if (in->head_dim <= 128) return launch<16, 256>(queue, in, err);
    return launch<32, 256>(queue, in, err);
}
