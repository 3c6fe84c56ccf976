#include "engine/products/kernels.h"

#include "kernels/formats/formats.cuh"
#include "kernels/launch.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, POSITIONS = 8 };

int64_t fd_f32_row_stride(const fd_device_matrix *matrix) {
    const int64_t unit = fd_pack_unit(matrix->dtype);
    return (matrix->n_col + unit - 1) / unit * unit;
}

/* A thread decodes a lane's share of a unit. */
template <class Format>
__global__ void __launch_bounds__(THREADS) dequantise_f32(const uint8_t *data, int64_t row_bytes, int64_t scale_offset,
                                                          int64_t n_share, int32_t n_unit, float *out) {
    const uint32_t magic = fd_opaque_magic();
    const int64_t share = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (share >= n_share) return;
    const int lane = (int)(share % 8);
    const int64_t row = share / 8 / n_unit;
    const int unit_at = (int)(share / 8 % n_unit);
    const fd_cursor cursor = Format::begin(data + row * row_bytes, scale_offset, lane);
    const typename Format::unit unit = Format::template load<FD_READ_ONCE>(cursor, unit_at, lane);
    float4 *to = (float4 *)(out + (row * n_unit + unit_at) * (Format::groups * 64) + lane * 8);
#pragma unroll
    for (int group = 0; group < Format::groups; group++) {
        float w[8];
        Format::decode(unit, group, lane, magic, w);
        to[group * 16] = make_float4(w[0], w[1], w[2], w[3]);
        to[group * 16 + 1] = make_float4(w[4], w[5], w[6], w[7]);
    }
}

fd_code fd_launch_dequantise_f32(const fd_launch_context *ctx, const fd_device_matrix *matrix, float *out,
                                 fd_error *err) {
    return fd_with_format(matrix->dtype, err, [&](auto format) {
        using Format = decltype(format);
        const int32_t n_unit = (int32_t)(fd_f32_row_stride(matrix) / (64 * Format::groups));
        const int64_t n_share = matrix->n_row * n_unit * 8;
        return fd_launch(ctx, "dequantise_f32", dequantise_f32<Format>, dim3(fd_blocks(n_share, THREADS)), THREADS, 0,
                         err, (const uint8_t *)matrix->data, matrix->row_bytes, matrix->scale_offset, n_share, n_unit,
                         out);
    });
}

/* Adds the lanes' values as a tree of neighbours; an addition has the same bits whichever side comes first. */
template <int LANES> __device__ __forceinline__ double tree(double sum) {
#pragma unroll
    for (int m = 1; m < LANES; m *= 2) sum = __dadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, m));
    return sum;
}

/* A warp has ROWS rows and POSITIONS vectors; lane l has partial sums 2l and 2l + 1 of 64. Rows and vectors past the last
 * are that again, and not stored. */
enum { ROWS = 2 };
__global__ void __launch_bounds__(THREADS) multiply_f64(fd_product_rows in, double *y) {
    const int lane = threadIdx.x % 32;
    const int64_t row0 = ((int64_t)blockIdx.x * WARPS + threadIdx.x / 32) * ROWS,
                  pos0 = (int64_t)blockIdx.y * POSITIONS;
    const float *w[ROWS];
    const double *x[POSITIONS];
    double sum[ROWS][POSITIONS][2] = {};
    for (int r = 0; r < ROWS; r++) w[r] = in.w + min(row0 + r, in.n_row - 1) * in.stride + 2 * lane;
    for (int p = 0; p < POSITIONS; p++) x[p] = in.x + min(pos0 + p, in.n_pos - 1) * in.stride + 2 * lane;
    for (int64_t k = 0; k < in.stride; k += 64) {
        float2 own[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) own[r] = *(const float2 *)(w[r] + k);
#pragma unroll
        for (int p = 0; p < POSITIONS; p++) {
            const double2 of_x = *(const double2 *)(x[p] + k);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                sum[r][p][0] = __dadd_rn(__dmul_rn((double)own[r].x, of_x.x), sum[r][p][0]);
                sum[r][p][1] = __dadd_rn(__dmul_rn((double)own[r].y, of_x.y), sum[r][p][1]);
            }
        }
    }
#pragma unroll
    for (int p = 0; p < POSITIONS; p++)
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const double total = tree<32>(__dadd_rn(sum[r][p][0], sum[r][p][1]));
            if (lane == 0 && row0 + r < in.n_row && pos0 + p < in.n_pos) y[(pos0 + p) * in.y_stride + row0 + r] = total;
        }
}

/* Eight lanes have a row and POSITIONS vectors; lane l has partial sum l of 8. Tiles of the block's rows and vectors go
 * through shared memory: by itself a lane would wait for 32 bytes of its row at a time. */
