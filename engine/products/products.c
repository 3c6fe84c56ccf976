#include "engine/products/products.h"

#include <pthread.h>
#include <stdlib.h>

#include "engine/devices.h"
#include "engine/products/kernels.h"
#include "engine/weights.h"
#include "kernels/matmul/matmul.h"

enum {
    LEAST_WORK = 1 << 18,    /* multiplications: below, a CPU is through before vectors and results have been copied */
    MOST_ELEMENTS = 1 << 26, /* of a weight in binary32 at once: 256 MiB */
};

typedef struct gpu_products {
    fd_products interface; /* first: fd_products * is gpu_products * */
    const fd_graph *graph;
    fd_launch_context ctx;
    fd_device_weights weights;
    fd_block rows;             /* of a weight, in binary32 */
    fd_block vectors, results; /* of one product */
    pthread_mutex_t lock;      /* one product at a time has these */
} gpu_products;

/* The weight in device memory; NULL: it is not there. */
static const fd_device_matrix *matrix_of(const gpu_products *g, const fd_weight *weight) {
    for (int32_t i = 0; i < g->graph->n_weight; i++) {
        const fd_weight *w = &g->graph->weights[i];
        bool same = w->data == weight->data && w->dtype == weight->dtype && w->n_row == weight->n_row &&
                    w->n_col == weight->n_col;
        if (same && g->weights.matrix[i].data) return &g->weights.matrix[i];
    }
    return NULL;
}

static bool takes(void *user, const fd_product *p) {
    return p->n_row * p->weight->n_col * p->n_pos >= LEAST_WORK && matrix_of(user, p->weight);
}

/* Rows [first, first + n) of a matrix. */
static fd_device_matrix rows_of(const fd_device_matrix *matrix, int64_t first, int64_t n) {
    fd_device_matrix rows = *matrix;
    rows.data = (const char *)rows.data + first * rows.row_bytes;
    rows.n_row = n;
    return rows;
}

static fd_code upload(const gpu_products *g, const void *from, size_t size, void *to, fd_error *err) {
    return fd_cuda_check(cudaMemcpyAsync(to, from, size, cudaMemcpyHostToDevice, g->ctx.stream), "upload of vectors",
                         err);
}

/* n_pos vectors of n_col elements, zeros after each up to `stride`. */
static fd_code upload_padded(const gpu_products *g, const double *from, int64_t n_pos, int64_t n_col, int64_t stride,
                             double *to, fd_error *err) {
    size_t row = sizeof *from * (size_t)n_col, all = sizeof *from * (size_t)(n_pos * stride);
    if (n_col == stride) return upload(g, from, all, to, err);
    FD_TRY(fd_cuda_check(cudaMemsetAsync(to, 0, all, g->ctx.stream), "upload of vectors", err));
    for (int64_t pos = 0; pos < n_pos; pos++) FD_TRY(upload(g, from + pos * n_col, row, to + pos * stride, err));
    return FD_OK;
}

/* `n` elements of `size` bytes, when all before is done. */
static fd_code download(const gpu_products *g, const void *from, int64_t n, size_t size, void *to, fd_error *err) {
    FD_TRY(fd_cuda_check(cudaMemcpyAsync(to, from, (size_t)n * size, cudaMemcpyDeviceToHost, g->ctx.stream),
                         "download of products", err));
    return fd_cuda_check(cudaStreamSynchronize(g->ctx.stream), "products", err);
}

static fd_code multiply_exact(gpu_products *g, const fd_product *p, const float *x, float *y, fd_error *err) {
    const fd_device_matrix rows = rows_of(matrix_of(g, p->weight), p->first_row, p->n_row);
    size_t in = sizeof *x * (size_t)(p->n_pos * rows.n_col), out = sizeof *y * (size_t)(p->n_pos * rows.n_row);
    FD_TRY(fd_device_reserve(&g->vectors, in, "vectors", err));
    FD_TRY(fd_device_reserve(&g->results, out, "products", err));
    FD_TRY(upload(g, x, in, g->vectors.data, err));
    fd_matmul product = fd_matmul_of(&rows, NULL, g->vectors.data, (int32_t)p->n_pos, g->results.data);
    FD_TRY(fd_launch_matmul(&g->ctx, &product, err));
    return download(g, g->results.data, p->n_pos * p->n_row, sizeof *y, y, err);
}

