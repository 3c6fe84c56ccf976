/* Matrix-vector of q8act: one pass over the weights for one row of activations, with dp4a.
 *
 * Eight lanes share R rows of weights; four of them own the blocks of one parity, which is one of the two partial sums.
 * Each lane has a quarter of a block's integer dot for R rows; the quarters are exchanged so that lane r of the four
 * ends with row r's whole dot (with fewer rows than lanes, several do), and adds it to the row's partial sum. A block
 * keeps x in shared memory, RMS-normed when asked and quantised; the first weights are requested before the previous
 * kernel has ended. */
#include "kernels/launch.cuh"
#include "kernels/matvec_rows.cuh"
#include "kernels/norm.cuh"
#include "kernels/q8.h"
#include "kernels/q8_block.cuh"
#include "kernels/q8_formats.cuh"

struct q8_part {
    const uint8_t *data;
    const float *bias, *residual;
    float *out;
    int64_t n_row;
};

struct q8_matvec_args {
    q8_part part[FD_MATVEC_PARTS];
    int64_t n_row; /* of all parts together; with silu_pair the two interleave: row 2i of part 0, 2i + 1 of part 1 */
    int64_t row_bytes, scale_offset;
    int n_col;
    const float *x, *norm_weight;
    float norm_eps;
    bool silu_pair;
};

/* ---- x in shared memory ---- */

/* q: a unit of 128 elements is 128 bytes; the lane of a row that reads 16 bytes at 16·lane has its eight elements of
 * both of its blocks. Then d and d·Σq of each block. When it is normed, x itself and the norm's weights lie behind them.
 */
__device__ __forceinline__ int q8_padded(int n_col) {
    return (n_col + 255) / 256 * 256;
}
__device__ __forceinline__ int q8_byte_of(int k) {
    return k / 128 * 128 + k % 64 / 8 * 16 + k % 128 / 64 * 8;
}

struct q8_shared {
    int8_t *q;
    float *d, *sum, *x, *norm;
};
__device__ __forceinline__ q8_shared q8_parts_of_shared(int n_col) {
    const int n = q8_padded(n_col);
    q8_shared s;
    s.q = (int8_t *)fd_shared_floats();
    s.d = (float *)(s.q + n);
    s.sum = s.d + n / 32;
    s.x = s.sum + n / 32;
    s.norm = s.x + n;
    return s;
}

/* The weights of RMS_NORM. They depend on no kernel, so this comes before the wait for x. */
__device__ __forceinline__ void q8_stage_norm_weight(const q8_matvec_args &a, const q8_shared &s) {
    for (int k = (int)threadIdx.x * 4; k < a.n_col; k += (int)blockDim.x * 4)
        *(float4 *)(s.norm + k) = __ldg((const float4 *)(a.norm_weight + k));
}

/* x and its norm's factor. */
__device__ __forceinline__ float q8_stage_x(const q8_matvec_args &a, const q8_shared &s) {
    __shared__ float factor;
    for (int k = (int)threadIdx.x * 4; k < a.n_col; k += (int)blockDim.x * 4)
        *(float4 *)(s.x + k) = __ldcg((const float4 *)(a.x + k));
    __syncthreads();
    if (threadIdx.x < 32) {
        const float r = fd_inverse_rms(a.n_col, a.norm_eps, [&](int group) {
            const int k = group * 64 + 2 * (int)threadIdx.x;
            return k < a.n_col ? *(const float2 *)(s.x + k) : make_float2(0.0f, 0.0f);
        });
        if (threadIdx.x == 0) factor = r;
    }
    __syncthreads();
    return factor;
}

