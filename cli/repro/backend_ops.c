/* The op's shape and parameters as cases of ggml's test-backend-ops, which runs an op on a backend and on the CPU. Names of types
 * and of constructors' arguments are those of tests/test-backend-ops.cpp in llama.cpp of 2026. */
#include "base/dtype.h"
#include "cli/output.h"
#include "cli/repro/internal.h"

typedef void (*put_case)(FILE *to, const fd_repro *r, int32_t n_token);
static const char *backend_op(fd_op op); /* "SILU" */

static void put_add(FILE *to, const char *constructor) {
    fprintf(to, "test_cases.emplace_back(new %s(", constructor);
}

static void put_matmul(FILE *to, const fd_repro *r, int32_t n_token) {
    const fd_weight *w = &r->graph->weights[r->node->weight[0]];
    put_add(to, "test_mul_mat");
    fprintf(to, "GGML_TYPE_%s, GGML_TYPE_F32, %lld, %d, %lld, {1, 1}, {1, 1}));\n", fd_dtype_get(w->dtype)->name,
            (long long)w->n_row, n_token, (long long)w->n_col);
}

static void put_rms_norm(FILE *to, const fd_repro *r, int32_t n_token) {
    const fd_node *node = r->node;
    int32_t width = (int32_t)r->graph->weights[node->weight[0]].n_col, n_row = (int32_t)(fd_node_width(node) / width);
    put_add(to, "test_rms_norm");
    fprintf(to, "GGML_TYPE_F32, {%d, %d, %d, 1}, false, %#.9gf));\n", width, n_row, n_token, (double)node->eps);
}

static void put_rope(FILE *to, const fd_repro *r, int32_t n_token) {
    const fd_node *node = r->node;
    bool halves = node->rope.pairing != FD_ROPE_INTERLEAVED, linear = node->rope.scaling == FD_ROPE_SCALING_LINEAR;
    put_add(to, "test_rope");
    fprintf(to, "GGML_TYPE_F32, {%d, %d, %d, 1}, %d, %s, %d, %#.9gf, 0.0f, 1.0f, %s));\n", node->shape[1],
            node->shape[0], n_token, node->rope.n_rot, halves ? "GGML_ROPE_TYPE_NEOX" : "GGML_ROPE_TYPE_NORMAL",
            r->graph->hparams.n_ctx_train, linear && node->rope.factor > 0 ? 1 / node->rope.factor : 1.0,
            node->weight[0] >= 0 ? "true" : "false");
}

static void put_sum(FILE *to, const fd_repro *r, int32_t n_token) {
    put_add(to, "test_bin_bcast");
    fprintf(to, "ggml_add, GGML_TYPE_F32, {%lld, %d, 1, 1}, {1, 1, 1, 1}));\n", (long long)fd_node_width(r->node),
            n_token);
}

static void put_gated(FILE *to, const fd_repro *r, int32_t n_token) {
    put_add(to, "test_glu_split");
    fprintf(to, "%s, GGML_TYPE_F32, {%lld, %d, 1, 1}));\n",
            r->node->op == FD_OP_SILU_MUL ? "GGML_GLU_OP_SWIGLU" : "GGML_GLU_OP_GEGLU",
            (long long)fd_node_width(r->node), n_token);
}

/* Products with the cache: of its n_head_kv heads, each for a group of the queries'. */
static void put_cache_product(FILE *to, const fd_repro *r, int32_t n_token) {
    const fd_node *node = r->node, *cache = &r->graph->nodes[node->input[1]];
    bool scores = node->op == FD_OP_ATTN_SCORES;
    int32_t n_kv = r->pos + 1, width = cache->shape[1];
    put_add(to, "test_mul_mat");
    fprintf(to, "GGML_TYPE_F32, GGML_TYPE_F32, %d, %d, %d, {%d, 1}, {%d, 1}));\n", scores ? n_kv : width, n_token,
            scores ? width : n_kv, cache->shape[0], node->shape[0] / cache->shape[0]);
}

static void put_softmax(FILE *to, const fd_repro *r, int32_t n_token) {
    const fd_node *scores = &r->graph->nodes[r->node->input[0]];
    put_add(to, "test_soft_max");
    fprintf(to, "GGML_TYPE_F32, {%d, %d, %d, 1}, true, %s, GGML_TYPE_F32, {1, 1}, %#.9gf, 0.0f));\n", r->pos + 1,
            n_token, r->node->shape[0], r->node->weight[0] >= 0 ? "true" : "false",
            (double)(scores->scale > 0 ? scores->scale : 1));
}