/* In binary64, some rows after the other: y of x alone, or with `v` sizes and squares. */
static fd_code sum_f64(gpu_products *g, const fd_product *p, const double *x, const double *v, double *first,
                       double *second, fd_error *err) {
    const fd_device_matrix *matrix = matrix_of(g, p->weight);
    const int64_t stride = fd_f32_row_stride(matrix), n_in = p->n_pos * stride, n_out = p->n_pos * p->n_row;
    const int64_t fit = MOST_ELEMENTS / stride, most = fit < 1 ? 1 : fit < p->n_row ? fit : p->n_row;
    FD_TRY(fd_device_reserve(&g->rows, sizeof(float) * (size_t)(most * stride), "rows of weights", err));
    FD_TRY(fd_device_reserve(&g->vectors, sizeof *x * (size_t)(2 * n_in), "vectors", err));
    FD_TRY(fd_device_reserve(&g->results, sizeof *x * (size_t)(2 * n_out), "products", err));
    double *own_x = g->vectors.data, *own_v = own_x + n_in, *out = g->results.data;
    FD_TRY(upload_padded(g, x, p->n_pos, matrix->n_col, stride, own_x, err));
    if (v) FD_TRY(upload_padded(g, v, p->n_pos, matrix->n_col, stride, own_v, err));
    for (int64_t row = 0; row < p->n_row; row += most) {
        const fd_device_matrix rows =
            rows_of(matrix, p->first_row + row, p->n_row - row < most ? p->n_row - row : most);
        const fd_product_rows in = {.w = g->rows.data,
                                    .x = own_x,
                                    .n_row = rows.n_row,
                                    .n_col = rows.n_col,
                                    .stride = stride,
                                    .n_pos = p->n_pos,
                                    .y_stride = p->n_row};
        FD_TRY(fd_launch_dequantise_f32(&g->ctx, &rows, g->rows.data, err));
        FD_TRY(v ? fd_launch_weigh(&g->ctx, &in, own_v, out + row, out + n_out + row, err)
                 : fd_launch_multiply_f64(&g->ctx, &in, out + row, err));
    }
    FD_TRY(download(g, out, n_out, sizeof *first, first, err));
    return v ? download(g, out + n_out, n_out, sizeof *second, second, err) : FD_OK;
}

static fd_code multiply(void *user, fd_numerics numerics, const fd_product *p, const void *x, void *y, fd_error *err) {
    gpu_products *g = user;
    pthread_mutex_lock(&g->lock);
    fd_code code = fd_cuda_check(cudaSetDevice(0), "device", err);
    if (code == FD_OK)
        code = numerics == FD_NUMERICS_F64 ? sum_f64(g, p, x, NULL, y, NULL, err) : multiply_exact(g, p, x, y, err);
    pthread_mutex_unlock(&g->lock);
    return code;
}

static fd_code weigh(void *user, const fd_product *p, const double *x, const double *v, double *size, double *square,
                     fd_error *err) {
    gpu_products *g = user;
    pthread_mutex_lock(&g->lock);
    fd_code code = fd_cuda_check(cudaSetDevice(0), "device", err);
    if (code == FD_OK) code = sum_f64(g, p, x, v, size, square, err);
    pthread_mutex_unlock(&g->lock);
    return code;
}

static fd_code open_device(gpu_products *g, fd_error *err) {
    const int32_t device = 0;
    struct cudaDeviceProp prop;
    FD_TRY(fd_devices_check(&device, 1, err));
    FD_TRY(fd_cuda_check(cudaSetDevice(device), "device", err));
    FD_TRY(fd_cuda_check(cudaGetDeviceProperties(&prop, device), "device", err));
    g->ctx = (fd_launch_context){
        .n_sm = prop.multiProcessorCount, .max_shared = prop.sharedMemPerBlockOptin, .has_clusters = prop.major >= 9};
    FD_TRY(fd_cuda_check(cudaStreamCreateWithFlags(&g->ctx.stream, cudaStreamNonBlocking), "stream", err));
    return fd_weights_upload(g->graph, NULL, device, g->ctx.stream, &g->weights, err);
}

fd_code fd_engine_products_new(const fd_graph *graph, fd_products **out, fd_error *err) {
    gpu_products *g = calloc(1, sizeof *g);
    *out = NULL;
    if (!g) return fd_fail(err, FD_ERR_MEMORY, "products: out of memory");
    g->interface = (fd_products){.takes = takes, .multiply = multiply, .weigh = weigh, .user = g};
    g->graph = graph;
    pthread_mutex_init(&g->lock, NULL);
    fd_code code = open_device(g, err);
    if (code == FD_OK)
        *out = &g->interface;
    else
        fd_engine_products_free(&g->interface);
    return code;
}

void fd_engine_products_free(fd_products *products) {
    gpu_products *g = (gpu_products *)products;
    if (!g) return;
    (void)cudaSetDevice(0);
    if (g->ctx.stream) (void)cudaStreamDestroy(g->ctx.stream);
    fd_weights_free(&g->weights);
    fd_device_free(&g->rows);
    fd_device_free(&g->vectors);
    fd_device_free(&g->results);
    pthread_mutex_destroy(&g->lock);
    free(g);
}