/* Elements k … k + 7, normed when asked; zeros past n_col. */
__device__ __forceinline__ void q8_eight(const q8_matvec_args &a, const q8_shared &s, int k, float r, float (&v)[8]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (k < a.n_col && !a.norm_weight) x = __ldcg((const float4 *)(a.x + k) + i);
        if (k < a.n_col && a.norm_weight) {
            const float4 in = *(const float4 *)(s.x + k + 4 * i), w = *(const float4 *)(s.norm + k + 4 * i);
            x = make_float4((in.x * r) * w.x, (in.y * r) * w.y, (in.z * r) * w.z, (in.w * r) * w.w);
        }
        v[4 * i] = x.x, v[4 * i + 1] = x.y, v[4 * i + 2] = x.z, v[4 * i + 3] = x.w;
    }
}

__device__ __forceinline__ void q8_keep(const q8_shared &s, int k, const fd_q8_eighths &q) {
    *(uint2 *)(s.q + q8_byte_of(k)) = make_uint2(q.low, q.high);
    if (k % 32 == 0) {
        s.d[k / 32] = q.d;
        s.sum[k / 32] = q.sum;
    }
}

__device__ __forceinline__ void q8_stage(const q8_matvec_args &a, const q8_shared &s) {
    const float r = a.norm_weight ? q8_stage_x(a, s) : 1.0f;
    /* Two at a time, for their latencies. Whole warps: blockDim and the padded row's number of eighths are multiples of
     * 32. */
    const int n = q8_padded(a.n_col), step = (int)blockDim.x * 8;
    for (int k = (int)threadIdx.x * 8; k < n; k += 2 * step) {
        float first[8], second[8];
        q8_eight(a, s, k, r, first);
        q8_eight(a, s, k + step, r, second);
        const fd_q8_eighths one = fd_q8_quarter_block(first), two = fd_q8_quarter_block(second);
        q8_keep(s, k, one);
        if (k + step < n) q8_keep(s, k + step, two);
    }
    __syncthreads();
}

/* ---- a lane's share of a unit ---- */

template <uint32_t DTYPE> struct q8_unit { uint32_t w[q8_format<DTYPE>::words]; };
template <uint32_t DTYPE> struct q8_head { uint32_t h[q8_format<DTYPE>::head_words]; };

template <uint32_t DTYPE> __device__ __forceinline__ q8_unit<DTYPE> q8_load(const uint8_t *row, int at, int lane) {
    q8_unit<DTYPE> u;
    const uint8_t *unit = row + at * q8_format<DTYPE>::unit_bytes;
    if constexpr (DTYPE == FD_Q4_0) {
        const uint2 q = __ldcs((const uint2 *)(unit + lane * 8));
        u.w[0] = q.x, u.w[1] = q.y;
    } else {
        const uint4 q = __ldcs((const uint4 *)(unit + (DTYPE == FD_Q4_K ? 16 : 0) + lane * 16));
        u.w[0] = q.x, u.w[1] = q.y, u.w[2] = q.z, u.w[3] = q.w;
        if constexpr (DTYPE == FD_Q6_K) {
            const uint2 high = __ldcs((const uint2 *)(unit + 128 + lane * 8));
            u.w[4] = high.x, u.w[5] = high.y;
        }
    }
    return u;
}

/* The scales of a row that a lane of this parity needs. */
template <uint32_t DTYPE>
__device__ __forceinline__ q8_head<DTYPE> q8_load_head(const uint8_t *row, int64_t scale_offset, int at, int parity) {
    q8_head<DTYPE> u;
    if constexpr (DTYPE == FD_Q4_K) {
        const uint4 head = __ldg((const uint4 *)(row + at * 144));
        u.h[0] = head.x, u.h[1] = head.y, u.h[2] = head.z, u.h[3] = head.w;
    } else if constexpr (DTYPE == FD_Q6_K) {
        const uint2 scales = __ldg((const uint2 *)(row + at * 208 + 192 + parity * 8));
        u.h[0] = scales.x, u.h[1] = scales.y, u.h[2] = __ldg((const uint16_t *)(row + scale_offset + at * 2));
    } else {
        const uint2 scales = __ldg((const uint2 *)(row + scale_offset + at * 8));
        u.h[0] = scales.x, u.h[1] = scales.y;
    }
    return u;
}

