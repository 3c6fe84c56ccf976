#include "compare/attribute/rounded_weights.h"

#include <stdlib.h>

#include "compare/bounds/roundoffs.h"
#include "model/gguf/quant.h"

fd_code fd_rounded_weights_open(const fd_graph *graph, double u, fd_rounded_weights *out, fd_error *err) {
    *out = (fd_rounded_weights){.type = u > UF16 ? FD_BF16 : FD_F16};
    FD_TRY(fd_graph_clone(graph, &out->graph, err));
    out->rows = calloc((size_t)graph->n_weight + 1, sizeof *out->rows);
    return out->rows ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "weights in 16 bits: out of memory");
}

void fd_rounded_weights_free(fd_rounded_weights *weights) {
    for (int32_t i = 0; weights->graph && weights->rows && i < weights->graph->n_weight; i++) free(weights->rows[i]);
    free(weights->rows);
    if (weights->graph) fd_graph_free(weights->graph);
    *weights = (fd_rounded_weights){0};
}

static fd_code round_weight(fd_weight *w, uint32_t type, void **rows, fd_error *err) {
    const int64_t row_bytes = fd_dtype_row_bytes(type, w->n_col);
    float *row = malloc(sizeof *row * (size_t)w->n_col);
    *rows = malloc((size_t)(row_bytes * w->n_row));
    const bool room = row && *rows;
    for (int64_t i = 0; i < w->n_row && room; i++) {
        const char *from = (const char *)w->data + i * fd_dtype_row_bytes(w->dtype, w->n_col);
        fd_dequantize_row(w->dtype, from, row, w->n_col);
        fd_quantize_row(type, row, (char *)*rows + i * row_bytes, w->n_col);
    }
    free(row);
    if (!room) return fd_fail(err, FD_ERR_MEMORY, "%s: in 16 bits: out of memory", w->name);
    w->dtype = type;
    w->data = *rows;
    w->bytes = (uint64_t)(row_bytes * w->n_row);
    return FD_OK;
}

fd_code fd_rounded_weights_add(fd_rounded_weights *weights, const bool *nodes, fd_error *err) {
    for (int32_t i = 0; i < weights->graph->n_node; i++)
        for (int k = 0; k < FD_MAX_WEIGHTS && nodes[i]; k++) {
            const int32_t id = weights->graph->nodes[i].weight[k];
            if (id < 0 || weights->rows[id] || weights->graph->weights[id].dtype == weights->type) continue;
            FD_TRY(round_weight(&weights->graph->weights[id], weights->type, &weights->rows[id], err));
        }
    return FD_OK;
}
