#include "fixture.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dumpers/store/weights.h"
#include "tests/scratch.h"

const fixture_size fixture_small = {2, 15, 3, 1, 22, 37};

typedef struct plan {
    const char *name;
    fd_op op;
    const char *input[2];
} plan;

static const plan in_layer[] = {
    {"attn_norm", FD_OP_RMS_NORM, {"", NULL}},
    {"attn_q", FD_OP_MATMUL, {"attn_norm", NULL}},
    {"attn_k", FD_OP_MATMUL, {"attn_norm", NULL}},
    {"attn_v", FD_OP_MATMUL, {"attn_norm", NULL}},
    {"attn_q_rope", FD_OP_ROPE, {"attn_q", NULL}},
    {"attn_k_rope", FD_OP_ROPE, {"attn_k", NULL}},
    {"cache_k", FD_OP_KV_WRITE, {"attn_k_rope", NULL}},
    {"cache_v", FD_OP_KV_WRITE, {"attn_v", NULL}},
    {"attn_scores", FD_OP_ATTN_SCORES, {"attn_q_rope", "cache_k"}},
    {"attn_weights", FD_OP_ATTN_SOFTMAX, {"attn_scores", NULL}},
    {"attn_out", FD_OP_ATTN_MIX, {"attn_weights", "cache_v"}},
    {"attn_proj", FD_OP_MATMUL, {"attn_out", NULL}},
    {"ffn_inp", FD_OP_ADD, {"", "attn_proj"}},
    {"ffn_norm", FD_OP_RMS_NORM, {"ffn_inp", NULL}},
    {"ffn_gate", FD_OP_MATMUL, {"ffn_norm", NULL}},
    {"ffn_up", FD_OP_MATMUL, {"ffn_norm", NULL}},
    {"ffn_act", FD_OP_SILU_MUL, {"ffn_gate", "ffn_up"}},
    {"ffn_down", FD_OP_MATMUL, {"ffn_act", NULL}},
    {"l_out", FD_OP_ADD, {"ffn_inp", "ffn_down"}},
};
enum { N_IN_LAYER = sizeof in_layer / sizeof *in_layer };

static fd_node *add(fd_graph *graph, fd_op op, int32_t layer, const char *name) {
    fd_node *node = &graph->nodes[graph->n_node];
    *node =
        (fd_node){.id = graph->n_node++, .op = op, .layer = layer, .input = {-1, -1}, .weight = {-1, -1}, .n_dim = 1};
    if (layer >= 0)
        snprintf(node->name, sizeof node->name, "blk.%d.%s", layer, name);
    else
        snprintf(node->name, sizeof node->name, "%s", name);
    return node;
}

static void shape_of(const fd_graph *graph, fd_node *node, const char *name) {
    const fd_hparams *h = &graph->hparams;
    bool q = !strncmp(name, "attn_q", 6) || !strcmp(name, "attn_out");
    bool kv = !strncmp(name, "attn_k", 6) || !strcmp(name, "attn_v") || !strncmp(name, "cache_", 6);
    node->over_kv = node->op == FD_OP_ATTN_SCORES || node->op == FD_OP_ATTN_SOFTMAX;
    node->n_dim = q || kv || node->over_kv ? 2 : 1;
    node->shape[0] = q || node->over_kv ? h->n_head : kv ? h->n_head_kv : h->n_embd;
    if (!strncmp(name, "ffn_gate", 8) || !strncmp(name, "ffn_up", 6) || !strncmp(name, "ffn_act", 7))
        node->shape[0] = h->n_ff;
    if (!strcmp(name, "logits")) node->shape[0] = h->n_vocab;
    node->shape[1] = node->n_dim == 2 && !node->over_kv ? h->head_dim : 0;
    node->eps = node->op == FD_OP_RMS_NORM ? 1e-5f : 0.0f;
    node->scale = node->op == FD_OP_ATTN_SCORES ? 0.5f : 0.0f;
    if (node->op == FD_OP_ROPE)
        node->rope = (fd_rope){FD_ROPE_HALF, h->head_dim & ~1, 10000.0, FD_ROPE_SCALING_NONE, 1, 0, 0, 0};
}