/* From each of four lanes' quarters for R rows to whole sums: lane i gets row i % R's. With two halves a block, lanes 0
 * and 1 hold quarters of the first, 2 and 3 of the last: both come out. */
template <int R, int HALVES> __device__ __forceinline__ void q8_gather(int (&v)[R], int lane, int (&s)[HALVES]) {
    const bool odd = lane & 1, upper = lane & 2;
    int w[R > 2 ? 2 : 1];
    if constexpr (R == 1) {
        w[0] = v[0] + __shfl_xor_sync(0xffffffffu, v[0], 1);
    } else {
#pragma unroll
        for (int i = 0; i < R / 2; i++) {
            const int keep = odd ? v[2 * i + 1] : v[2 * i], give = odd ? v[2 * i] : v[2 * i + 1];
            w[i] = keep + __shfl_xor_sync(0xffffffffu, give, 1);
        }
    }
    int keep = w[0], give = w[0];
    if constexpr (R == 4) keep = upper ? w[1] : w[0], give = upper ? w[0] : w[1];
    const int other = __shfl_xor_sync(0xffffffffu, give, 2);
    if constexpr (HALVES == 1) {
        s[0] = keep + other;
    } else {
        s[0] = upper ? other : keep;
        s[1] = upper ? keep : other;
    }
}

/* `at`: number of the unit. acc: the partial sum of the lane's row and parity. */
template <uint32_t DTYPE, int R>
__device__ __forceinline__ void q8_add_unit(const q8_unit<DTYPE> (&units)[R], const q8_head<DTYPE> &head, int at,
                                            int n_block, int lane, const q8_shared &x, float &acc) {
    using F = q8_format<DTYPE>;
    const int parity = lane / 4;
    /* One lane of those whose quarters come together starts at the bits that make the sum a float. */
    const int start = lane % (4 / F::halves) == 0 ? FD_Q8_MAGIC_BITS : 0;
#pragma unroll
    for (int pair = 0; pair < F::blocks / 2; pair++) {
        const uint4 q = *(const uint4 *)(x.q + (at * (F::blocks / 2) + pair) * 128 + lane * 16);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int j = 2 * pair + half, block = at * 2 * F::blocks + parity + 2 * j;
            int v[R], s[F::halves];
#pragma unroll
            for (int r = 0; r < R; r++) {
                uint32_t low, high;
                F::ints(units[r].w, j, low, high);
                v[r] = __dp4a((int)low, (int)(half ? q.z : q.x), start);
                v[r] = __dp4a((int)high, (int)(half ? q.w : q.y), v[r]);
            }
            q8_gather<R, F::halves>(v, lane, s);
            const float d = x.d[block];
            float next = acc;
#pragma unroll
            for (int h = 0; h < F::halves; h++)
                next = fmaf(fd_q8_times(__int_as_float(s[h]), F::scale(head.h, parity, j, h)), d, next);
            if (F::minimum) next = fd_q8_subtract(next, F::min(head.h, parity, j), x.sum[block]);
            acc = block < n_block ? next : acc; /* a row's last unit may have blocks past its end */
        }
    }
}

