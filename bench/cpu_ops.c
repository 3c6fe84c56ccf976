/* cpu_ops: one thread, one op at a time: how fast each instruction set's version runs. Matrix products in every format,
 * at one position (bound by memory: GB/s of weights) and at 64 (bound by arithmetic: GFLOP/s); then the attention ops.
 * Each figure is the best of several rounds in which the versions take turns. */
#include <argp.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/measure.h"
#include "model/gguf/quant.h"
#include "reference_cpu/ops.h"

typedef struct bench {
    fd_graph graph;
    fd_node nodes[3]; /* inputs 0 and 1, the op 2 */
    fd_weight weight;
    fd_op_args args;
} bench;

static void *must(void *block) {
    if (block) return block;
    fprintf(stderr, "cpu_ops: out of memory\n");
    exit(2);
}

static float *values(int64_t n) {
    float *x = must(aligned_alloc(64, (sizeof *x * (size_t)n + 63) / 64 * 64)); /* as the executor's buffers */
    for (int64_t i = 0; i < n; i++) x[i] = (float)((uint32_t)i * 2654435761u >> 16) * 0x1p-16f - 0.5f;
    return x;
}

static void *quantised(uint32_t dtype, int64_t n_row, int64_t n_col) {
    int64_t row_bytes = fd_dtype_row_bytes(dtype, n_col);
    size_t bytes = (size_t)(n_row * row_bytes);
    char *data = must(aligned_alloc(64, (bytes + 127) / 64 * 64));
    memset(data, 0, bytes + 32); /* formats without an encoder: zeros run as fast */
    data += 32;                  /* as a GGUF aligns it */
    float *row = values(n_col);
    for (int64_t r = 0; fd_can_quantize(dtype) && r < n_row; r++)
        fd_quantize_row(dtype, row, data + r * row_bytes, n_col);
    free(row);
    return data;
}

static void start(bench *b, fd_op op, int32_t pos0, int32_t n_pos) {
    memset(b, 0, sizeof *b);
    b->graph = (fd_graph){.nodes = b->nodes, .n_node = 3, .weights = &b->weight, .n_weight = 1};
    b->nodes[2] = (fd_node){.id = 2, .op = op, .input = {0, 1}, .weight = {-1, -1}, .n_dim = 1, .scale = 0.125f};
    b->args =
        (fd_op_args){.graph = &b->graph, .node = &b->nodes[2], .pos0 = pos0, .n_pos = n_pos, .n_kv = pos0 + n_pos};
}

/* Best seconds of each version; 0 for one that this machine lacks. */
static void measure(bench *b, int n_round, double seconds[FD_ISA_COUNT]) {
    int64_t items = fd_ref_cost_of(&b->args).items;
    for (int isa = 0; isa < FD_ISA_COUNT; isa++) seconds[isa] = isa <= (int)fd_isa_best() ? INFINITY : 0;
    for (int round = 0; round < n_round; round++)
        for (int isa = FD_ISA_V3; isa <= (int)fd_isa_best(); isa++) {
            fd_ref_ops ops = fd_ref_select(FD_NUMERICS_EXACT, (fd_isa)isa, false);
            double began = now();
            ops.run[b->args.node->op](&b->args, 0, items);
            seconds[isa] = fmin(seconds[isa], now() - began);
        }
}

static void print(const char *what, const char *unit, double work, const double seconds[FD_ISA_COUNT]) {
    printf("%-34s %-8s", what, unit);
    for (int isa = FD_ISA_V3; isa <= (int)fd_isa_best(); isa++) printf(" %8.1f", work / seconds[isa] * 1e-9);
    printf("\n");
}

