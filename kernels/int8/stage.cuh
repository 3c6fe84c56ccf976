/* A row of activations in shared memory, RMS-normed when asked, as blocks of int8. */
#ifndef FD_KERNELS_INT8_STAGE_CUH
#define FD_KERNELS_INT8_STAGE_CUH

#include "kernels/elementwise/norm.cuh"
#include "kernels/int8/block.cuh"

struct q8_input {
    const float *x, *norm_weight; /* [n_col]; norm_weight NULL: as it is */
    float norm_eps;
    float *norm_out; /* NULL: not stored */
    int n_col;       /* a multiple of 32 */
};

/* q: a unit of 128 elements is 128 bytes; the lane of a row that reads 16 bytes at 16·lane has its eight elements of
 * both of its blocks. d and d·Σq: of the even blocks, then of the odd ones. x itself when it is normed. */
struct q8_shared {
    int8_t *q;
    float *d, *sum, *x;
    int per_parity; /* of d and sum: a multiple of 4 */
};

__host__ __device__ __forceinline__ int q8_padded(int n_col) {
    return (n_col + 255) / 256 * 256;
}
__host__ __device__ __forceinline__ size_t q8_shared_bytes(int n_col, bool normed) {
    const size_t n = (size_t)q8_padded(n_col);
    return n + 2 * sizeof(float) * n / 32 + (normed ? sizeof(float) * n : 0);
}
__device__ __forceinline__ q8_shared q8_shared_at(void *memory, int n_col) {
    const int n = q8_padded(n_col);
    q8_shared s;
    s.q = (int8_t *)memory;
    s.d = (float *)(s.q + n);
    s.sum = s.d + n / 32;
    s.x = s.sum + n / 32;
    s.per_parity = n / 64;
    return s;
}

/* A thread's eights of x or of the norm's weights, `blockDim.x` eights apart, as many as it has on their way at once.
 * Zeros past n_col. */
enum { Q8_AT_ONCE = 4 };
struct q8_eights {
    float v[Q8_AT_ONCE][8];
};
__device__ __forceinline__ void q8_load_eights(const float *from, int n_col, int first, q8_eights &to) {
#pragma unroll
    for (int i = 0; i < Q8_AT_ONCE; i++) {
        const int k = (first + i * (int)blockDim.x) * 8;
        float4 a = make_float4(0.0f, 0.0f, 0.0f, 0.0f), b = a;
        if (k < n_col) a = __ldcg((const float4 *)(from + k)), b = __ldcg((const float4 *)(from + k) + 1);
        to.v[i][0] = a.x, to.v[i][1] = a.y, to.v[i][2] = a.z, to.v[i][3] = a.w;
        to.v[i][4] = b.x, to.v[i][5] = b.y, to.v[i][6] = b.z, to.v[i][7] = b.w;
    }
}

/* Quantises eights first + i·blockDim.x of a thread. All threads of the block call it: four neighbours share a block,
 * and the padded row's number of eights is a multiple of 32, as blockDim.x is. */
__device__ __forceinline__ void q8_keep_eights(const q8_shared &s, int n_col, int first, const q8_eights &of) {
    const int n = q8_padded(n_col);
#pragma unroll
    for (int i = 0; i < Q8_AT_ONCE; i++) {
        const int k = (first + i * (int)blockDim.x) * 8;
        if (k >= n) break;
        const fd_q8_eighths q = fd_q8_quarter_block(of.v[i]);
        *(uint2 *)(s.q + k / 128 * 128 + k % 64 / 8 * 16 + k % 128 / 64 * 8) = make_uint2(q.low, q.high);
        const int block = k / 32, at = block % 2 * s.per_parity + block / 2;
        if (k % 32 == 0) s.d[at] = q.d, s.sum[at] = q.sum;
    }
}

/* Eights first + i·blockDim.x of x to s.x, where the norm's sum reads them. */
__device__ __forceinline__ void q8_put_eights(const q8_input &in, const q8_shared &s, int first, const q8_eights &x) {
#pragma unroll
    for (int i = 0; i < Q8_AT_ONCE; i++) {
        const int k = (first + i * (int)blockDim.x) * 8;
        if (k >= in.n_col) break;
        ((float4 *)(s.x + k))[0] = make_float4(x.v[i][0], x.v[i][1], x.v[i][2], x.v[i][3]);
        ((float4 *)(s.x + k))[1] = make_float4(x.v[i][4], x.v[i][5], x.v[i][6], x.v[i][7]);
    }
}

/* The norm's factor, of x in s.x. Barriers of the block. */
__device__ __forceinline__ float q8_norm_factor(const q8_input &in, const q8_shared &s) {
    __shared__ float factor;
    __syncthreads();
    if (threadIdx.x < 32) {
        const float r = fd_inverse_rms(in.n_col, in.norm_eps, [&](int group) {
            const int k = group * 64 + 2 * (int)threadIdx.x;
            return k < in.n_col ? *(const float2 *)(s.x + k) : make_float2(0.0f, 0.0f);
        });
        if (threadIdx.x == 0) factor = r;
    }
    __syncthreads();
    return factor;
}

__device__ __forceinline__ void q8_norm_eights(const q8_input &in, int first, float r, const q8_eights &weights,
                                               q8_eights &x) {
#pragma unroll
    for (int i = 0; i < Q8_AT_ONCE; i++) {
        const int k = (first + i * (int)blockDim.x) * 8;
        if (k >= in.n_col) break; /* zeros stay zeros */
#pragma unroll
        for (int e = 0; e < 8; e++) x.v[i][e] = (x.v[i][e] * r) * weights.v[i][e];
        if (in.norm_out && blockIdx.x == 0) {
            float4 *to = (float4 *)(in.norm_out + k);
            to[0] = make_float4(x.v[i][0], x.v[i][1], x.v[i][2], x.v[i][3]);
            to[1] = make_float4(x.v[i][4], x.v[i][5], x.v[i][6], x.v[i][7]);
        }
    }
}

/* `held`: the first of a thread's norm weights, loaded before x was there. `overlap` is called after x has been
 * requested: x does not wait for what it requests. Ends with a barrier. */
template <class Overlap>
__device__ __forceinline__ void q8_stage(const q8_input &in, const q8_shared &s, q8_eights &held, Overlap overlap) {
    const int step = (int)blockDim.x * Q8_AT_ONCE, n = q8_padded(in.n_col) / 8, own = (int)threadIdx.x;
    q8_eights x;
    q8_load_eights(in.x, in.n_col, own, x);
    overlap();
    float r = 0.0f;
    if (in.norm_weight) {
        q8_put_eights(in, s, own, x);
        for (int first = own + step; first - own < n; first += step) {
            q8_eights more;
            q8_load_eights(in.x, in.n_col, first, more);
            q8_put_eights(in, s, first, more);
        }
        r = q8_norm_factor(in, s);
        q8_norm_eights(in, own, r, held, x);
    }
    q8_keep_eights(s, in.n_col, own, x);
    for (int first = own + step; first - own < n; first += step) {
        q8_load_eights(in.x, in.n_col, first, x);
        if (in.norm_weight) {
            q8_load_eights(in.norm_weight, in.n_col, first, held);
            q8_norm_eights(in, first, r, held, x);
        }
        q8_keep_eights(s, in.n_col, first, x);
    }
    __syncthreads();
}

#endif