template <uint32_t DTYPE, int R>
__global__ void __launch_bounds__(256, R == 4 ? 2 : 3) q8_matvec(const __grid_constant__ q8_matvec_args a) {
    using F = q8_format<DTYPE>;
    /* Units in flight: about 40 registers of loads. */
    constexpr int fit = 40 / (F::words * R + F::head_words), depth = fit < 2 ? 2 : fit > 8 ? 8 : fit;
    const q8_shared x = q8_parts_of_shared(a.n_col);
    const int lane = (int)threadIdx.x % 8, parity = lane / 4, mine = lane % R;
    const int n_block = a.n_col / 32, n_unit = (n_block + 2 * F::blocks - 1) / (2 * F::blocks);
    const int64_t tile_rows = (int64_t)(blockDim.x / 8) * R, slot = threadIdx.x / 8 * R;
    bool staged = false;

    fd_allow_next();
    for (int64_t tile = (int64_t)blockIdx.x * tile_rows; tile < a.n_row; tile += gridDim.x * tile_rows) {
        const uint8_t *row[R], *own_row;
        q8_unit<DTYPE> units[depth][R];
        q8_head<DTYPE> heads[depth];
        int part;
#pragma unroll
        for (int r = 0; r < R; r++) {
            /* Lanes past the last row read it again and store nothing: all 32 take part in the exchanges. */
            const int64_t at = tile + slot + r < a.n_row ? tile + slot + r : a.n_row - 1;
            const int64_t own = row_of(a, at, &part);
            row[r] = part_of(a, part).data + own * a.row_bytes;
        }
        const int64_t at_mine = tile + slot + mine < a.n_row ? tile + slot + mine : a.n_row - 1;
        const int64_t own = row_of(a, at_mine, &part);
        own_row = part_of(a, part).data + own * a.row_bytes;
#pragma unroll
        for (int u = 0; u < depth; u++)
            if (u < n_unit) {
#pragma unroll
                for (int r = 0; r < R; r++) units[u][r] = q8_load<DTYPE>(row[r], u, lane);
                heads[u] = q8_load_head<DTYPE>(own_row, a.scale_offset, u, parity);
            }
        if (!staged) {
            if (a.norm_weight) q8_stage_norm_weight(a, x);
            fd_wait_previous();
            q8_stage(a, x);
            staged = true;
        }

        /* Each unit is replaced, as soon as it is used, by the one `depth` further on. */
        float acc = 0.0f;
        for (int at = 0; at < n_unit; at += depth) {
#pragma unroll
            for (int u = 0; u < depth; u++) {
                if (at + u >= n_unit) break;
                q8_add_unit<DTYPE, R>(units[u], heads[u], at + u, n_block, lane, x, acc);
                if (at + u + depth < n_unit) {
#pragma unroll
                    for (int r = 0; r < R; r++) units[u][r] = q8_load<DTYPE>(row[r], at + u + depth, lane);
                    heads[u] = q8_load_head<DTYPE>(own_row, a.scale_offset, at + u + depth, parity);
                }
            }
        }

        float y = acc + __shfl_xor_sync(0xffffffffu, acc, 4); /* partial 0 + partial 1 */
        const q8_part &of = part_of(a, part);
        if (of.bias) y = y + of.bias[own];
        const float up = R > 1 ? __shfl_xor_sync(0xffffffffu, y, 1) : 0.0f;
        if (lane >= R || tile + slot + mine >= a.n_row) continue;
        if (a.silu_pair) {
            if (lane % 2 == 0) a.part[0].out[own] = fd_silu32(y) * up;
        } else {
            if (of.residual) y = __ldcg(of.residual + own) + y;
            of.out[own] = y;
        }
    }
}

/* ---- launching ---- */

static size_t shared_bytes(int64_t n_col, bool normed) {
    const size_t n = (size_t)(n_col + 255) / 256 * 256;
    return n + 2 * sizeof(float) * n / 32 + (normed ? 2 * sizeof(float) * n : 0);
}

template <uint32_t DTYPE, int R>
static fd_code launch(const fd_queue *queue, const q8_matvec_args &args, fd_error *err) {
    constexpr int rows_per_warp = 4 * R;
    /* The largest block that still gives (nearly) every multiprocessor one: each block quantises x for itself. */
    int warps = 8, at_once = 0;
    const int64_t n_warp = (args.n_row + rows_per_warp - 1) / rows_per_warp;
    while (warps > 2 && 8 * n_warp < 7 * (int64_t)queue->n_sm * warps) warps /= 2;
    const size_t shared = shared_bytes(args.n_col, args.norm_weight != nullptr);
    FD_TRY(fd_allow_shared(queue, "q8_matvec", q8_matvec<DTYPE, R>, shared, err));
    FD_TRY(
        fd_cuda_check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&at_once, q8_matvec<DTYPE, R>, warps * 32, shared),
                      "q8_matvec", err));
    /* As many blocks as run at once, each with the same number of tiles, one more or less. */
    const int64_t tiles = (n_warp + warps - 1) / warps, most = (int64_t)queue->n_sm * (at_once > 0 ? at_once : 1);
    const int64_t rounds = (tiles + most - 1) / most, blocks = (tiles + rounds - 1) / rounds;
    return fd_launch(queue, "q8_matvec", q8_matvec<DTYPE, R>, dim3((unsigned)blocks), warps * 32, shared, err, args);
}

