#include "compare/class/weight_type.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/dtype.h"
#include "compare/bounds/numerics_class.h"
#include "compare/class/mixed.h"
#include "model/weight_rows.h"

/* Elements that are held in binary32: 4 GiB of them. */
#define MOST_HELD (1ll << 30)

/* By what engines round that multiply so; blocks of int8 have room for bfloat16. Tensors of 16 bits have room for such weights, and for bugs. */
static bool has_coarse_factors(const fd_numerics_class *c) {
    return !c->exact && c->u_out <= 0x1p-24 && (c->u_in > 0 || c->u_factor > 0 || c->q8_activations);
}

/* Most of the file's own weights, n elements, have that type: of an engine that converts all of them norms and biases are others, and no class needs coarse factors. */
static bool has_it_already(const fd_graph *graph, int64_t n, uint32_t type) {
    int64_t n_of_type = 0;
    for (int32_t w = 0; w < graph->n_weight; w++)
        if (graph->weights[w].dtype == type) n_of_type += graph->weights[w].n_row * graph->weights[w].n_col;
    return 2 * n_of_type > n;
}

static float kept(uint32_t type, float x) {
    return type == FD_F16 ? fd_f16_to_f32(fd_f32_to_f16(x)) : fd_bf16_to_f32(fd_f32_to_bf16(x));
}

typedef struct converted {
    fd_graph *graph; /* the model's with such weights; owned */
    float **rows;    /* [n_weight] of them; owned */
} converted;

static void drop(converted *c) {
    for (int32_t w = 0; c->rows && w < c->graph->n_weight; w++) free(c->rows[w]);
    free(c->rows);
    if (c->graph) fd_graph_free(c->graph);
}

/* `weight` becomes its own values in that type, held in binary32. */
static fd_code convert(uint32_t type, fd_weight *weight, float **to, fd_error *err) {
    const int64_t n_col = weight->n_col;
    const size_t n = (size_t)weight->n_row * (size_t)n_col;
    float *rows = *to = malloc(sizeof *rows * (n + 1));
    if (!rows) return fd_fail(err, FD_ERR_MEMORY, "%s in 16 bits: out of memory", weight->name);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < weight->n_row; r++) {
        fd_weight_row(weight, r, rows + r * n_col);
        for (int64_t i = 0; i < n_col; i++) rows[r * n_col + i] = kept(type, rows[r * n_col + i]);
    }
    weight->dtype = FD_F32;
    weight->data = rows;
    weight->bytes = sizeof *rows * n;
    return FD_OK;
}

/* RoPE's factors are no parameters: engines make a table of frequencies of them, in binary32. */
static bool is_of_rope(const fd_graph *graph, int32_t w) {
    for (int32_t i = 0; i < graph->n_node; i++)
        if (graph->nodes[i].op == FD_OP_ROPE && graph->nodes[i].weight[0] == w) return true;
    return false;
}

static fd_code convert_all(const fd_graph *graph, uint32_t type, converted *out, fd_error *err) {
    FD_TRY(fd_graph_clone(graph, &out->graph, err));
    out->rows = calloc((size_t)graph->n_weight + 1, sizeof *out->rows);
    if (!out->rows) return fd_fail(err, FD_ERR_MEMORY, "weights in 16 bits: out of memory");
    for (int32_t w = 0; w < graph->n_weight; w++)
        if (!is_of_rope(graph, w)) FD_TRY(convert(type, &out->graph->weights[w], &out->rows[w], err));
    return FD_OK;
}

/* What departs where the whole run has these weights. The memo knows others' products. */
static fd_code judge(const fd_attribution_options *options, const fd_graph *graph, const char *class_,
                     fd_attribution *of, fd_error *err) {
    fd_attribution_options how = *options;
    how.graph = graph;
    how.memo = NULL;
    how.numerics = fd_numerics_class_find(class_);
    how.on_row = NULL;
    how.progress = NULL;
    return fd_attribute_errors(&how, of, err);
}

