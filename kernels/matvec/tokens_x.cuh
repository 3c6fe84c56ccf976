/* How a block keeps x [T, n_col] of several token rows in shared memory (kernels/matvec/tokens.cu), in the order of
 * quad_at<P> (kernels/matvec/stage.cuh): whole rows, RMS-normed when asked, or chunks of columns in two buffers in turn,
 * the next one on its way while all warps multiply this one. */
#ifndef FD_KERNELS_MATVEC_TOKENS_X_CUH
#define FD_KERNELS_MATVEC_TOKENS_X_CUH

#include "kernels/matvec/stage.cuh"

/* Whole rows, zero from n_tok on, each normed by a warp's sum; ends with a barrier. */
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

/* The chunks of x, over and over, one round for each task of a warp. All threads of a block take each step. */
template <int P, int T> struct x_chunks {
    float *now;            /* the chunk that is multiplied: T rows of `width` columns */
    float *next;           /* where the one after it goes */
    int width, from, left; /* columns of a chunk; the first one of the next chunk; chunks still to be copied */

    __device__ __forceinline__ x_chunks(const matvec_args &a, int columns, int rounds, float *buffers)
        : now(buffers + T * columns), next(buffers), width(columns), from(0),
          left(rounds * ((a.n_col + columns - 1) / columns)) {}

    /* Requests a chunk; rows from n_tok on are the last one again, whose sums are dropped. */
    __device__ __forceinline__ void copy(const matvec_args &a, int n_tok) {
        if (left == 0) return;
        const int n_quad = min(width, a.n_col - from) / 4;
        const uint32_t to = fd_shared_address(next);
        for (int at = (int)threadIdx.x; at < n_quad; at += (int)blockDim.x)
#pragma unroll
            for (int t = 0; t < T; t++)
                fd_cp_async16(to + (uint32_t)(t * width + quad_at<P>(at) * 4) * 4u,
                              a.x + (int64_t)min(t, n_tok - 1) * a.n_col + from + at * 4);
        from = from + width < a.n_col ? from + width : 0;
        left--;
        fd_cp_async_commit_group();
    }

    /* The first one, and waits for it and for all that the thread has requested. */
    __device__ __forceinline__ void begin(const matvec_args &a, int n_tok) {
        copy(a, n_tok);
        fd_cp_async_wait_all();
    }

    /* Called when a chunk's first stage of weights has been awaited: so has the chunk, a group of copies that is older
     * than the stage still under way. */
    __device__ __forceinline__ void advance(const matvec_args &a, int n_tok) {
        __syncthreads(); /* and no warp reads the chunk before */
        float *done = now;
        now = next;
        next = done;
        copy(a, n_tok);
    }
};

#endif