fd_graph *fixture_graph(fixture_size size) {
    fd_graph *graph = calloc(1, sizeof *graph);
    graph->nodes = calloc((size_t)(size.n_layer * N_IN_LAYER + 3), sizeof *graph->nodes);
    graph->hparams = (fd_hparams){.arch = "llama",
                                  .n_layer = size.n_layer,
                                  .n_embd = size.n_embd,
                                  .n_ff = size.n_ff,
                                  .n_vocab = size.n_vocab,
                                  .n_head = size.n_head,
                                  .n_head_kv = size.n_head_kv,
                                  .head_dim = size.n_embd / size.n_head,
                                  .rms_eps = 1e-5f};
    shape_of(graph, add(graph, FD_OP_EMBED, -1, "token_embd"), "token_embd");
    for (int32_t layer = 0; layer < size.n_layer; layer++) {
        int32_t x = graph->n_node - 1, base = graph->n_node;
        for (int i = 0; i < N_IN_LAYER; i++) {
            fd_node *node = add(graph, in_layer[i].op, layer, in_layer[i].name);
            shape_of(graph, node, in_layer[i].name);
            for (int k = 0; k < 2; k++)
                for (int j = 0; in_layer[i].input[k] && j < N_IN_LAYER; j++)
                    if (!in_layer[i].input[k][0])
                        node->input[k] = x;
                    else if (!strcmp(in_layer[j].name, in_layer[i].input[k]))
                        node->input[k] = base + j;
        }
    }
    shape_of(graph, add(graph, FD_OP_RMS_NORM, -1, "output_norm"), "output_norm");
    graph->nodes[graph->n_node - 1].input[0] = graph->n_node - 2;
    shape_of(graph, add(graph, FD_OP_MATMUL, -1, "logits"), "logits");
    graph->nodes[graph->n_node - 1].input[0] = graph->n_node - 2;
    return graph;
}

fd_trace_info fixture_info(void) {
    return (fd_trace_info){.producer = "fixture 1",
                           .numerics = "exact",
                           .contract = 1,
                           .backend = "cpu",
                           .device = "none",
                           .build = "test",
                           .model_name = "fabricated",
                           .arch = "llama",
                           .kv_type = "f32",
                           .fusion = "none",
                           .prompt = "Grüße, \"world\"\n",
                           .tokenizer = "spm"};
}

int32_t fixture_token(int32_t pos) {
    return pos >= 20 ? 5 + (pos - 20) % 3 : (pos * 7 + 3) % 31;
}

/* In [-1, 1), 24 bits. */
static double noise(int32_t node, int32_t pos, int64_t i) {
    uint64_t x = fd_mix64(((uint64_t)node << 40) ^ ((uint64_t)pos << 24) ^ (uint64_t)i ^ 0x9e3779b97f4a7c15u);
    return (double)(int64_t)(x >> 40) / 8388608.0 - 1.0;
}

double fixture_value(const fd_graph *graph, const fd_node *node, int32_t pos, int64_t i) {
    if (node->op == FD_OP_ATTN_SOFTMAX) return i % (pos + 1) == 0 ? 1.0 - pos / 65536.0 : 1.0 / 65536.0;
    if (node->id == graph->n_node - 1) return floor(noise(node->id, pos, i) * 8.0) / 4.0; /* logits with ties */
    if (i % 11 == 5) return i % 2 ? 0.0 : -0.0;
    return noise(node->id, pos, i) * (pos % 3 ? 1.0 : 1024.0);
}

static void store(void *out, fd_numerics numerics, int64_t at, double value) {
    if (numerics == FD_NUMERICS_F64)
        ((double *)out)[at] = value;
    else
        ((float *)out)[at] = (float)value;
}

fd_code fixture_show(fd_observer observer, const fd_graph *graph, fd_numerics numerics, int32_t pos0, int32_t n,
                     fd_error *err) {
    int32_t n_kv = pos0 + n;
    fd_code code = FD_OK;
    for (int32_t id = 0; code == FD_OK && id < graph->n_node; id++) {
        const fd_node *node = &graph->nodes[id];
        if (observer.wants && !observer.wants(observer.user, node)) continue;
        int64_t stride = fd_node_row_stride(node, n_kv);
        void *rows = malloc((size_t)(stride * n) * 8);
        for (int32_t r = 0; r < n; r++) {
            int32_t pos = pos0 + r;
            int64_t wide = node->over_kv ? n_kv : stride;
            for (int64_t k = 0; k < stride; k++) {
                int64_t head = k / wide, at = k % wide;
                double pad = node->op == FD_OP_ATTN_SCORES ? -INFINITY : 0.0;
                bool padding = node->over_kv && at > pos;
                int64_t i = node->over_kv ? head * (pos + 1) + at : k;
                store(rows, numerics, r * stride + k, padding ? pad : fixture_value(graph, node, pos, i));
            }
        }
        fd_observation o = {graph, node, 0, pos0, n, stride, numerics == FD_NUMERICS_F64 ? FD_F64 : FD_F32, rows};
        code = observer.observe(observer.user, &o, err);
        free(rows);
    }
    return code;
}

fd_code fixture_step(fd_trace_writer *writer, const fd_graph *graph, fd_numerics numerics, fd_step_kind kind,
                     int32_t pos0, int32_t n, fd_error *err) {
    int32_t tokens[512];
    cr_assert(n <= 512);
    for (int32_t i = 0; i < n; i++) tokens[i] = fixture_token(pos0 + i);
    FD_TRY(fd_trace_begin_step(writer, kind, tokens, n, pos0, err));
    FD_TRY(fixture_show(fd_trace_observer(writer), graph, numerics, pos0, n, err));
    return fd_trace_end_step(writer, err);
}

