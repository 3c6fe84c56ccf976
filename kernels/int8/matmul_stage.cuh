/* The matrix product of q8act: what a thread block keeps in shared memory, and how weights and activations get there.
 *
 * Activations come through a ring of stages; weights through registers, a unit ahead, from which they are stored as
 * int8 in the file's order, with their scales as floats. Rows of 128 bytes are swizzled, piece of 16 bytes p of row r
 * at p ^ r % 8: ldmatrix reads eight rows at once. */
#ifndef FD_KERNELS_INT8_MATMUL_STAGE_CUH
#define FD_KERNELS_INT8_MATMUL_STAGE_CUH

#include "kernels/int8/q8.h"
#include "kernels/matmul/tile.cuh"
#include "kernels/int8/formats.cuh"

namespace {

/* Rows of weights that a thread block computes. A warp has MT tiles of 16 of them and NT tiles of 8 tokens; all rows and
 * two columns of warps make a parity. */
constexpr int ROWS = 128;
template <int MT> constexpr int threads_of = 2 * 2 * ROWS / (16 * MT) * 32;

struct q8_matmul_args {
    tile_product product; /* its x is not read */
    int n_block;
    fd_q8_rows x;
};

/* Shared memory, in bytes: two buffers of weights and their scales, then the ring of activations. */
template <uint32_t DTYPE, int NT> struct layout_of {
    using F = q8_format<DTYPE>;
    static constexpr int tokens = 16 * NT;
    static constexpr int subs = F::blocks / 2; /* a unit in rows of 128 elements */
    static constexpr int weights = ROWS * 128 * subs;
    static constexpr int scales = F::halves + F::minimum; /* floats a row and block */
    static constexpr int table = 4 * subs * scales * ROWS * (int)sizeof(float);
    static constexpr int at_stages = 2 * (weights + table);
    static constexpr int at_d = tokens * 128 * subs; /* of a stage */
    static constexpr int at_sum = at_d + tokens * 16 * subs;
    static constexpr int stage = at_sum + (F::minimum ? tokens * 16 * subs : 0);
    static constexpr int room = (226 * 1024 - at_stages) / stage;
    static constexpr int depth = room > 4 ? 4 : room;
    static_assert(depth >= 2 && stage % 128 == 0, "a stage to read and one to fill, each from a bank's beginning");
};

/* ---- weights: from memory to registers, from registers to shared memory ---- */

/* Eight threads have the eight lanes' words (kernels/formats/pack.h) of a row, of several rows in turn; two threads the
 * scales of a row. */
template <uint32_t DTYPE, int NT, int THREADS> struct weights_in_flight {
    using L = layout_of<DTYPE, NT>;
    using F = q8_format<DTYPE>;
    static constexpr int turns = ROWS * 8 / THREADS;

    const uint8_t *row[turns], *head_row;
    uint32_t w[turns][F::words], head[F::head_words];

    __device__ __forceinline__ weights_in_flight(const q8_matmul_args &a, const tile_part &part, int64_t row0) {
#pragma unroll
        for (int i = 0; i < turns; i++) row[i] = row_at(a, part, row0 + (int)threadIdx.x / 8 + i * (THREADS / 8));
        head_row = row_at(a, part, row0 + (int)threadIdx.x % ROWS);
    }
    /* Rows past the last are the last again. */
    __device__ __forceinline__ static const uint8_t *row_at(const q8_matmul_args &a, const tile_part &part,
                                                            int64_t at) {
        return part.data + (at < part.n_row ? at : part.n_row - 1) * a.product.row_bytes;
    }

    __device__ __forceinline__ void load(const q8_matmul_args &a, int unit) {
        const int lane = (int)threadIdx.x % 8;
#pragma unroll
        for (int i = 0; i < turns; i++) F::template load<FD_READ_AGAIN>(row[i] + unit * F::unit_bytes, lane, w[i]);
        if (threadIdx.x >= 2 * ROWS) return;
        F::template load_head<FD_READ_AGAIN>(head_row + unit * F::unit_bytes,
                                             head_row + a.product.scale_offset + unit * F::scale_bytes,
                                             (int)threadIdx.x / ROWS, head);
    }

    /* weights [sub][row][128], then table [block][half or minimum][row]. */
    __device__ __forceinline__ void store(uint8_t *to) const {
        const int lane = (int)threadIdx.x % 8, parity = lane / 4;
#pragma unroll
        for (int i = 0; i < turns; i++) {
            const int at = (int)threadIdx.x / 8 + i * (THREADS / 8);
#pragma unroll
            for (int j = 0; j < F::blocks; j++) {
                const int piece = 2 * (parity + 2 * (j % 2)) + lane % 4 / 2;
                uint2 q;
                F::ints(w[i], j, q.x, q.y);
                *(uint2 *)(to + j / 2 * ROWS * 128 + at * 128 + (piece ^ at % 8) * 16 + lane % 2 * 8) = q;
            }
        }
        if (threadIdx.x >= 2 * ROWS) return;
        const int head_parity = (int)threadIdx.x / ROWS;
        float *table = (float *)(to + L::weights) + (int)threadIdx.x % ROWS;
#pragma unroll
        for (int j = 0; j < F::blocks; j++) {
            float *block = table + (head_parity + 2 * j) * L::scales * ROWS;
#pragma unroll
            for (int k = 0; k < F::halves; k++) block[k * ROWS] = F::scale(head, head_parity, j, k);
            if (F::minimum) block[F::halves * ROWS] = F::min(head, head_parity, j);
        }
    }
};

/* ---- activations: a thread's pieces of some tokens and of their scales, copied without waiting ---- */

template <uint32_t DTYPE, int NT, int THREADS> struct activations {
    using L = layout_of<DTYPE, NT>;
    static constexpr int quads = L::tokens / 4; /* of tokens, in a row of scales */

    const int8_t *x;
    const float *d;
    int64_t step, sum_from_d;
    int at;

    __device__ __forceinline__ activations(const q8_matmul_args &a, int token0) {
        const int thread = (int)threadIdx.x, token = thread / 8;
        x = a.x.q + (token0 + token) * a.x.row_bytes + thread % 8 * 16;
        step = a.x.row_bytes * (THREADS / 8);
        at = token * 128 + (thread % 8 ^ token % 8) * 16;
        d = a.x.d + (int64_t)(thread / quads) * a.x.tok_stride + token0 + thread % quads * 4;
        sum_from_d = a.x.sum - a.x.d;
    }

    __device__ __forceinline__ void copy(uint32_t to, int unit, const q8_matmul_args &a) const {
#pragma unroll
        for (int sub = 0; sub < L::subs; sub++)
#pragma unroll
            for (int i = 0; i < L::tokens * 8; i += THREADS)
                if (i + THREADS <= L::tokens * 8 || (int)threadIdx.x < L::tokens * 8 - i)
                    fd_cp_async16(to + at + sub * L::tokens * 128 + i / 8 * 128,
                                  x + (unit * L::subs + sub) * 128 + i / THREADS * step);
#pragma unroll
        for (int i = 0; i < 4 * L::subs * quads; i += THREADS)
            if (i + (int)threadIdx.x < 4 * L::subs * quads) {
                const float *from = d + (int64_t)(unit * 4 * L::subs + i / quads) * a.x.tok_stride;
                fd_cp_async16(to + L::at_d + (i + (int)threadIdx.x) * 16, from);
                if (L::F::minimum) fd_cp_async16(to + L::at_sum + (i + (int)threadIdx.x) * 16, from + sum_from_d);
            }
    }
};

} // namespace

#endif
