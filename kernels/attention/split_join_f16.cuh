/* The end of attention of one row over many positions (kernels/attention/split_kv_f16.cu): sums over a warp's lanes, a
 * block's warps and all blocks of a query, each in a fixed order, and from these the heads. */
#ifndef FD_KERNELS_ATTENTION_SPLIT_JOIN_F16_CUH
#define FD_KERNELS_ATTENTION_SPLIT_JOIN_F16_CUH

#include "kernels/attention/split_tile_f16.cuh"
#include "kernels/tree.cuh"

/* The warps' parts, scaled to the largest score of all of them, to sums [WARPS, heads, WIDTH]; their top and total to b's. The
 * stages, in whose place the sums lie, have been read by then. Ends with a barrier. */
template <int WIDTH>
__device__ __forceinline__ void store_warp_sums(const block_work &w, running<WIDTH> &r, block_shared<WIDTH> &b,
                                                float *sums) {
    const int warp = (int)threadIdx.x / 32, lane = lane_of_warp();
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int offset = 4; offset < 32; offset *= 2)
            r.total[h] = r.total[h] + __shfl_xor_sync(0xffffffffu, r.total[h], offset);
        if (lane < 4) b.warp_top[warp][2 * lane + h] = r.top[h], b.warp_total[warp][2 * lane + h] = r.total[h];
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int query = lane % 4 * 2 + h;
        float top = b.warp_top[0][query];
#pragma unroll
        for (int i = 1; i < WARPS; i++) top = fmaxf(top, b.warp_top[i][query]);
        const float factor = fd_approx_exp(r.top[h], top == -(float)INFINITY ? 0.0f : top);
        if (query >= w.heads) continue;
        float *to = sums + (warp * w.heads + query) * WIDTH + lane / 4;
#pragma unroll
        for (int m = 0; m < WIDTH / 16; m++)
            to[16 * m] = r.out[m][h] * factor, to[16 * m + 8] = r.out[m][h + 2] * factor;
    }
    if ((int)threadIdx.x < w.heads) {
        const int query = (int)threadIdx.x;
        float top = b.warp_top[0][query], total = 0.0f;
        for (int i = 1; i < WARPS; i++) top = fmaxf(top, b.warp_top[i][query]);
        const float base = top == -(float)INFINITY ? 0.0f : top;
        for (int i = 0; i < WARPS; i++)
            total = fmaf(b.warp_total[i][query], fd_approx_exp(b.warp_top[i][query], base), total);
        b.top[query] = top, b.total[query] = total;
    }
    __syncthreads();
}

/* Element d of the block's sum over its warps, for its query h. */
template <int WIDTH>
__device__ __forceinline__ float4 sum_of_warps(const block_work &w, const float *sums, int h, int d) {
    float4 sum = *(const float4 *)(sums + h * WIDTH + d);
#pragma unroll
    for (int warp = 1; warp < WARPS; warp++) {
        const float4 other = *(const float4 *)(sums + (warp * w.heads + h) * WIDTH + d);
        sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
    }
    return sum;
}

/* The block's sums, tops and totals to `partials`; the sums over its warps stay where they are when it has seen all
 * positions. */
template <int WIDTH>
__device__ __forceinline__ void store_block_sums(const fd_attn_f16 &a, const block_work &w, const share &s,
                                                 const block_shared<WIDTH> &b, float *sums,
                                                 const partial_sums &partials) {
    const int tid = (int)threadIdx.x;
    for (int i = tid; i < w.heads * WIDTH / 4; i += THREADS) {
        const int h = i / (WIDTH / 4), d = i % (WIDTH / 4) * 4;
        if (d >= a.head_dim) continue;
        const float4 sum = sum_of_warps<WIDTH>(w, sums, h, d);
        if (w.active == 1)
            *(float4 *)(sums + h * WIDTH + d) = sum; /* this thread alone reads and writes it */
        else
            *(float4 *)(partials.sums + ((int64_t)(w.head0 + h) * s.n_split + w.split) * s.width + d) = sum;
    }
    if (w.active > 1 && tid < w.heads)
        partials.tops[(w.head0 + tid) * s.n_split + w.split] = make_float2(b.top[tid], b.total[tid]);
}

