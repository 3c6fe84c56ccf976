#include "compare/class/weight_type.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/dtype.h"
#include "compare/bounds/numerics_class.h"
#include "compare/weights/weights.h"
#include "model/weight_rows.h"

/* Elements that are held in binary32: 4 GiB of them. */
#define MOST_HELD (1ll << 30)

/* By what engines round that multiply so; blocks of int8 have room for bfloat16. */
static bool has_coarse_factors(const fd_numerics_class *c) {
    return !c->exact && (c->u_in > 0 || c->u_factor > 0 || c->q8_activations);
}

static float kept(uint32_t type, float x) {
    return type == FD_F16 ? fd_f16_to_f32(fd_f32_to_f16(x)) : fd_bf16_to_f32(fd_f32_to_bf16(x));
}

/* `weight` becomes its own values in that type, held in binary32; the rows are loaded's. */
static fd_code convert(uint32_t type, fd_weight *weight, fd_loaded_weights *loaded, fd_error *err) {
    const int64_t n_col = weight->n_col;
    const size_t n = (size_t)weight->n_row * (size_t)n_col;
    float *rows = malloc(sizeof *rows * (n + 1));
    if (!rows) return fd_fail(err, FD_ERR_MEMORY, "%s in 16 bits: out of memory", weight->name);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < weight->n_row; r++) {
        fd_weight_row(weight, r, rows + r * n_col);
        for (int64_t i = 0; i < n_col; i++) rows[r * n_col + i] = kept(type, rows[r * n_col + i]);
    }
    weight->dtype = FD_F32;
    weight->data = rows;
    weight->bytes = sizeof *rows * n;
    loaded->rows[loaded->n_rows++] = rows;
    return FD_OK;
}

static fd_code convert_all(const fd_graph *graph, uint32_t type, fd_loaded_weights *loaded, fd_error *err) {
    FD_TRY(fd_graph_clone(graph, &loaded->graph, err));
    loaded->rows = calloc((size_t)graph->n_weight + 1, sizeof *loaded->rows);
    if (!loaded->rows) return fd_fail(err, FD_ERR_MEMORY, "weights in 16 bits: out of memory");
    for (int32_t w = 0; w < graph->n_weight; w++) FD_TRY(convert(type, &loaded->graph->weights[w], loaded, err));
    return FD_OK;
}

/* Does nothing depart where the whole run has these weights? The memo knows others' products. */
static fd_code judge(const fd_attribution_options *options, const fd_graph *graph, const fd_numerics_class *class_,
                     bool *right, fd_error *err) {
    fd_attribution_options how = *options;
    fd_attribution of = {0};
    how.graph = graph;
    how.memo = NULL;
    how.numerics = class_;
    how.on_row = NULL;
    how.progress = NULL;
    const fd_code code = fd_attribute_errors(&how, &of, err);
    *right = code == FD_OK && !of.found && of.n_tensor > 0;
    fd_attribution_free(&of);
    return code;
}

fd_code fd_find_weight_type(const fd_attribution_options *how, const fd_attribution *of, char *to, size_t size,
                            fd_error *err) {
    static const uint32_t types[] = {FD_F16, FD_BF16};
    static const char *const classes[] = {"f32", "f16kv"};
    int64_t n = 0;
    to[0] = '\0';
    for (int32_t w = 0; w < how->graph->n_weight; w++) n += how->graph->weights[w].n_row * how->graph->weights[w].n_col;
    if (!of->found || !has_coarse_factors(of->numerics) || n > MOST_HELD) return FD_OK;
    for (size_t t = 0; t < sizeof types / sizeof *types && !to[0]; t++) {
        fd_loaded_weights loaded = {0};
        bool right = false;
        fd_code code = convert_all(how->graph, types[t], &loaded, err);
        for (size_t k = 0; k < sizeof classes / sizeof *classes && !right && code == FD_OK; k++)
            code = judge(how, loaded.graph, fd_numerics_class_find(classes[k]), &right, err);
        if (right)
            snprintf(to, size, "weights are held in %s, those of norms too",
                     types[t] == FD_F16 ? "binary16" : "bfloat16");
        fd_loaded_weights_free(&loaded);
        FD_TRY(code);
    }
    return FD_OK;
}