/* One input; the enumeration's name is that of the row. */
static void put_unary(FILE *to, const fd_repro *r, int32_t n_token) {
    put_add(to, "test_unary");
    fprintf(to, "GGML_UNARY_OP_%s, GGML_TYPE_F32, {%lld, %d, 1, 1}));\n", backend_op(r->node->op),
            (long long)fd_node_width(r->node), n_token);
}

static void put_constant(FILE *to, const fd_repro *r, int32_t n_token) {
    const fd_node *node = r->node;
    double value = (double)(node->op == FD_OP_SCALE ? node->scale : node->softcap);
    put_add(to, node->op == FD_OP_SCALE ? "test_scale" : "test_softcap");
    fprintf(to, "GGML_TYPE_F32, {%lld, %d, 1, 1}, %#.9gf));\n", (long long)fd_node_width(node), n_token, value);
}

static void put_clamp(FILE *to, const fd_repro *r, int32_t n_token) {
    put_add(to, "test_clamp");
    fprintf(to, "GGML_TYPE_F32, {%lld, %d, 1, 1}, %#.9gf, %#.9gf));\n", (long long)fd_node_width(r->node), n_token,
            -(double)r->node->limit, (double)r->node->limit);
}

static void put_swiglu_clamp(FILE *to, const fd_repro *r, int32_t n_token) {
    put_add(to, "test_swiglu_oai");
    fprintf(to, "GGML_TYPE_F32, {%lld, %d, 1, 1}, 0, %#.9gf, %#.9gf));\n", (long long)fd_node_width(r->node), n_token,
            (double)r->node->slope, (double)r->node->limit);
}

static void put_row_norm(FILE *to, const fd_repro *r, int32_t n_token) {
    const fd_node *node = r->node;
    int32_t width = node->shape[node->n_dim - 1], n_row = (int32_t)(fd_node_width(node) / width);
    bool layer = node->op == FD_OP_LAYER_NORM;
    put_add(to, layer ? "test_norm" : "test_l2_norm");
    fprintf(to, "GGML_TYPE_F32, {%d, %d, %d, 1}, %s%#.9gf));\n", width, n_row, n_token, layer ? "false, " : "",
            (double)node->eps);
}

static void put_expert_matmul(FILE *to, const fd_repro *r, int32_t n_token) {
    const fd_weight *w = &r->graph->weights[r->node->weight[0]];
    const fd_node *from = &r->graph->nodes[r->node->input[0]];
    int32_t n_out = r->node->shape[1];
    put_add(to, "test_mul_mat_id");
    fprintf(to, "GGML_TYPE_%s, GGML_TYPE_F32, %lld, %d, %s, %d, %d, %lld));\n", fd_dtype_get(w->dtype)->name,
            (long long)(w->n_row / n_out), r->node->shape[0], from->n_dim == 2 ? "false" : "true", n_out, n_token,
            (long long)w->n_col);
}

static void put_row_softmax(FILE *to, const fd_repro *r, int32_t n_token) {
    int32_t width = r->node->shape[r->node->n_dim - 1];
    put_add(to, "test_soft_max");
    fprintf(to, "GGML_TYPE_F32, {%d, %lld, %d, 1}, false, false, GGML_TYPE_F32, {1, 1}, 1.0f, 0.0f));\n", width,
            (long long)(fd_node_width(r->node) / width), n_token);
}

/* Chosen by sorting. */
static void put_top_k(FILE *to, const fd_repro *r, int32_t n_token) {
    put_add(to, "test_argsort");
    fprintf(to, "GGML_TYPE_F32, {%lld, %d, 1, 1}, GGML_SORT_ORDER_DESC));\n",
            (long long)fd_node_width(&r->graph->nodes[r->node->input[0]]), n_token);
}

static void put_embed(FILE *to, const fd_repro *r, int32_t n_token) {
    const fd_weight *w = &r->graph->weights[r->node->weight[0]];
    put_add(to, "test_get_rows");
    fprintf(to, "GGML_TYPE_%s, %lld, %lld, %d));\n", fd_dtype_get(w->dtype)->name, (long long)w->n_col,
            (long long)w->n_row, n_token);
}

static void put_conv(FILE *to, const fd_repro *r, int32_t n_token) {
    const fd_weight *w = &r->graph->weights[r->node->weight[0]];
    long long width = (long long)fd_node_width(r->node), n_tap = (long long)w->n_col;
    put_add(to, "test_ssm_conv");
    fprintf(to, "GGML_TYPE_F32, {%lld, %lld, 1, 1}, {%lld, %lld, 1, 1}));\n", n_tap - 1 + n_token, width, n_tap, width);
}