/* In the last block: top and total over all blocks to b, a warp a query at a time, and each block's factor to factors
 * [heads][WARPS·WIDTH]. Ends with a barrier. */
template <int WIDTH>
__device__ __forceinline__ void join_blocks(const block_work &w, const share &s, block_shared<WIDTH> &b,
                                            const partial_sums &partials, float *factors) {
    const int warp = (int)threadIdx.x / 32, lane = lane_of_warp();
    for (int h = warp; h < w.heads; h += WARPS) {
        const float2 *from = partials.tops + (w.head0 + h) * s.n_split;
        float2 of_block[MAX_SPLIT / 32];
        float most = -(float)INFINITY, sum = 0.0f;
#pragma unroll
        for (int n = 0; n < MAX_SPLIT / 32; n++) {
            const int i = n * 32 + lane;
            of_block[n] = i < w.active ? __ldcg(from + i) : make_float2(-(float)INFINITY, 0.0f);
            most = fmaxf(most, of_block[n].x);
        }
        most = fd_warp_max(most);
        const float base = most == -(float)INFINITY ? 0.0f : most;
#pragma unroll
        for (int n = 0; n < MAX_SPLIT / 32; n++) {
            if (n * 32 >= w.active) break;
            const float factor = fd_approx_exp(of_block[n].x, base);
            factors[h * WARPS * WIDTH + n * 32 + lane] = factor;
            sum = fmaf(factor, of_block[n].y, sum);
        }
        sum = fd_tree_lanes<32>(sum);
        if (lane == 0) b.top[h] = most, b.total[h] = sum;
    }
    __syncthreads();
}

/* Σ factor·partial over the blocks, in order of positions; `from`: four elements of the first block's. Many are requested before
 * the first is used: the wait for them is what takes the time. */
__device__ __forceinline__ float4 sum_of_blocks(const block_work &w, const share &s, const float *from,
                                                const float *factors) {
    enum { AT_ONCE = 16 };
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int j = 0; j < w.active; j += AT_ONCE) {
        float4 part[AT_ONCE];
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++)
            part[n] = j + n < w.active ? __ldcg((const float4 *)(from + (j + n) * s.width))
                                       : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            if (j + n >= w.active) break;
            const float factor = factors[j + n];
            sum.x = fmaf(factor, part[n].x, sum.x), sum.y = fmaf(factor, part[n].y, sum.y);
            sum.z = fmaf(factor, part[n].z, sum.z), sum.w = fmaf(factor, part[n].w, sum.w);
        }
    }
    return sum;
}

template <int WIDTH>
__device__ __forceinline__ void write_heads(const fd_attn_f16 &a, const block_work &w, const share &s,
                                            const block_shared<WIDTH> &b, const float *area,
                                            const partial_sums &partials) {
    for (int i = (int)threadIdx.x; i < w.heads * WIDTH / 4; i += THREADS) {
        const int h = i / (WIDTH / 4), d = i % (WIDTH / 4) * 4;
        if (d >= a.head_dim) continue;
        const int64_t head = w.head0 + h;
        const float4 sum = w.active == 1 ? *(const float4 *)(area + h * WIDTH + d)
                                         : sum_of_blocks(w, s, partials.sums + head * s.n_split * s.width + d,
                                                         area + h * WARPS * WIDTH);
        const float scale = fd_approx_mix_factor(a.sinks ? a.sinks + head : nullptr, b.top[h], b.total[h]);
        const float of[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (d + k < a.head_dim) fd_store(a.out, head * a.head_dim + d + k, of[k] * scale);
    }
}

#endif
