/* Products of replay: the device's against the CPU's, every row. */
#include <stdio.h>
#include <string.h>

#include "compare/products/products.h"
#include "engine/products/products.h"
#include "reference_cpu/reference.h"
#include "tests/gpu/kernel_check.h"

static const struct {
    int64_t n_row, n_col, n_pos;
} shapes[] = {{1, 256, 1}, {37, 512, 9}, {300, 1024, 20}, {18, 301, 3}, {41, 288, 2}};

/* A graph of one product. */
typedef struct one_product {
    fd_graph graph;
    fd_node nodes[2]; /* what it reads, and itself */
    fd_weight weight;
} one_product;

static void make_graph(one_product *one, uint32_t dtype, int64_t n_row, int64_t n_col, const void *data) {
    *one = (one_product){.weight = {.dtype = dtype, .n_row = n_row, .n_col = n_col, .data = data}};
    snprintf(one->weight.name, sizeof one->weight.name, "%s [%lld, %lld]", fd_dtype_get(dtype)->name, (long long)n_row,
             (long long)n_col);
    one->nodes[0] = (fd_node){.n_dim = 1, .shape = {(int32_t)n_col}, .input = {-1, -1}, .weight = {-1, -1}};
    one->nodes[1] = (fd_node){
        .id = 1, .op = FD_OP_MATMUL, .n_dim = 1, .shape = {(int32_t)n_row}, .input = {0, -1}, .weight = {0, -1}};
    one->graph = (fd_graph){.nodes = one->nodes, .n_node = 2, .weights = &one->weight, .n_weight = 1};
}

static void expect_bits(gpu_test *test, const char *what, const fd_weight *weight, const void *cpu, const void *device,
                        size_t bytes) {
    char name[200];
    snprintf(name, sizeof name, "products, %s, %s", what, weight->name);
    gpu_expect(test, name, memcmp(cpu, device, bytes) == 0);
}

static void check_one(gpu_test *test, uint32_t dtype, int64_t n_row, int64_t n_col, int64_t n_pos) {
    float *unused;
    one_product one;
    fd_products *gpu;
    fd_error err = {0};
    make_graph(&one, dtype, n_row, n_col, gpu_random_weight(test, dtype, n_row, n_col, &unused));
    const fd_product product = {.weight = &one.weight, .n_row = n_row, .n_pos = n_pos};
    size_t n_in = (size_t)(n_pos * n_col), n_out = (size_t)(n_pos * n_row);
    float *x32 = gpu_host(test, sizeof *x32 * n_in), *y32[2];
    double *x = gpu_host(test, sizeof *x * n_in), *v = gpu_host(test, sizeof *v * n_in), *y[2], *size[2], *square[2];
    for (int i = 0; i < 2; i++) {
        y32[i] = gpu_host(test, sizeof *x32 * n_out);
        y[i] = gpu_host(test, sizeof *x * n_out);
        size[i] = gpu_host(test, sizeof *x * n_out);
        square[i] = gpu_host(test, sizeof *x * n_out);
    }
    gpu_fill(test, x32, n_in);
    for (size_t i = 0; i < n_in; i++) {
        x[i] = (double)x32[i] * (1 + 1e-10 * (double)i);
        v[i] = x[i] * x[i] * 0x1p-22;
    }
    fd_op_args args = {.graph = &one.graph,
                       .node = &one.nodes[1],
                       .n_pos = (int32_t)n_pos,
                       .n_kv = (int32_t)n_pos,
                       .weight[0] = &one.weight};
    args.in[0] = x32, args.out = y32[0];
    fd_reference_op(FD_NUMERICS_EXACT, &args);
    args.in[0] = x, args.out = y[0];
    fd_reference_op(FD_NUMERICS_F64, &args);
    gpu_must(fd_products_weigh(NULL, NULL, &product, x, v, size[0], square[0], &err), &err);
    gpu_must(fd_engine_products_new(&one.graph, &gpu, &err), &err);
    gpu_must(gpu->multiply(gpu->user, FD_NUMERICS_EXACT, &product, x32, y32[1], &err), &err);
    gpu_must(gpu->multiply(gpu->user, FD_NUMERICS_F64, &product, x, y[1], &err), &err);
    gpu_must(gpu->weigh(gpu->user, &product, x, v, size[1], square[1], &err), &err);
    expect_bits(test, "exact", &one.weight, y32[0], y32[1], sizeof *x32 * n_out);
    expect_bits(test, "binary64", &one.weight, y[0], y[1], sizeof *x * n_out);
    expect_bits(test, "sizes", &one.weight, size[0], size[1], sizeof *x * n_out);
    expect_bits(test, "squares", &one.weight, square[0], square[1], sizeof *x * n_out);
    fd_engine_products_free(gpu);
    gpu_release(test);
}

void check_replay_products(gpu_test *test) {
    for (int t = 0; t < GPU_WEIGHT_TYPES; t++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            if (shapes[s].n_col % fd_dtype_get(gpu_weight_types[t])->block_elements == 0)
                check_one(test, gpu_weight_types[t], shapes[s].n_row, shapes[s].n_col, shapes[s].n_pos);
}
