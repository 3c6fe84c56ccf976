/* What the matrix-vector kernel is told, and how a block brings x into shared memory, RMS-normed when asked. */
#ifndef FD_KERNELS_MATVEC_STAGE_CUH
#define FD_KERNELS_MATVEC_STAGE_CUH

#include "kernels/device.cuh"
#include "kernels/matvec_rows.cuh"
#include "kernels/norm.cuh"

struct matvec_part {
    const uint8_t *data;
    const float *bias, *residual;
    float *out, *product;
    int64_t n_row;
};

struct matvec_args {
    matvec_part part[FD_MATVEC_PARTS];
    int64_t n_row; /* of all parts together; with silu_pair the two interleave: row 2i of part 0, 2i + 1 of part 1 */
    int64_t row_bytes, scale_offset;
    int n_col;
    const float *x, *norm_weight;
    float norm_eps;
    float *norm_out;
    bool silu_pair;
};

/* The kernel with rings (kernels/matvec_ring.cu); n_col % 64 == 0. */
fd_code fd_launch_matvec_ring(const fd_queue *queue, uint32_t dtype, const matvec_args &args,
                              const fd_matvec_form *form, fd_error *err);

/* The one for several token rows (kernels/matvec_tokens.cu), and whether it takes so many columns. */
bool fd_matvec_tokens_takes(const fd_queue *queue, int64_t n_col);
fd_code fd_launch_matvec_tokens(const fd_queue *queue, uint32_t dtype, const matvec_args &args, int n_tok,
                                fd_error *err);

/* Shared x: T rows of n_group·64 floats, zero past n_col. With 8 partials a lane reads two quads of a group; the first
 * quads of all lanes come before the second ones, so that eight lanes read 128 bytes in a row. */
template <int P> __device__ __forceinline__ int quad_at(int quad) {
    return P == 8 ? quad / 16 * 16 + quad % 2 * 8 + quad % 16 / 2 : quad;
}
/* Quads that a thread asks for before it uses the first: one at a time, each would cost the latency of L2. */
enum { STAGE_QUADS = 4 };

/* x as it is, then a barrier. */
template <int P, int T> __device__ __forceinline__ void stage_x(const matvec_args &a, float *xs, int stride) {
    float4 *quads = (float4 *)xs;
    const int n_quad = stride / 4, threads = (int)blockDim.x;
    for (int token = 0; token < T; token++) {
        const float *x = a.x + token * (int64_t)a.n_col;
        if (a.n_col % 4 != 0) {
            for (int k = (int)threadIdx.x; k < stride; k += threads)
                xs[token * stride + quad_at<P>(k / 4) * 4 + k % 4] = k < a.n_col ? __ldcg(x + k) : 0.0f;
            continue;
        }
        for (int first = (int)threadIdx.x; first < n_quad; first += STAGE_QUADS * threads) {
            float4 value[STAGE_QUADS];
#pragma unroll
            for (int i = 0; i < STAGE_QUADS; i++) {
                const int quad = first + i * threads;
                value[i] = quad * 4 < a.n_col ? __ldcg((const float4 *)x + quad) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            }
#pragma unroll
            for (int i = 0; i < STAGE_QUADS; i++) {
                const int quad = first + i * threads;
                if (quad < n_quad) quads[token * n_quad + quad_at<P>(quad)] = value[i];
            }
        }
    }
    __syncthreads();
}

/* Quads of RMS_NORM's weights, which depend on no kernel: a thread holds those of its own elements while it waits for x.
 * Where n_col is no multiple of 4 it holds none. */
enum { HELD_QUADS = 4 };
struct held_norm {
    float4 quad[HELD_QUADS];
};
__device__ __forceinline__ void hold_norm(const matvec_args &a, held_norm &held) {
#pragma unroll
    for (int i = 0; i < HELD_QUADS; i++) {
        const int quad = (int)(threadIdx.x + i * blockDim.x);
        if (a.norm_weight && a.n_col % 4 == 0 && quad * 4 < a.n_col)
            held.quad[i] = fd_load_now((const float4 *)a.norm_weight + quad);
    }
}

__device__ __forceinline__ float4 normed(const float4 x, float r, const float4 w) {
    return make_float4((x.x * r) * w.x, (x.y * r) * w.y, (x.z * r) * w.z, (x.w * r) * w.w);
}

/* The staged rows to (x·r)·w, in place, then a barrier; a warp sums a row. Each block has all of them: the first one keeps
 * a single row where asked. A block has T warps at least. */
template <int P, int T>
__device__ __forceinline__ void norm_x(const matvec_args &a, const held_norm &held, float *xs, int stride) {
    __shared__ float factor[T];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, threads = (int)blockDim.x;
    if (warp < T) {
        const float *pairs = xs + warp * stride + quad_at<P>(lane / 2) * 4 + lane % 2 * 2;
        const float r =
            fd_inverse_rms(a.n_col, a.norm_eps, [&](int group) { return *(const float2 *)(pairs + group * 64); });
        if (lane == 0) factor[warp] = r;
    }
    __syncthreads();
#pragma unroll
    for (int t = 0; t < T; t++) {
        const float r = factor[t];
        float4 *x = (float4 *)(xs + t * stride);
        if (a.n_col % 4 != 0) {
            for (int k = (int)threadIdx.x; k < a.n_col; k += threads) {
                float *own = (float *)(x + quad_at<P>(k / 4)) + k % 4;
                *own = (*own * r) * a.norm_weight[k];
            }
            continue;
        }
#pragma unroll
        for (int i = 0; i < HELD_QUADS; i++) {
            const int quad = (int)threadIdx.x + i * threads;
            if (quad * 4 < a.n_col) x[quad_at<P>(quad)] = normed(x[quad_at<P>(quad)], r, held.quad[i]);
        }
        for (int quad = (int)threadIdx.x + HELD_QUADS * threads; quad * 4 < a.n_col; quad += threads)
            x[quad_at<P>(quad)] = normed(x[quad_at<P>(quad)], r, __ldg((const float4 *)a.norm_weight + quad));
    }
    __syncthreads();
    if (a.norm_out && blockIdx.x == 0)
        for (int k = (int)threadIdx.x; k < a.n_col; k += threads)
            a.norm_out[k] = xs[quad_at<P>(k / 4) * 4 + k % 4];
}

#endif
