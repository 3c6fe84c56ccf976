/* The arguments of the matrix-vector kernels, and how a block stages x in shared memory, RMS-normed when asked. */
#ifndef FD_KERNELS_MATVEC_STAGE_CUH
#define FD_KERNELS_MATVEC_STAGE_CUH

#include "kernels/device.cuh"
#include "kernels/gather/page.cuh"
#include "kernels/matvec/rows.cuh"
#include "kernels/elementwise/norm.cuh"

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
    fd_send send;
    int head_units; /* of each row of a warp's first tile that shared memory holds (kernels/matvec/head.cuh) */
};

/* What the products' launchers tell their kernels of the input and the matrices. */
static inline matvec_args matvec_args_of(const fd_matvec *in) {
    const fd_device_matrix *first = &in->part[0].weight;
    matvec_args args = {};
    args.n_col = (int)first->n_col;
    args.row_bytes = first->row_bytes;
    args.scale_offset = first->scale_offset;
    args.x = in->x;
    args.norm_weight = in->norm_weight;
    args.norm_eps = in->norm_eps;
    args.norm_out = in->norm_out;
    args.silu_pair = in->silu_pair;
    args.send = in->send;
    for (int i = 0; i < in->n_part; i++) {
        const fd_matvec_part *part = &in->part[i];
        args.part[i] = {(const uint8_t *)part->weight.data,
                        part->bias,
                        part->residual,
                        part->out,
                        part->product,
                        part->weight.n_row};
        args.n_row += part->weight.n_row;
    }
    return args;
}

/* Where row `at` of all parts begins; for one past the last row the last one, so that all lanes of a warp have
 * something to read and take part in its exchanges. Nothing is stored for it. */
__device__ __forceinline__ const uint8_t *row_data(const matvec_args &a, int64_t at) {
    int part;
    const int64_t own = row_of(a, at < a.n_row ? at : a.n_row - 1, &part);
    return part_of(a, part).data + own * a.row_bytes;
}

/* The kernel without rings (kernels/matvec/matvec.cu): one token row, of which a lane follows 1 or 2 `rows` of weights,
 * or two token rows. */
fd_code fd_launch_matvec_plain(const fd_launch_context *ctx, uint32_t dtype, const matvec_args &args, int n_tok,
                               int rows, fd_error *err);

/* The kernel with rings (kernels/matvec/ring.cu); n_col % 64 == 0. */
fd_code fd_launch_matvec_ring(const fd_launch_context *ctx, uint32_t dtype, const matvec_args &args,
                              const fd_matvec_form *form, fd_error *err);

/* How several token rows are laid over the device: so many together, a lane's partials and rows of weights, warps a
 * block, and whether x goes in chunks. No bit depends on it. */
struct tokens_form {
    int tokens, partials, rows, warps;
    bool in_chunks;
};
enum { TOKENS_STAGES = 2 }; /* of a warp's ring */
constexpr int tokens_warps(int partials) {
    return partials == 8 ? FD_MATVEC_WARPS / 2 : FD_MATVEC_WARPS; /* at most */
}

/* The kernel for several token rows (kernels/matvec/tokens.cu); n_col % 64 == 0. */
fd_code fd_launch_matvec_tokens(const fd_launch_context *ctx, uint32_t dtype, const matvec_args &args, int n_tok,
                                const tokens_form &form, fd_error *err);

/* Shared x: T rows of n_group·64 floats, zero past n_col. With 8 partials a lane reads two quads of a group; the first
 * quads of all lanes come before the second ones, so that eight lanes read 128 bytes in a row. */
template <int P> __device__ __forceinline__ int quad_at(int quad) {
    return P == 8 ? quad / 16 * 16 + quad % 2 * 8 + quad % 16 / 2 : quad;
}
/* A row of n_col elements to a row of shared memory, zero past its end; WHOLE: it is whole quads, n_quad of them. A
 * thread requests several quads before it uses the first: one at a time, each would cost the latency of L2. All threads
 * call `overlap` after the first requests. A WHOLE row has quads, so its first round is not tested: the caller's loads
 * and those of the round then stand in one run of instructions (ring.cu's residual, 5 registers, 2 % of its time). */