void fixture_write(const fd_trace_options *options, const fd_graph *graph, fd_numerics numerics, int32_t n_prefill,
                   int32_t n_decode) {
    fd_error err = {0};
    fd_trace_writer *writer;
    fd_trace_info info = fixture_info();
    cr_assert_eq(fd_trace_create(options, &info, graph, numerics, &writer, &err), FD_OK, "%s", err.message);
    cr_assert_eq(fixture_step(writer, graph, numerics, FD_STEP_PREFILL, 0, n_prefill, &err), FD_OK, "%s", err.message);
    for (int32_t i = 0; i < n_decode; i++)
        cr_assert_eq(fixture_step(writer, graph, numerics, FD_STEP_DECODE, n_prefill + i, 1, &err), FD_OK, "%s",
                     err.message);
    cr_assert_eq(fd_trace_finish(writer, &err), FD_OK, "%s", err.message);
}

static char directory[SCRATCH_PATH];
static pid_t owner;

static void remove_directory(void) {
    if (getpid() != owner) return; /* a forked child leaves its parent's files alone */
    DIR *dir = opendir(directory);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        unlink(path);
    }
    if (dir) closedir(dir);
    rmdir(directory);
}

const char *fixture_path(const char *name) {
    static char paths[4][128];
    static int next;
    if (!directory[0]) {
        cr_assert(mkdtemp(scratch_path(directory, "fd_test_trace_XXXXXX")) != NULL);
        owner = getpid();
        atexit(remove_directory);
    }
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", directory, name);
    return path;
}

fd_trace *fixture_open(const char *path) {
    fd_error err = {0};
    fd_trace *trace = NULL;
    cr_assert_eq(fd_trace_open(path, &trace, &err), FD_OK, "%s", err.message);
    return trace;
}

void fixture_check_tensor(const fd_trace *trace, const fd_graph *graph, const char *name, int32_t pos) {
    fd_error err = {0};
    int32_t at = fd_trace_find(trace, name), id = fd_graph_find(graph, name);
    cr_assert(at >= 0 && id >= 0, "%s", name);
    const fd_node *node = &graph->nodes[id];
    int64_t n = fd_trace_elements(fd_trace_node_at(trace, at), pos);
    cr_assert_eq(n, fd_node_elements(node, pos + 1));
    double *values = malloc((size_t)n * sizeof *values);
    cr_assert_eq(fd_trace_read(trace, at, pos, NULL, values, &err), FD_OK, "%s", err.message);
    bool narrow = fd_trace_node_at(trace, at)->dtype != FD_F64;
    for (int64_t i = 0; i < n; i++) {
        double expected = fixture_value(graph, node, pos, i);
        if (narrow) expected = (double)(float)expected;
        cr_assert_eq(fd_bits64(values[i]), fd_bits64(expected), "%s position %d element %lld: %g, expected %g", name,
                     pos, (long long)i, values[i], expected);
    }
    free(values);
}

void fixture_check_weight(const char *path, const char *name, uint32_t dtype, const void *rows, int64_t n_row,
                          int64_t n_col) {
    fd_weight weight = {.dtype = dtype, .n_row = n_row, .n_col = n_col, .data = rows};
    fd_weight_rows expected;
    fd_weight_table table;
    fd_error err = {0};
    fd_trace *trace = fixture_open(path);
    cr_assert_eq(fd_trace_read_weights(trace, &table, &err), FD_OK, "%s", err.message);
    const fd_weight_rows *found = fd_weight_table_find(&table, name);
    cr_assert(found, "%s: no %s among %d weights", path, name, table.n);
    cr_assert_eq(fd_weight_hash(&weight, fd_weight_rows_per_hash(n_row, FD_MAX_WEIGHT_HASHES), &expected, &err), FD_OK);
    cr_expect(found->n_row == n_row && found->n_col == n_col && found->rows_per_hash == expected.rows_per_hash, "%s",
              name);
    cr_expect_str_eq(found->dtype, fd_dtype_get(dtype)->name);
    cr_expect(found->n_zero_row == expected.n_zero_row && found->n_trailing_zero_row == expected.n_trailing_zero_row,
              "%s", name);
    cr_assert_eq(found->n_hash, expected.n_hash, "%s", name);
    cr_expect_arr_eq(found->hashes, expected.hashes, sizeof *expected.hashes * (size_t)expected.n_hash, "%s", name);
    fd_weight_rows_free(&expected);
    fd_weight_table_free(&table);
    fd_trace_close(trace);
}
