/* What the tiled matrix products share: their matrices in tiles of rows, the tree over what two warps hold, the
 * outputs. */
#ifndef FD_KERNELS_MATMUL_TILE_CUH
#define FD_KERNELS_MATMUL_TILE_CUH

#include "kernels/matmul/matmul.h"
#include "kernels/tree.cuh"

/* One of the matrices that share x. */
struct tile_part {
    const uint8_t *data;
    int64_t n_row;
    unsigned row_tiles;
    const float *bias;
    float *out;
};

struct tile_product {
    int64_t row_bytes, scale_offset;
    int n_col, n_tok;
    const float *x;
    tile_part part[FD_MATMUL_PARTS];
};

/* Checks `in` and fills `to` for tiles of `rows` rows; *row_tiles: how many all parts have. */
static inline fd_code fd_tile_product(const fd_matmul *in, const char *kernel, int rows, tile_product *to,
                                      int64_t *row_tiles, fd_error *err) {
    const fd_device_matrix *first = &in->part[0].weight;
    *row_tiles = 0;
    if (in->n_tok < 1 || in->n_part < 1 || in->n_part > FD_MATMUL_PARTS)
        return fd_fail(err, FD_ERR_INPUT, "kernel %s: %d parts, %d rows", kernel, in->n_part, in->n_tok);
    for (int i = 0; i < in->n_part; i++) {
        const fd_matmul_part *part = &in->part[i];
        const fd_device_matrix *w = &part->weight;
        if (w->dtype != first->dtype || w->n_col != first->n_col)
            return fd_fail(err, FD_ERR_INPUT, "kernel %s: part %d has %lld columns of type %u, part 0 %lld of type %u",
                           kernel, i, (long long)w->n_col, (unsigned)w->dtype, (long long)first->n_col,
                           (unsigned)first->dtype);
        if (w->n_row < 1 || w->n_row > 1 << 30 || w->n_col < 1 || w->n_col > 1 << 30)
            return fd_fail(err, FD_ERR_UNSUPPORTED, "kernel %s: [%lld, %lld] times %d rows", kernel,
                           (long long)w->n_row, (long long)w->n_col, in->n_tok);
        const int64_t tiles = (w->n_row + rows - 1) / rows;
        to->part[i] = {(const uint8_t *)w->data, w->n_row, (unsigned)tiles, part->bias, part->out};
        *row_tiles += tiles;
    }
    to->row_bytes = first->row_bytes, to->scale_offset = first->scale_offset;
    to->n_col = (int)first->n_col, to->n_tok = in->n_tok, to->x = in->x;
    return FD_OK;
}

/* The part that tile of rows number *tile belongs to, and its number within that part. */
__device__ __forceinline__ const tile_part *fd_tile_part(const tile_product &a, unsigned *tile) {
    const tile_part *part = a.part;
    for (; *tile >= part->row_tiles; part++) *tile -= part->row_tiles;
    return part;
}

/* A pair of warps follows 32 PARTS outputs, the first warp (half 0) lanes 0 to 31 of their partials, the second the
 * others. `sum_of(q, i)`: this lane's partial of output i of part q. Levels 0 to 4 go across a warp's lanes, level 5
 * through `exchange`, 32 PARTS floats of the pair; `meet()` lets its warps wait for each other. `keep(q, i, total)`
 * gets each output in one lane. */
template <int PARTS, typename Sum, typename Meet, typename Keep>
__device__ __forceinline__ void fd_tile_add_up(int half, float *exchange, Sum sum_of, Meet meet, Keep keep) {
    const int lane = (int)(threadIdx.x % 32);
    float sum[PARTS];
#pragma unroll
    for (int q = 0; q < PARTS; q++) {
        float part[32];
#pragma unroll
        for (int i = 0; i < 32; i++) part[i] = sum_of(q, i);
        fd_tree_scatter<32, 32, 1>(part, lane);
        sum[q] = part[0];
        if (half == 1) exchange[q * 32 + lane] = sum[q];
    }
    meet();
    if (half == 1) return;
#pragma unroll
    for (int q = 0; q < PARTS; q++) keep(q, fd_bit_reverse<5>(lane), sum[q] + exchange[q * 32 + lane]);
}

/* Outputs past the edges are dropped. */
__device__ __forceinline__ void fd_tile_store(const tile_product &a, const tile_part &part, int64_t row, int token,
                                              float total) {
    if (row >= part.n_row || token >= a.n_tok) return;
    part.out[token * part.n_row + row] = part.bias ? total + part.bias[row] : total;
}

#endif