enum { TILE = 64, TILE_ROWS = THREADS / 8, TILE_STRIDE = TILE + 8 /* four rows, eight lanes each: all 32 banks */ };
__global__ void __launch_bounds__(THREADS) weigh(fd_product_rows in, const double *v, double *size, double *square) {
    __shared__ float4 w_tile[TILE_ROWS * TILE_STRIDE / 4];
    __shared__ double2 x_tile[POSITIONS * TILE / 2], v_tile[POSITIONS * TILE / 2];
    const int t = threadIdx.x, lane = t % 8;
    const int64_t row0 = (int64_t)blockIdx.x * TILE_ROWS, pos0 = (int64_t)blockIdx.y * POSITIONS;
    const int64_t whole = in.n_col - in.n_col % 8;
    const float *own_w = (const float *)w_tile + t / 8 * TILE_STRIDE;
    const double *tile_x = (const double *)x_tile, *tile_v = (const double *)v_tile;
    /* what this thread brings of each tile: four elements of two rows, two of a vector */
    const float *from_w[2];
    const int64_t from_x = min(pos0 + t / 32, in.n_pos - 1) * in.stride + t % 32 * 2;
    for (int i = 0; i < 2; i++) from_w[i] = in.w + min(row0 + t / 16 + 16 * i, in.n_row - 1) * in.stride + t % 16 * 4;
    double s[POSITIONS] = {}, q[POSITIONS] = {};
    float4 next_w[2] = {*(const float4 *)from_w[0], *(const float4 *)from_w[1]};
    double2 next_x = *(const double2 *)(in.x + from_x), next_v = *(const double2 *)(v + from_x);
    for (int64_t base = 0; base < in.stride; base += TILE) {
        for (int i = 0; i < 2; i++) w_tile[((t / 16 + 16 * i) * TILE_STRIDE + t % 16 * 4) / 4] = next_w[i];
        x_tile[t] = next_x;
        v_tile[t] = next_v;
        __syncthreads();
        if (base + TILE < in.stride) {
            for (int i = 0; i < 2; i++) next_w[i] = *(const float4 *)(from_w[i] + base + TILE);
            next_x = *(const double2 *)(in.x + from_x + base + TILE);
            next_v = *(const double2 *)(v + from_x + base + TILE);
        }
        /* of what is left after whole eights, lane 0 has all */
        const int64_t end = min(lane == 0 ? in.n_col : whole, base + TILE);
        for (int64_t k = base + lane; k < end; k += k < whole ? 8 : 1) {
            const int at = (int)(k - base);
            const double a = fabs((double)own_w[at]), square_of = __dmul_rn(a, a);
#pragma unroll
            for (int p = 0; p < POSITIONS; p++) {
                s[p] = __dadd_rn(__dmul_rn(a, tile_x[p * TILE + at]), s[p]);
                q[p] = __dadd_rn(__dmul_rn(square_of, tile_v[p * TILE + at]), q[p]);
            }
        }
        __syncthreads();
    }
    const int64_t row = row0 + t / 8;
#pragma unroll
    for (int p = 0; p < POSITIONS; p++) {
        const double of_size = tree<8>(s[p]), of_square = tree<8>(q[p]);
        if (lane != 0 || row >= in.n_row || pos0 + p >= in.n_pos) continue;
        size[(pos0 + p) * in.y_stride + row] = of_size;
        square[(pos0 + p) * in.y_stride + row] = of_square;
    }
}

static dim3 grid_of(const fd_product_rows *in, int64_t rows_of_block) {
    return dim3(fd_blocks(in->n_row, rows_of_block), fd_blocks(in->n_pos, POSITIONS));
}

static fd_code check(const char *name, const fd_product_rows *in, fd_error *err) {
    const bool good = in->n_row > 0 && in->n_pos > 0 && in->n_pos <= POSITIONS * 65535 && in->stride % 64 == 0;
    return good ? FD_OK
                : fd_fail(err, FD_ERR_INPUT, "kernel %s: %lld rows, %lld vectors, %lld elements from row to row", name,
                          (long long)in->n_row, (long long)in->n_pos, (long long)in->stride);
}

fd_code fd_launch_multiply_f64(const fd_launch_context *ctx, const fd_product_rows *in, double *y, fd_error *err) {
    FD_TRY(check("multiply_f64", in, err));
    return fd_launch(ctx, "multiply_f64", multiply_f64, grid_of(in, WARPS * ROWS), THREADS, 0, err, *in, y);
}

fd_code fd_launch_weigh(const fd_launch_context *ctx, const fd_product_rows *in, const double *v, double *size,
                        double *square, fd_error *err) {
    FD_TRY(check("weigh", in, err));
    return fd_launch(ctx, "weigh", weigh, grid_of(in, TILE_ROWS), THREADS, 0, err, *in, v, size, square);
}