/* With these weights the first finding is gone and at least one more: the first node that departs with either; -1. *n_left: those that do. */
static int32_t first_other(const fd_graph *graph, const fd_attribution *file, const fd_attribution *now,
                           int32_t *n_left) {
    int32_t other = -1, n_gone = 0;
    *n_left = 0;
    for (int32_t i = 0; i < graph->n_node; i++) {
        const bool left = now->introduced[i].finding != FD_FOUND_NOTHING;
        *n_left += left;
        if (file->introduced[i].finding == FD_FOUND_NOTHING) continue;
        n_gone += !left;
        if (left && other < 0) other = i;
    }
    const bool first_gone = now->introduced[file->first.node].finding == FD_FOUND_NOTHING;
    return first_gone && n_gone > 1 ? other : -1;
}

/* How such an engine computes, the strictest first: in binary32; or it gives prompts to tensor cores, of whose attention nothing is repeated,
 * and there is room for it. */
enum { N_CLASS = 4, OF_TENSOR_CORES = 2 };
static const struct {
    uint32_t type;
    const char *name, *classes[N_CLASS];
} types[] = {{FD_F16, "binary16", {"f32", "f16kv", "f16-gemm", "f16"}},
             {FD_BF16, "bfloat16", {"f32", "f16kv", "bf16-gemm", "bf16"}}};

/* Through unrecorded tensors a product's end may be off by anything. */
static bool shows_other_products(const fd_graph *graph, const fd_attribution *of) {
    bool alone = false;
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node_finding *f = &of->introduced[i];
        const bool product = graph->nodes[i].op == FD_OP_MATMUL && graph->nodes[i].layer >= 0;
        alone |= product && f->finding != FD_FOUND_NOTHING && f->span_first == f->node;
    }
    return alone && fd_most_products_depart(graph, of);
}

/* *explained: by one of them, *on_cores: on tensor cores; else *other as in the header, of the one that leaves least. */
static fd_code try_classes(const fd_attribution_options *how, const fd_attribution *of, const fd_graph *held,
                           const char *const *classes, bool *explained, bool *on_cores, int32_t *other, fd_error *err) {
    int32_t fewest = INT32_MAX;
    bool multiplies_so = false; /* with most of its products off in binary32 */
    *explained = false;
    for (int k = 0; k < N_CLASS && !*explained && (k < OF_TENSOR_CORES || multiplies_so); k++) {
        fd_attribution now = {0};
        int32_t n_left = 0, at = -1;
        const fd_code code = judge(how, held, classes[k], &now, err);
        if (code == FD_OK) {
            at = first_other(how->graph, of, &now, &n_left);
            if (k < OF_TENSOR_CORES) multiplies_so = shows_other_products(how->graph, &now);
            *explained = !now.found && now.n_tensor > 0;
            *on_cores = k >= OF_TENSOR_CORES;
            if (at >= 0 && n_left < fewest) *other = at, fewest = n_left;
        }
        fd_attribution_free(&now);
        FD_TRY(code);
    }
    if (*explained) *other = -1;
    return FD_OK;
}

fd_code fd_find_weight_type(const fd_attribution_options *how, const fd_attribution *of, char *to, size_t size,
                            int32_t *other, fd_error *err) {
    int64_t n = 0;
    to[0] = '\0';
    *other = -1;
    for (int32_t w = 0; w < how->graph->n_weight; w++) n += how->graph->weights[w].n_row * how->graph->weights[w].n_col;
    if (!of->found || n > MOST_HELD) return FD_OK;
    for (size_t t = 0; t < sizeof types / sizeof *types && !to[0] && *other < 0; t++) {
        converted held = {0};
        bool explained = false, on_cores = false;
        if (!has_coarse_factors(of->numerics) &&
            (of->numerics->u_out > 0x1p-24 || !has_it_already(how->graph, n, types[t].type)))
            continue;
        fd_code code = convert_all(how->graph, types[t].type, &held, err);
        if (code == FD_OK) code = try_classes(how, of, held.graph, types[t].classes, &explained, &on_cores, other, err);
        if (explained)
            snprintf(to, size, "weights are held in %s, those of norms too%s%s", types[t].name,
                     on_cores ? ", and products of a prompt round what they read to " : "",
                     on_cores ? types[t].name : "");
        drop(&held);
        FD_TRY(code);
    }
    return FD_OK;
}
