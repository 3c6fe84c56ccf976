/* Loader bugs: the matmul sees other weight bytes than the file holds. The node gets a weight of its own, so that a tied
 * table stays right where it is used as the embedding. */
#include "faults/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/quant.h"

static fd_code own_block(fd_fault_owner *owner, size_t bytes, void **out, fd_error *err) {
    void **grown = realloc(owner->blocks, sizeof *grown * (size_t)(owner->n_block + 1));
    if (grown) owner->blocks = grown;
    *out = grown ? malloc(bytes) : NULL;
    if (!*out) return fd_fail(err, FD_ERR_MEMORY, "out of memory for a faulty weight of %zu bytes", bytes);
    owner->blocks[owner->n_block++] = *out;
    return FD_OK;
}

static fd_code replace_weight(fd_graph *graph, fd_node *node, fd_weight weight, fd_error *err) {
    fd_weight *grown = realloc(graph->weights, sizeof *grown * (size_t)(graph->n_weight + 1));
    if (!grown) return fd_fail(err, FD_ERR_MEMORY, "out of memory");
    graph->weights = grown;
    grown[graph->n_weight] = weight;
    node->weight[0] = graph->n_weight++;
    return FD_OK;
}

/* Element (o, i) of an [out, in] matrix fetched as if the memory held [in, out]: flat[i·n_out + o]. */
fd_code fd_fault_weight_in_out(fd_graph *graph, fd_node *node, fd_fault_owner *owner, int32_t *n_changed,
                               fd_error *err) {
    if (node->op != FD_OP_MATMUL) return FD_OK;
    fd_weight w = graph->weights[node->weight[0]];
    size_t bytes = sizeof(float) * (size_t)(w.n_row * w.n_col);
    void *flat, *swapped;
    FD_TRY(own_block(owner, bytes, &swapped, err));
    flat = malloc(bytes);
    if (!flat) return fd_fail(err, FD_ERR_MEMORY, "out of memory for a faulty weight of %zu bytes", bytes);
    int64_t row_bytes = fd_dtype_row_bytes(w.dtype, w.n_col);
    for (int64_t o = 0; o < w.n_row; o++)
        fd_dequantize_row(w.dtype, (const char *)w.data + o * row_bytes, (float *)flat + o * w.n_col, w.n_col);
    for (int64_t o = 0; o < w.n_row; o++)
        for (int64_t i = 0; i < w.n_col; i++) ((float *)swapped)[o * w.n_col + i] = ((float *)flat)[i * w.n_row + o];
    free(flat);
    w.dtype = FD_F32;
    w.data = swapped;
    w.bytes = bytes;
    ++*n_changed;
    return replace_weight(graph, node, w, err);
}

/* wasm-chord's loader computed numel/2 bytes for every type: 47 % of a Q8_0 tensor, 25 % of an F16 one. */
fd_code fd_fault_bytes_short(fd_graph *graph, fd_node *node, fd_fault_owner *owner, int32_t *n_changed, fd_error *err) {
    if (node->op != FD_OP_MATMUL) return FD_OK;
    fd_weight w = graph->weights[node->weight[0]];
    size_t bytes = (size_t)w.bytes, read = (size_t)(w.n_row * w.n_col) / 2;
    if (read >= bytes) return FD_OK; /* 4-bit types and smaller are read whole */
    void *copy;
    FD_TRY(own_block(owner, bytes, &copy, err));
    memcpy(copy, w.data, read);
    memset((char *)copy + read, 0, bytes - read);
    w.data = copy;
    ++*n_changed;
    return replace_weight(graph, node, w, err);
}