static void matmul(uint32_t dtype, int32_t n_row, int32_t n_col, int32_t n_pos, int n_round) {
    bench b;
    char what[64];
    double seconds[FD_ISA_COUNT];
    start(&b, FD_OP_MATMUL, 0, n_pos);
    b.weight = (fd_weight){.dtype = dtype, .n_row = n_row, .n_col = n_col, .data = quantised(dtype, n_row, n_col)};
    b.nodes[2].shape[0] = n_row;
    b.args.weight[0] = &b.weight;
    float *x = values((int64_t)n_col * n_pos), *y = values((int64_t)n_row * n_pos);
    b.args.in[0] = x;
    b.args.out = y;
    measure(&b, n_round, seconds);
    snprintf(what, sizeof what, "matmul %s %dx%d, %d pos", fd_dtype_get(dtype)->name, n_row, n_col, n_pos);
    if (n_pos == 1)
        print(what, "GB/s", (double)n_row * (double)fd_dtype_row_bytes(dtype, n_col), seconds);
    else
        print(what, "GFLOP/s", 2.0 * n_row * n_col * n_pos, seconds);
    free(x);
    free(y);
    free((char *)(uintptr_t)b.weight.data - 32);
}

static void attention(fd_op op, int32_t n_head, int32_t n_head_kv, int32_t head_dim, int32_t n_pos, int n_round) {
    bench b;
    char what[64];
    double seconds[FD_ISA_COUNT];
    start(&b, op, 0, n_pos);
    int64_t rows = (int64_t)n_head * n_pos, wide = rows * (n_pos > head_dim ? n_pos : head_dim);
    b.nodes[0].shape[0] = n_head;
    b.nodes[0].shape[1] = head_dim;
    b.nodes[1].shape[0] = n_head_kv;
    b.nodes[2].shape[0] = n_head;
    b.nodes[2].shape[1] = head_dim;
    float *x = values(wide), *cache = values((int64_t)n_pos * n_head_kv * head_dim), *y = values(wide);
    b.args.in[0] = x;
    b.args.in[1] = cache;
    b.args.out = y;
    measure(&b, n_round, seconds);
    snprintf(what, sizeof what, "%s %d/%d heads of %d, %d pos", fd_op_name(op), n_head, n_head_kv, head_dim, n_pos);
    double pairs = 0.5 * (double)rows * (n_pos + 1);
    if (op == FD_OP_ATTN_SOFTMAX)
        print(what, "Gexp/s", pairs, seconds);
    else
        print(what, "GFLOP/s", 2.0 * pairs * head_dim, seconds);
    free(x);
    free(y);
    free(cache);
}

static error_t parse(int key, char *arg, struct argp_state *state) {
    if (key != 'r') return ARGP_ERR_UNKNOWN;
    *(int *)state->input = atoi(arg);
    if (*(int *)state->input < 1) argp_error(state, "\"%s\": expected a number from 1", arg);
    return 0;
}

int main(int argc, char **argv) {
    static const struct argp_option list[] = {{"rounds", 'r', "N", 0, "rounds, of which the best is shown (9)", 0},
                                              {0}};
    static const struct argp argp = {list, parse, NULL, "Speed of the CPU reference's ops, one thread.", 0, 0, 0};
    static const uint32_t types[] = {FD_F32, FD_F16, FD_BF16, FD_Q8_0, FD_Q4_0, FD_Q4_K, FD_Q6_K};
    int n_round = 9;
    argp_parse(&argp, argc, argv, 0, 0, &n_round);
    printf("%-34s %-8s", "best of the rounds", "");
    for (int isa = FD_ISA_V3; isa <= (int)fd_isa_best(); isa++) printf(" %8s", fd_isa_name((fd_isa)isa));
    printf("\n");
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) matmul(types[t], 16384, 2048, 1, n_round);
    matmul(FD_F32, 768, 256, 1, 8 * n_round); /* in the caches */
    matmul(FD_F32, 32000, 288, 1, n_round);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) matmul(types[t], 1024, 2048, 64, n_round);
    matmul(FD_F32, 768, 288, 64, n_round);
    matmul(FD_F32, 512, 5632, 64, n_round);
    attention(FD_OP_ATTN_SCORES, 32, 4, 64, 128, n_round);
    attention(FD_OP_ATTN_SOFTMAX, 32, 4, 64, 128, n_round);
    attention(FD_OP_ATTN_MIX, 32, 4, 64, 128, n_round);
    return 0;
}
