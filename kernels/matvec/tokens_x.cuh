/* How a block keeps x [T, n_col] of several token rows in shared memory (kernels/matvec/tokens.cu): whole rows, RMS-normed
 * when asked, or chunks of columns in two buffers in turn, the next one on its way while all warps multiply this one. */
#ifndef FD_KERNELS_MATVEC_TOKENS_X_CUH
#define FD_KERNELS_MATVEC_TOKENS_X_CUH

#include "kernels/matvec/add.cuh"
#include "kernels/pipeline.cuh"

/* Whole rows in the order of quad_at<P> (kernels/matvec/stage.cuh), zero from n_tok on, each normed by a warp's sum; ends
 * with a barrier. */
template <int P, int T> __device__ __forceinline__ void stage_tokens(const matvec_args &a, int n_tok, float *xs) {
    float *factor = xs + T * a.n_col; /* [T] */
    float4 *quads = (float4 *)xs;
    const int n_quad = a.n_col / 4, n_warp = (int)blockDim.x / 32;
    constexpr int at_once = P == 8 ? 2 : 1; /* smaller blocks ask for more at a time */
    for (int base = (int)threadIdx.x; base < n_quad; base += at_once * (int)blockDim.x) {
        float4 value[at_once][T];
#pragma unroll
        for (int i = 0; i < at_once; i++)
#pragma unroll
            for (int t = 0; t < T; t++) {
                const int at = base + i * (int)blockDim.x;
                value[i][t] = at < n_quad && t < n_tok ? __ldcg((const float4 *)a.x + (int64_t)t * n_quad + at)
                                                       : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            }
#pragma unroll
        for (int i = 0; i < at_once; i++)
#pragma unroll
            for (int t = 0; t < T; t++) {
                const int at = base + i * (int)blockDim.x;
                if (at < n_quad) quads[t * n_quad + quad_at<P>(at)] = value[i][t];
            }
    }
    __syncthreads();
    if (!a.norm_weight) return;
    for (int row = (int)threadIdx.x / 32; row < n_tok; row += n_warp) {
        const float r = staged_inverse_rms<P>(a, xs + row * a.n_col);
        if (threadIdx.x % 32 == 0) factor[row] = r;
    }
    __syncthreads();
    for (int at = (int)threadIdx.x; at < n_quad; at += (int)blockDim.x) {
        const float4 w = __ldg((const float4 *)a.norm_weight + at);
#pragma unroll
        for (int t = 0; t < T; t++) {
            if (t >= n_tok) break;
            float4 &x = quads[t * n_quad + quad_at<P>(at)];
            x = fd_normed(x, factor[t], w);
        }
    }
    __syncthreads();
}

/* The whole rows as the lanes read them. */
template <int P, int T> struct x_whole {
    static constexpr bool in_chunks = false;
    static constexpr int unit = 0; /* of weights, with which x begins */
    const float *now;
    int stride;

    __device__ __forceinline__ void reach(const matvec_args &, int, int) const {}
    __device__ __forceinline__ void read(int t, int group, int lane, lane_x<P> &x) const {
        read_x(now + t * stride, group, lane, x);
    }
    __device__ __forceinline__ void order(float (&)[P]) const {}
};

/* The chunks of x, over and over, one round for each task of a warp, of lanes with eight partials. All threads of a block
 * take each step. A chunk is [groups of 64 columns][T][64], as the copy engine brings it: by copies of their own the
 * warps waited for what all multiprocessors read at once (docs/performance-diary.md). */
template <int T> struct x_chunks {
    static constexpr bool in_chunks = true;
    const float *now; /* the chunk that is multiplied */
    float *next;      /* where the one after it goes */
    float *buffers;
    int unit, units; /* of weights: with which this chunk begins, and how many it goes with */
    int width, from; /* columns of a chunk; the first one of the next chunk */
    int left;        /* chunks still to be copied */
    uint32_t copied; /* shared address of the barrier of the chunk on its way */
    unsigned parity;
    /* Of the lane's two quads of a group the one that it reads first, with the weights in that order, too: the first ones
     * of eight lanes would lie 32 bytes apart, in half of the banks; so half of the lanes begin with their second. */
    int quad;
    bool swapped;

    /* Requests the first chunk. `barrier`: shared memory. */
    __device__ __forceinline__ x_chunks(const matvec_args &a, int n_tok, int of_units, int columns, int rounds,
                                        int lane, float *memory, uint64_t *barrier)
        : now(memory), next(memory), buffers(memory), unit(0), units(of_units), width(columns), from(0),
          left(rounds * ((a.n_col + columns - 1) / columns)), copied(fd_shared_address(barrier)), parity(0),
          quad(lane * 2 + lane / 4), swapped(lane >= 4) {
#if __CUDA_ARCH__ >= 900
        if (threadIdx.x == 0) fd_mbarrier_init(copied, 1);
#else
        if (threadIdx.x == 0) fd_mbarrier_init(copied, blockDim.x);
#endif
        __syncthreads();
        copy(a, n_tok);
    }

    /* Requests a chunk; rows from n_tok on are the last one again, whose sums are dropped. */
    __device__ __forceinline__ void copy(const matvec_args &a, int n_tok) {
        if (left == 0) return;
        const int pieces = min(width, a.n_col - from) / 64 * T; /* a row of a group each */
        const uint32_t to = fd_shared_address(next);
#if __CUDA_ARCH__ >= 900
        if (threadIdx.x == 0) fd_mbarrier_arrive_expect_tx(copied, (uint32_t)pieces * 256);
#endif
        for (int i = (int)threadIdx.x; i < pieces; i += (int)blockDim.x) {
            const float *piece = a.x + (int64_t)min(i % T, n_tok - 1) * a.n_col + from + i / T * 64;
#if __CUDA_ARCH__ >= 900
            fd_cp_async_bulk(to + (uint32_t)i * 256, piece, 256, copied, fd_policy_evict_last());
#else
            for (int k = 0; k < 16; k++) fd_cp_async16(to + (uint32_t)(i * 256 + k * 16), piece + k * 4);
#endif
        }
#if __CUDA_ARCH__ < 900
        fd_mbarrier_arrive_after_copies(copied);
#endif
        from = from + width < a.n_col ? from + width : 0;
        left--;
    }

    /* Called with each stage of weights, which begins with unit `at`: when another chunk begins there, waits for it. */
    __device__ __forceinline__ void reach(const matvec_args &a, int n_tok, int at) {
        if (at % units != 0) return;
        fd_mbarrier_wait(copied, parity);
        parity ^= 1u;
        __syncthreads(); /* no warp reads the chunk before */
        now = next;
        unit = at;
        next = now == buffers ? buffers + T * width : buffers;
        copy(a, n_tok);
    }

    __device__ __forceinline__ void read(int t, int group, int, lane_x<8> &x) const {
        const float4 *quads = (const float4 *)(now + (group * T + t) * 64);
        const float4 a = quads[quad], b = quads[quad ^ 1];
        x = {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
    }
    __device__ __forceinline__ void order(float (&w)[8]) const {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float low = w[i], high = w[i + 4];
            w[i] = swapped ? high : low;
            w[i + 4] = swapped ? low : high;
        }
    }
};

#endif