template <int P, bool WHOLE = false, class Load, class Overlap>
__device__ __forceinline__ void stage_row(const float *from, int n_col, float4 *quads, int n_quad, Load load,
                                          Overlap overlap) {
    constexpr int at_once = 4;
    const int threads = (int)blockDim.x;
    if (!WHOLE && n_col % 4 != 0) {
        overlap();
        for (int k = (int)threadIdx.x; k < n_quad * 4; k += threads)
            ((float *)(quads + quad_at<P>(k / 4)))[k % 4] = k < n_col ? __ldcg(from + k) : 0.0f;
        return;
    }
    for (int base = 0; (WHOLE && base == 0) || base < n_quad; base += at_once * threads) {
        const int first = base + (int)threadIdx.x;
        float4 value[at_once];
#pragma unroll
        for (int i = 0; i < at_once; i++) {
            if (!WHOLE) value[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (WHOLE ? first + i * threads < n_quad : (first + i * threads) * 4 < n_col)
                value[i] = load((const float4 *)from + first + i * threads);
        }
        if (base == 0) overlap();
#pragma unroll
        for (int i = 0; i < at_once; i++)
            if (first + i * threads < n_quad) quads[quad_at<P>(first + i * threads)] = value[i];
    }
}

/* The factor of RMS_NORM of a staged row; called by a whole warp. */
template <int P> __device__ __forceinline__ float staged_inverse_rms(const matvec_args &a, const float *row) {
    const int lane = (int)threadIdx.x % 32;
    const float *pairs = row + quad_at<P>(lane / 2) * 4 + lane % 2 * 2;
    return fd_inverse_rms(a.n_col, a.norm_eps, [&](int group) { return *(const float2 *)(pairs + group * 64); });
}

/* x as it is, then a barrier. */
template <int P, int T, class Overlap>
__device__ __forceinline__ void stage_x(const matvec_args &a, float *xs, int stride, Overlap overlap) {
#pragma unroll
    for (int token = 0; token < T; token++)
        stage_row<P>(
            a.x + token * (int64_t)a.n_col, a.n_col, (float4 *)(xs + token * stride), stride / 4,
            [](const float4 *from) { return __ldcg(from); },
            [&] {
                if (token == 0) overlap();
            });
    __syncthreads();
}

/* The weights of RMS_NORM after x, in the same order. They depend on no kernel, so this comes before the wait for x. */
template <int P, int T> __device__ __forceinline__ void stage_norm_weight(const matvec_args &a, float *xs, int stride) {
    stage_row<P>(
        a.norm_weight, a.n_col, (float4 *)(xs + T * stride), stride / 4,
        [](const float4 *from) { return fd_load_now(from); }, [] {});
}

/* The staged rows to (x·r)·w, in place, then a barrier; a warp sums a row. Each block has all of them: the first one
 * stores a single row where asked. A block has T warps at least. */
template <int P, int T> __device__ __forceinline__ void norm_x(const matvec_args &a, float *xs, int stride) {
    __shared__ float factor[T];
    const int warp = (int)threadIdx.x / 32;
    if (warp < T) {
        const float r = staged_inverse_rms<P>(a, xs + warp * stride);
        if (threadIdx.x % 32 == 0) factor[warp] = r;
    }
    __syncthreads();
    const float4 *w = (const float4 *)(xs + T * stride);
#pragma unroll
    for (int t = 0; t < T; t++) {
        const float r = factor[t];
        float4 *x = (float4 *)(xs + t * stride);
        for (int i = (int)threadIdx.x; i < stride / 4; i += (int)blockDim.x) x[i] = fd_normed(x[i], r, w[i]);
    }
    __syncthreads();
    if (a.norm_out && blockIdx.x == 0)
        for (int k = (int)threadIdx.x; k < a.n_col; k += (int)blockDim.x)
            a.norm_out[k] = xs[quad_at<P>(k / 4) * 4 + k % 4];
}

#endif
