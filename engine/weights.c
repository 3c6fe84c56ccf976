#include "engine/weights.h"

#include <stdlib.h>
#include <string.h>

#include "engine/upload.h"

/* A weight may be both: nothing forbids a graph that multiplies by a [1, n] matrix it also norms with. */
typedef enum use { USED_AS_MATRIX = 1, USED_AS_VECTOR = 2 } use;

static int uses_of(const fd_graph *graph, int32_t weight) {
    int uses = 0;
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        bool takes_matrix = node->op == FD_OP_MATMUL || node->op == FD_OP_EMBED || node->op == FD_OP_EXPERT_MATMUL ||
                            node->op == FD_OP_HEAD_MATMUL || node->op == FD_OP_ADD_POSITION;
        bool takes_vector = node->op == FD_OP_RMS_NORM || node->op == FD_OP_LAYER_NORM ||
                            node->op == FD_OP_ADD_VECTOR || node->op == FD_OP_MUL_VECTOR || node->op == FD_OP_CONV ||
                            node->op == FD_OP_SSM_SCAN || node->op == FD_OP_TOKEN_SHIFT ||
                            node->op == FD_OP_ATTN_SOFTMAX;
        if (node->weight[0] == weight && takes_matrix) uses |= USED_AS_MATRIX;
        /* ROPE's factors go into the tables on the host. */
        if (node->weight[0] == weight && takes_vector) uses |= USED_AS_VECTOR;
        if (node->weight[1] == weight && node->op != FD_OP_ROPE) uses |= USED_AS_VECTOR;
    }
    return uses;
}

static size_t matrix_bytes(const fd_weight *w) {
    return fd_align((size_t)fd_packed_row_bytes(w->dtype, w->n_col) * (size_t)w->n_row);
}

static size_t vector_bytes(const fd_weight *w) {
    return fd_align(sizeof(float) * (size_t)w->n_row * (size_t)w->n_col); /* experts' biases: a row each */
}

fd_code fd_weights_bytes(const fd_graph *graph, uint64_t *bytes, fd_error *err) {
    *bytes = 0;
    for (int32_t i = 0; i < graph->n_weight; i++) {
        const fd_weight *w = &graph->weights[i];
        int uses = uses_of(graph, i);
        if ((uses & USED_AS_MATRIX) && !fd_can_pack(w->dtype)) {
            const fd_dtype_info *type = fd_dtype_get(w->dtype);
            return fd_fail(err, FD_ERR_UNSUPPORTED, "weight %s: no kernel reads type %s", w->name,
                           type ? type->name : "unknown");
        }
        if (uses & USED_AS_MATRIX) *bytes += matrix_bytes(w);
        if (uses & USED_AS_VECTOR) *bytes += vector_bytes(w);
    }
    return FD_OK;
}

/* ---- upload ---- */

/* Pieces of all weights in the order in which they lie on the device. With `list` NULL, counts them. */
static int64_t cut(const fd_graph *graph, const fd_weight_runs *all, fd_device_weights *out, fd_upload_piece *list) {
    char *at = out->block.data;
    int64_t n = 0;
    for (int32_t i = 0; i < graph->n_weight; i++) {
        const fd_weight *w = &graph->weights[i];
        const fd_weight_runs from = all ? all[i] : fd_weight_whole(w);
        int uses = uses_of(graph, i);
        for (int vector = 0; vector < 2; vector++) {
            if (!(uses & (vector ? USED_AS_VECTOR : USED_AS_MATRIX))) continue;
            int64_t row_bytes = (int64_t)fd_upload_row_bytes(w, vector), rows = fd_upload_piece_rows(w, vector);
            for (int64_t row = 0, n_row; row < w->n_row; row += n_row, n++) {
                int64_t left = from.run - row % from.run;
                n_row = left < rows ? left : rows;
                if (!list) continue;
                list[n] = (fd_upload_piece){.weight = w,
                                            .as_vector = vector,
                                            .from = (const char *)w->data +
                                                    (row / from.run * from.period + row % from.run) * from.stride,
                                            .stride = from.stride,
                                            .n_row = n_row,
                                            .to = at + row * row_bytes};
            }
            if (vector)
                out->vector[i] = (const float *)(const void *)at;
            else
                out->matrix[i] = (fd_device_matrix){.data = at,
                                                    .dtype = w->dtype,
                                                    .n_row = w->n_row,
                                                    .n_col = w->n_col,
                                                    .row_bytes = row_bytes,
                                                    .scale_offset = fd_packed_scale_offset(w->dtype, w->n_col)};
            at += vector ? vector_bytes(w) : matrix_bytes(w);
        }
    }
    return n;
}

fd_code fd_weights_upload(const fd_graph *graph, const fd_weight_runs *rows, int32_t device, cudaStream_t stream,
                          fd_device_weights *out, fd_error *err) {
    uint64_t bytes;
    FD_TRY(fd_weights_bytes(graph, &bytes, err));
    FD_TRY(fd_device_alloc(&out->block, bytes, "the weights", err));
    out->matrix = calloc((size_t)graph->n_weight + 1, sizeof *out->matrix);
    out->vector = calloc((size_t)graph->n_weight + 1, sizeof *out->vector);
    if (!out->matrix || !out->vector) return fd_fail(err, FD_ERR_MEMORY, "weights: out of memory");
    int64_t n = cut(graph, rows, out, NULL);
    fd_upload_piece *pieces = calloc((size_t)n + 1, sizeof *pieces);
    if (!pieces) return fd_fail(err, FD_ERR_MEMORY, "weights: out of memory for %lld pieces", (long long)n);
    (void)cut(graph, rows, out, pieces);
    fd_code code = fd_upload(pieces, n, device, stream, err);
    free(pieces);
    return code;
}

void fd_weights_free(fd_device_weights *weights) {
    fd_device_free(&weights->block);
    free(weights->matrix);
    free(weights->vector);
    memset(weights, 0, sizeof *weights);
}