template <uint32_t DTYPE>
static fd_code launch_dtype(const fd_queue *queue, const q8_matvec_args &args, int rows, fd_error *err) {
    if (rows == 0) {
        /* Rows that go together save reads of x and exchanges, once there are warps enough. */
        const int64_t groups = args.n_row / 4, enough = (int64_t)queue->n_sm * 16;
        rows = groups >= 4 * enough ? 4 : groups >= 2 * enough || args.silu_pair ? 2 : 1;
    }
    if (rows == 1) return launch<DTYPE, 1>(queue, args, err);
    return rows == 2 ? launch<DTYPE, 2>(queue, args, err) : launch<DTYPE, 4>(queue, args, err);
}

static fd_code check(const fd_matvec *in, int32_t rows, fd_error *err) {
    const fd_device_matrix *first = &in->part[0].weight;
    if (in->n_part < 1 || in->n_part > FD_MATVEC_PARTS || in->n_tok != 1)
        return fd_fail(err, FD_ERR_INPUT, "kernel q8_matvec: %d parts, %d rows, expected one row", in->n_part,
                       in->n_tok);
    if (rows != 0 && rows != 1 && rows != 2 && rows != 4)
        return fd_fail(err, FD_ERR_INPUT, "kernel q8_matvec: %d rows together, expected 1, 2 or 4", rows);
    if (in->silu_pair && (in->n_part != 2 || first->n_row != in->part[1].weight.n_row || rows == 1))
        return fd_fail(err, FD_ERR_INPUT, "kernel q8_matvec: silu takes two parts of equal rows, two rows together");
    for (int i = 0; i < in->n_part; i++) {
        const fd_device_matrix *w = &in->part[i].weight;
        if (!fd_q8_can(w->dtype) || w->dtype != first->dtype || w->n_col != first->n_col || w->n_row < 1 ||
            w->n_col < 1 || w->n_col % 32 != 0 || w->n_col > (1 << 24))
            return fd_fail(err, FD_ERR_INPUT,
                           "kernel q8_matvec: part %d is [%lld, %lld] of type %u, part 0 has %lld columns of type %u",
                           i, (long long)w->n_row, (long long)w->n_col, (unsigned)w->dtype, (long long)first->n_col,
                           (unsigned)first->dtype);
    }
    return FD_OK;
}

fd_code fd_launch_q8_matvec(const fd_queue *queue, const fd_matvec *in, int32_t rows, fd_error *err) {
    FD_TRY(check(in, rows, err));
    const fd_device_matrix *first = &in->part[0].weight;
    q8_matvec_args args = {};
    args.n_col = (int)first->n_col;
    args.row_bytes = first->row_bytes;
    args.scale_offset = first->scale_offset;
    args.x = in->x;
    args.norm_weight = in->norm_weight;
    args.norm_eps = in->norm_eps;
    args.silu_pair = in->silu_pair;
    for (int i = 0; i < in->n_part; i++) {
        const fd_matvec_part *part = &in->part[i];
        args.part[i] = {(const uint8_t *)part->weight.data, part->bias, part->residual, part->out, part->weight.n_row};
        args.n_row += part->weight.n_row;
    }
    switch (first->dtype) {
    case FD_Q8_0: return launch_dtype<FD_Q8_0>(queue, args, rows, err);
    case FD_Q4_0: return launch_dtype<FD_Q4_0>(queue, args, rows, err);
    case FD_Q4_K: return launch_dtype<FD_Q4_K>(queue, args, rows, err);
    default: return launch_dtype<FD_Q6_K>(queue, args, rows, err);
    }
}
