#include "model/graph.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf/quant.h"

static const char *const op_names[FD_OP_COUNT] = {
#define FD_OP(ENUM, name, n_input, summary) [FD_OP_##ENUM] = #name,
#include "model/ops.def"
#undef FD_OP
};

const char *fd_op_name(fd_op op) {
    return op_names[op];
}

bool fd_node_is_kv_cache(const fd_node *node) {
    const char *dot = strrchr(node->name, '.');
    return node->op == FD_OP_KV_WRITE && dot && (strcmp(dot, ".cache_k") == 0 || strcmp(dot, ".cache_v") == 0);
}

/* One type of "K/V", or of both; whether a cache may have it. */
static fd_code parse_kv_type(const char *text, size_t size, uint32_t *out, fd_error *err) {
    char name[16] = "";
    if (size < sizeof name) memcpy(name, text, size);
    int dtype = fd_dtype_parse(name);
    if (dtype < 0)
        return fd_fail(err, FD_ERR_INPUT, "cache type \"%.*s\": unknown", (int)(size < 64 ? size : 64), text);
    *out = (uint32_t)dtype;
    if (fd_can_quantize(*out)) return FD_OK;
    return fd_fail(err, FD_ERR_UNSUPPORTED,
                   "cache type %s: expected f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1 or iq4_nl",
                   fd_dtype_get(*out)->name);
}

fd_code fd_kv_types_parse(const char *text, uint32_t *k, uint32_t *v, fd_error *err) {
    const size_t size = strcspn(text, "/");
    FD_TRY(parse_kv_type(text, size, k, err));
    *v = *k;
    return text[size] ? parse_kv_type(text + size + 1, strlen(text + size + 1), v, err) : FD_OK;
}

fd_code fd_graph_set_kv_types(fd_graph *graph, const char *text, fd_error *err) {
    uint32_t k, v;
    int32_t n_cache = 0;
    FD_TRY(fd_kv_types_parse(text, &k, &v, err));
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_op op = graph->nodes[i].op;
        if (op != FD_OP_ATTN_SCORES && op != FD_OP_ATTN_MIX) continue;
        const fd_dtype_info *type = fd_dtype_get(op == FD_OP_ATTN_SCORES ? k : v);
        fd_node *cache = &graph->nodes[graph->nodes[i].input[1]];
        if (cache->shape[1] % type->block_elements != 0)
            return fd_fail(err, FD_ERR_INPUT,
                           "cache type %s: heads of %s have %d elements, expected a multiple of %lld", type->name,
                           cache->name, cache->shape[1], (long long)type->block_elements);
        cache->kv_type = op == FD_OP_ATTN_SCORES ? k : v;
        n_cache++;
    }
    if (n_cache == 0) return fd_fail(err, FD_ERR_INPUT, "cache type %s: no layer of this model attends", text);
    size_t at = 0;
    for (const char *c = text; at + 1 < sizeof graph->kv_type && *c; c++)
        graph->kv_type[at++] = (char)tolower((unsigned char)*c);
    graph->kv_type[at] = '\0';
    return FD_OK;
}

bool fd_graph_scales_query(const fd_graph *graph) {
    static const char *const archs[] = {"gemma", "gemma2", "gemma3", "phi2", "phi3"};
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (strcmp(graph->hparams.arch, archs[i]) == 0) return true;
    return false;
}

/* Kernels that read K and V, or write both, take them in one type; a fault's op reads binary32. */
fd_code fd_graph_check_gpu(const fd_graph *graph, fd_error *err) {
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        if (node->kv_type != FD_F32 && node->kv_type != FD_F16)
            return fd_fail(err, FD_ERR_UNSUPPORTED,
                           "node %s: the GPU engine keeps no cache of type %s; --backend cpu does", node->name,
                           fd_dtype_get(node->kv_type)->name);
        if (node->kv_type == FD_F16 && strchr(graph->kv_type, '/'))
            return fd_fail(err, FD_ERR_UNSUPPORTED,
                           "node %s: the GPU engine keeps K and V in one type, not in %s; --backend cpu does",
                           node->name, graph->kv_type);
        const bool reads = node->op == FD_OP_ATTN_SCORES || node->op == FD_OP_ATTN_MIX;
        if (node->override && (reads ? graph->nodes[node->input[1]].kv_type : node->kv_type) == FD_F16)
            return fd_fail(
                err, FD_ERR_UNSUPPORTED,
                "node %s: a fault replaces its op, and the GPU engine's cache is in binary16; --backend cpu, or "
                "a cache of f32, takes it",
                node->name);
    }
    return FD_OK;
}

static const struct {
    const char *name, *summary;
} gatings[] = {[FD_GATING_GATHER] = {"gather", "the chosen elements as they are"},
               [FD_GATING_NORMALISED] = {"normalised", "the chosen elements divided by their sum"},
               [FD_GATING_SOFTMAX] = {"softmax", "softmax over the chosen elements alone"}};

const char *fd_gating_name(fd_gating gating) {
    return gatings[gating].name;
}
const char *fd_gating_summary(fd_gating gating) {
    return gatings[gating].summary;
}

static const char *const rope_scalings[FD_ROPE_SCALING_COUNT] = {"none", "linear", "llama3", "yarn", "longrope"};

const char *fd_rope_scaling_name(fd_rope_scaling scaling) {
    return rope_scalings[scaling];
}

void fd_graph_set_context(fd_graph *graph, int32_t n_ctx) {
    enum { UNIT = 256 };
    int64_t room = ((int64_t)n_ctx + UNIT - 1) / UNIT * UNIT;
    for (int32_t i = 0; i < graph->n_node; i++) {
        fd_node *node = &graph->nodes[i];
        if (node->op != FD_OP_ROPE || node->weight[1] < 0) continue;
        bool in_use = strstr(graph->weights[node->weight[0]].name, "long") != NULL;
        if (in_use == ((double)room > node->rope.original_context)) continue;
        int32_t other = node->weight[1];
        node->weight[1] = node->weight[0];
        node->weight[0] = other;
    }
}

int32_t fd_graph_find(const fd_graph *graph, const char *name) {
    for (int32_t i = 0; i < graph->n_node; i++)
        if (strcmp(graph->nodes[i].name, name) == 0) return i;
    return -1;
}

fd_code fd_graph_clone(const fd_graph *graph, fd_graph **out, fd_error *err) {
    fd_graph *copy = calloc(1, sizeof *copy);
    *out = NULL;
    if (!copy) return fd_fail(err, FD_ERR_MEMORY, "out of memory");
    *copy = *graph;
    copy->nodes = malloc(sizeof *copy->nodes * (size_t)graph->n_node);
    copy->weights = malloc(sizeof *copy->weights * (size_t)graph->n_weight);
    if (!copy->nodes || !copy->weights) {
        fd_graph_free(copy);
        return fd_fail(err, FD_ERR_MEMORY, "out of memory");
    }
    memcpy(copy->nodes, graph->nodes, sizeof *copy->nodes * (size_t)graph->n_node);
    memcpy(copy->weights, graph->weights, sizeof *copy->weights * (size_t)graph->n_weight);
    *out = copy;
    return FD_OK;
}

void fd_graph_free(fd_graph *graph) {
    if (!graph) return;
    free(graph->nodes);
    free(graph->weights);
    free(graph);
}

double fd_graph_n_parameter(const fd_graph *graph) {
    double n = 0;
    for (int32_t i = 0; i < graph->n_weight; i++)
        n += (double)graph->weights[i].n_row * (double)graph->weights[i].n_col;
    return n;
}
