/* products_check MODEL.gguf: replay's products on a CUDA runtime in host memory, whose kernels do nothing: what a device is
 * asked for is given back, and a result that no kernel wrote is noticed. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/products/products.h"
#include "engine/products/products.h"
#include "model/gguf/gguf.h"
#include "reference_cpu/reference.h"
#include "tests/gpu/fake_cuda_runtime.h"

enum { N_POS = 5 };

static int n_failed;

static void expect(bool holds, const char *what, const char *detail) {
    if (holds) return;
    n_failed++;
    printf("%s: %s\n", what, detail);
}

static void expect_given_back(const char *when) {
    char found[120];
    snprintf(found, sizeof found, "%" PRIu64 " bytes, %" PRId64 " allocations, %" PRId64 " pinned", fake.taken,
             fake.n_alloc, fake.n_pinned);
    expect(fake.taken == 0 && fake.n_alloc == 0 && fake.n_pinned == 0, when, found);
}

static const fd_node *first_product(const fd_graph *graph) {
    for (int32_t i = 0; i < graph->n_node; i++)
        if (graph->nodes[i].op == FD_OP_MATMUL) return &graph->nodes[i];
    return NULL;
}

/* Kernels that do nothing leave other numbers than the CPU's. */
static void check_noticed(const fd_products *gpu, const fd_graph *graph, const fd_node *node) {
    const fd_weight *weight = &graph->weights[node->weight[0]];
    const fd_product product = {.weight = weight, .n_row = weight->n_row, .n_pos = N_POS};
    size_t n_in = (size_t)(N_POS * weight->n_col), n_out = (size_t)(N_POS * weight->n_row);
    double *x = malloc(sizeof *x * n_in), *y = malloc(2 * sizeof *y * n_out);
    float *x32 = malloc(sizeof *x32 * n_in);
    fd_op_args args = {.graph = graph, .node = node, .n_pos = N_POS, .n_kv = N_POS, .weight[0] = weight, .out = y};
    for (size_t i = 0; i < n_in; i++) x[i] = (double)(x32[i] = 1.0f + 0.25f * (float)(i % 7));
    for (int what = 0; what < 3; what++) {
        fd_error err = {0};
        int64_t before = fake.n_launch;
        args.in[0] = what == 0 ? (const void *)x : x32;
        fd_code code = what < 2 ? fd_products_multiply(gpu, fd_reference_op, what ? FD_NUMERICS_EXACT : FD_NUMERICS_F64,
                                                       &args, &err)
                                : fd_products_weigh(gpu, NULL, &product, x, x, y, y + n_out, &err);
        expect(fake.n_launch > before, "a product", "no kernel was launched");
        expect(code == FD_ERR_DEVICE && strstr(err.message, weight->name), "a device that computes nothing",
               err.message);
    }
    free(x);
    free(y);
    free(x32);
}

static void check_taken(const fd_products *gpu, const fd_weight *weight) {
    fd_weight other = *weight;
    fd_product product = {.weight = weight, .n_row = weight->n_row, .n_pos = 64};
    expect(gpu->takes(gpu->user, &product), "64 positions", "not taken");
    product.n_pos = product.n_row = 1;
    expect(!gpu->takes(gpu->user, &product), "one row", "taken");
    other.data = (const char *)weight->data + 1;
    product = (fd_product){.weight = &other, .n_row = weight->n_row, .n_pos = 64};
    expect(!gpu->takes(gpu->user, &product), "other bytes than the graph's", "taken");
}

/* Each allocation refused in turn. */
static void check_refusals(const fd_graph *graph) {
    for (int refused = 1;; refused++) {
        fd_products *gpu;
        fd_error err = {0};
        fake.fail_alloc = refused;
        fd_code code = fd_engine_products_new(graph, &gpu, &err);
        bool was_refused = fake.fail_alloc == 0;
        fake.fail_alloc = 0;
        if (!was_refused) {
            expect(code == FD_OK && refused > 1, "nothing refused", err.message);
            fd_engine_products_free(gpu);
            return;
        }
        expect(code == FD_ERR_MEMORY && !gpu, "refused memory", err.message);
        expect_given_back("after a refusal");
    }
}

int main(int argc, char **argv) {
    fd_gguf *gguf;
    fd_graph *graph;
    fd_products *gpu;
    fd_error err = {0};
    if (argc != 2 || fd_gguf_open(argv[1], &gguf, &err) != FD_OK || fd_graph_build(gguf, &graph, NULL, &err) != FD_OK) {
        printf("products_check MODEL.gguf: %s\n", err.message);
        return 2;
    }
    fake.free_bytes = (uint64_t)1 << 32;
    const fd_node *node = first_product(graph);
    if (fd_engine_products_new(graph, &gpu, &err) != FD_OK) {
        printf("%s\n", err.message);
        return 2;
    }
    check_noticed(gpu, graph, node);
    check_taken(gpu, &graph->weights[node->weight[0]]);
    fd_engine_products_free(gpu);
    expect_given_back("at the end");
    check_refusals(graph);
    fake.free_bytes = 1 << 16;
    expect(fd_engine_products_new(graph, &gpu, &err) == FD_ERR_MEMORY && strstr(err.message, "the weights"),
           "a model larger than the device", err.message);
    expect_given_back("of a model too large");
    fd_graph_free(graph);
    fd_gguf_close(gguf);
    return n_failed != 0;
}