static void put_ssm_scan(FILE *to, const fd_repro *r, int32_t n_token) {
    const fd_node *node = r->node, *c = &r->graph->nodes[node->input[1]];
    put_add(to, "test_ssm_scan");
    fprintf(to, "GGML_TYPE_F32, %d, %d, %d, %d, %d, 1));\n", c->shape[1], node->shape[1], node->shape[0], c->shape[0],
            n_token);
}

static void put_wkv7(FILE *to, const fd_repro *r, int32_t n_token) {
    put_add(to, "test_rwkv_wkv7");
    fprintf(to, "GGML_TYPE_F32, %d, %d, %d, 1));\n", r->node->shape[0], r->node->shape[1], n_token);
}

static void put_gated_delta(FILE *to, const fd_repro *r, int32_t n_token) {
    const fd_node *q = &r->graph->nodes[r->node->input[1]];
    put_add(to, "test_gated_delta_net");
    fprintf(to, "GGML_TYPE_F32, %d, %d, %d, 1, %d));\n", q->shape[0], q->shape[1], n_token,
            r->node->shape[0] / q->shape[0]);
}

static const struct {
    fd_op op;
    const char *name; /* as test-backend-ops -o takes it */
    put_case put;
} cases[] = {
    {FD_OP_MATMUL, "MUL_MAT", put_matmul},
    {FD_OP_RMS_NORM, "RMS_NORM", put_rms_norm},
    {FD_OP_ROPE, "ROPE", put_rope},
    {FD_OP_ADD, "ADD", put_sum},
    {FD_OP_SILU_MUL, "SWIGLU", put_gated},
    {FD_OP_GELU_MUL, "GEGLU", put_gated},
    {FD_OP_ATTN_SCORES, "MUL_MAT", put_cache_product},
    {FD_OP_ATTN_MIX, "MUL_MAT", put_cache_product},
    {FD_OP_ATTN_SOFTMAX, "SOFT_MAX", put_softmax},
    {FD_OP_EMBED, "GET_ROWS", put_embed},
    {FD_OP_LAYER_NORM, "NORM", put_row_norm},
    {FD_OP_L2_NORM, "L2_NORM", put_row_norm},
    {FD_OP_SOFTMAX, "SOFT_MAX", put_row_softmax},
    {FD_OP_TOP_K, "ARGSORT", put_top_k},
    {FD_OP_EXPERT_MATMUL, "MUL_MAT_ID", put_expert_matmul},
    {FD_OP_SWIGLU_CLAMP, "SWIGLU_OAI", put_swiglu_clamp},
    {FD_OP_SCALE, "SCALE", put_constant},
    {FD_OP_SOFTCAP, "SOFTCAP", put_constant},
    {FD_OP_CLAMP, "CLAMP", put_clamp},
    {FD_OP_GELU, "GELU", put_unary},
    {FD_OP_SIGMOID, "SIGMOID", put_unary},
    {FD_OP_SILU, "SILU", put_unary},
    {FD_OP_SOFTPLUS, "SOFTPLUS", put_unary},
    {FD_OP_EXP, "EXP", put_unary},
    {FD_OP_CONV, "SSM_CONV", put_conv},
    {FD_OP_SSM_SCAN, "SSM_SCAN", put_ssm_scan},
    {FD_OP_GATED_DELTA, "GATED_DELTA_NET", put_gated_delta},
    {FD_OP_WKV7, "RWKV_WKV7", put_wkv7},
};

static const char *backend_op(fd_op op) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (cases[i].op == op) return cases[i].name;
    return "";
}

fd_code fd_repro_write_backend_ops(const fd_repro *repro, fd_error *err) {
    char path[4096];
    FILE *to;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (cases[i].op != repro->node->op) continue;
        FD_TRY(fd_repro_open(repro, "backend_ops.cpp", &to, path, err));
        fputs("// ", to);
        fd_repro_put_title(to, repro, "\n// ");
        fprintf(
            to,
            ".\n//\n// The op with this model's shapes, a token and a prompt, for ggml's own test: put the lines at "
            "the end of\n"
            "// make_test_cases_eval() in llama.cpp's tests/test-backend-ops.cpp, then test-backend-ops test -o %s.\n"
            "// It compares a backend with the CPU's on random values; the values that went wrong are in test_op.py.\n",
            cases[i].name);
        cases[i].put(to, repro, 1);
        cases[i].put(to, repro, repro->pos > 0 ? repro->pos + 1 : 32);
        return fd_cli_output_close(to, path, err);
    }
    return FD_OK;
}
