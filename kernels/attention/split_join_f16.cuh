/* The end of attention of one row over many positions (kernels/attention/split_kv_f16.cu): sums over a warp's lanes, a
 * block's warps and all blocks of a query, each in a fixed order, and from these the heads. */
#ifndef FD_KERNELS_ATTENTION_SPLIT_JOIN_F16_CUH
#define FD_KERNELS_ATTENTION_SPLIT_JOIN_F16_CUH

#include "kernels/attention/split_work_f16.cuh"
#include "kernels/tree.cuh"

/* The threads' sums, added over each warp, to sums [WARPS, heads, width]. Ends with a barrier. */
template <int LANES>
__device__ __forceinline__ void store_warp_sums(const block_work &w, float (&out)[HEADS][8], float *sums) {
    using L = layout<LANES>;
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        if (h >= w.heads) break;
#pragma unroll
        for (int i = 0; i < 8; i++) {
#pragma unroll
            for (int offset = LANES; offset < 32; offset *= 2)
                out[h][i] = out[h][i] + __shfl_xor_sync(0xffffffffu, out[h][i], offset);
        }
        if (threadIdx.x % 32 < LANES) {
            float *to = sums + ((int)threadIdx.x / 32 * w.heads + h) * L::width + L::lane() * 8;
            *(float4 *)to = make_float4(out[h][0], out[h][1], out[h][2], out[h][3]);
            *(float4 *)(to + 4) = make_float4(out[h][4], out[h][5], out[h][6], out[h][7]);
        }
    }
    __syncthreads();
}

/* The block's sums over its warps: where they are when it has seen all positions, else to partials [heads, n_split,
 * s.partial]. */
template <int LANES>
__device__ __forceinline__ void store_block_sums(const fd_attn_f16 &a, const block_work &w, const share &s,
                                                 const block_shared<LANES> &b, float *sums, float *partials) {
    constexpr int width = layout<LANES>::width;
    const int tid = (int)threadIdx.x;
    for (int i = tid; i < w.heads * width; i += THREADS) {
        const int h = i / width, d = i % width;
        if (d >= a.head_dim) continue;
        float sum = sums[h * width + d];
#pragma unroll
        for (int warp = 1; warp < WARPS; warp++) sum = sum + sums[(warp * w.heads + h) * width + d];
        if (w.active == 1) {
            sums[h * width + d] = sum; /* this thread alone reads and writes it */
            continue;
        }
        partials[((int64_t)h * s.n_split + w.split) * s.partial + 2 + d] = sum;
    }
    if (w.active > 1 && tid < w.heads) {
        partials[((int64_t)tid * s.n_split + w.split) * s.partial] = b.top[tid];
        partials[((int64_t)tid * s.n_split + w.split) * s.partial + 1] = b.total[tid];
    }
}

/* In the last block: maximum and sum over all blocks to b.top and b.total, a warp a query, and each block's factor to
 * factors [heads][WARPS·width]. Ends with a barrier. */
template <int LANES>
__device__ __forceinline__ void join_blocks(const block_work &w, const share &s, block_shared<LANES> &b,
                                            const float *partials, float *factors) {
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    if (warp < w.heads) {
        const float *from = partials + (int64_t)warp * s.n_split * s.partial;
        float most = -(float)INFINITY, sum = 0.0f;
        for (int i = lane; i < w.active; i += 32) most = fmaxf(most, __ldcg(from + i * s.partial));
        most = fd_warp_max(most);
        const float base = most == -(float)INFINITY ? 0.0f : most;
        for (int i = lane; i < w.active; i += 32) {
            const float factor = fd_approx_exp(__ldcg(from + i * s.partial), base);
            factors[warp * WARPS * layout<LANES>::width + i] = factor;
            sum = fmaf(factor, __ldcg(from + i * s.partial + 1), sum);
        }
        sum = fd_tree_lanes<32>(sum);
        if (lane == 0) b.top[warp] = most, b.total[warp] = sum;
    }
    __syncthreads();
}

/* Σ factor·partial over the blocks, in order of positions; `from`: an element of the first block's. */
__device__ __forceinline__ float sum_of_blocks(const block_work &w, const share &s, const float *from,
                                               const float *factors) {
    float sum = 0.0f;
    for (int j = 0; j < w.active; j += 16) {
        float part[16];
#pragma unroll
        for (int n = 0; n < 16; n++) part[n] = j + n < w.active ? __ldcg(from + (j + n) * s.partial) : 0.0f;
#pragma unroll
        for (int n = 0; n < 16; n++)
            if (j + n < w.active) sum = fmaf(factors[j + n], part[n], sum);
    }
    return sum;
}

template <int LANES>
__device__ __forceinline__ void write_heads(const fd_attn_f16 &a, const block_work &w, const share &s,
                                            const block_shared<LANES> &b, const float *area, const float *partials) {
    constexpr int width = layout<LANES>::width;
    for (int i = (int)threadIdx.x; i < w.heads * width; i += THREADS) {
        const int h = i / width, d = i % width;
        if (d >= a.head_dim) continue;
        const float sum = w.active == 1 ? area[h * width + d]
                                        : sum_of_blocks(w, s, partials + (int64_t)h * s.n_split * s.partial + 2 + d,
                                                        area + h * WARPS * width);
        const float scale = fd_approx_mix_factor(a.sinks ? a.sinks + w.head0 + h : nullptr, b.top[h], b.total[h]);
        fd_store(a.out, (int64_t)(w.head0 + h) * a.head_dim + d, sum * scale);
    }
}

#endif
