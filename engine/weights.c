#include "engine/weights.h"

#include <stdlib.h>
#include <string.h>

#include "model/quant.h"

/* A weight may be both: nothing forbids a graph that multiplies by a [1, n] matrix it also norms with. */
typedef enum use { USED_AS_MATRIX = 1, USED_AS_VECTOR = 2 } use;

static int uses_of(const fd_graph *graph, int32_t weight) {
    int uses = 0;
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        bool takes_matrix = node->op == FD_OP_MATMUL || node->op == FD_OP_EMBED || node->op == FD_OP_EXPERT_MATMUL;
        bool takes_vector = node->op == FD_OP_RMS_NORM || node->op == FD_OP_ATTN_SOFTMAX;
        if (node->weight[0] == weight && takes_matrix) uses |= USED_AS_MATRIX;
        /* ROPE's factors go into the tables on the host. */
        if (node->weight[0] == weight && takes_vector) uses |= USED_AS_VECTOR;
        if (node->weight[1] == weight) uses |= USED_AS_VECTOR;
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
            return fd_fail(err, FD_ERR_UNSUPPORTED, "weight %s: type %s has no kernel yet", w->name,
                           type ? type->name : "unknown");
        }
        if (uses & USED_AS_MATRIX) *bytes += matrix_bytes(w);
        if (uses & USED_AS_VECTOR) *bytes += vector_bytes(w);
    }
    return FD_OK;
}

/* ---- the way up: two pinned buffers, one being packed while the other is copied ---- */

enum { STAGES = 2, STAGE_BYTES = 32 << 20 };

typedef struct uploader {
    cudaStream_t stream;
    fd_block stage[STAGES];
    cudaEvent_t copied[STAGES];
    int next;
} uploader;

static fd_code uploader_open(uploader *up, const fd_graph *graph, cudaStream_t stream, fd_error *err) {
    size_t longest = STAGE_BYTES;
    *up = (uploader){.stream = stream};
    for (int32_t i = 0; i < graph->n_weight; i++) {
        const fd_weight *w = &graph->weights[i];
        size_t row = fd_can_pack(w->dtype) ? (size_t)fd_packed_row_bytes(w->dtype, w->n_col) : 0;
        size_t vector = sizeof(float) * (size_t)w->n_col;
        if (row > longest) longest = row;
        if (vector > longest) longest = vector;
    }
    for (int i = 0; i < STAGES; i++) {
        FD_TRY(fd_pinned_reserve(&up->stage[i], longest, "uploading weights", err));
        FD_TRY(fd_cuda_check(cudaEventCreateWithFlags(&up->copied[i], cudaEventDisableTiming), "event", err));
        FD_TRY(fd_cuda_check(cudaEventRecord(up->copied[i], stream), "event", err));
    }
    return FD_OK;
}

static void uploader_close(uploader *up) {
    (void)cudaStreamSynchronize(up->stream);
    for (int i = 0; i < STAGES; i++) {
        fd_pinned_free(&up->stage[i]);
        if (up->copied[i]) (void)cudaEventDestroy(up->copied[i]);
    }
}

/* The buffer to fill next, once its last copy is through. */
static fd_code stage_begin(uploader *up, char **to, fd_error *err) {
    *to = up->stage[up->next].data;
    return fd_cuda_check(cudaEventSynchronize(up->copied[up->next]), "upload of weights", err);
}

static fd_code stage_send(uploader *up, void *device, size_t size, fd_error *err) {
    int i = up->next;
    up->next = (i + 1) % STAGES;
    FD_TRY(fd_cuda_check(cudaMemcpyAsync(device, up->stage[i].data, size, cudaMemcpyHostToDevice, up->stream),
                         "upload of weights", err));
    return fd_cuda_check(cudaEventRecord(up->copied[i], up->stream), "upload of weights", err);
}

static fd_code upload_matrix(uploader *up, const fd_weight *w, char *device, fd_device_matrix *out, fd_error *err) {
    int64_t row_bytes = fd_packed_row_bytes(w->dtype, w->n_col), file_bytes = fd_dtype_row_bytes(w->dtype, w->n_col);
    int64_t at_once = (int64_t)up->stage[0].size / row_bytes;
    for (int64_t row = 0, n; row < w->n_row; row += n) {
        char *to;
        n = w->n_row - row < at_once ? w->n_row - row : at_once;
        FD_TRY(stage_begin(up, &to, err));
        for (int64_t r = 0; r < n; r++)
            fd_pack_row(w->dtype, w->n_col, (const char *)w->data + (row + r) * file_bytes, to + r * row_bytes);
        FD_TRY(stage_send(up, device + row * row_bytes, (size_t)(n * row_bytes), err));
    }
    *out = (fd_device_matrix){.data = device,
                              .dtype = w->dtype,
                              .n_row = w->n_row,
                              .n_col = w->n_col,
                              .row_bytes = row_bytes,
                              .scale_offset = fd_packed_scale_offset(w->dtype, w->n_col)};
    return FD_OK;
}

static fd_code upload_vector(uploader *up, const fd_weight *w, char *device, const float **out, fd_error *err) {
    int64_t file_bytes = fd_dtype_row_bytes(w->dtype, w->n_col);
    size_t row_bytes = sizeof(float) * (size_t)w->n_col;
    for (int64_t row = 0; row < w->n_row; row++) {
        char *to;
        FD_TRY(stage_begin(up, &to, err));
        fd_dequantize_row(w->dtype, (const char *)w->data + row * file_bytes, (float *)to, w->n_col);
        FD_TRY(stage_send(up, device + (size_t)row * row_bytes, row_bytes, err));
    }
    *out = (const float *)device;
    return FD_OK;
}

static fd_code upload_all(const fd_graph *graph, uploader *up, fd_device_weights *out, fd_error *err) {
    size_t at = 0;
    for (int32_t i = 0; i < graph->n_weight; i++) {
        const fd_weight *w = &graph->weights[i];
        int uses = uses_of(graph, i);
        if (uses & USED_AS_MATRIX) {
            FD_TRY(upload_matrix(up, w, (char *)out->block.data + at, &out->matrix[i], err));
            at += matrix_bytes(w);
        }
        if (uses & USED_AS_VECTOR) {
            FD_TRY(upload_vector(up, w, (char *)out->block.data + at, &out->vector[i], err));
            at += vector_bytes(w);
        }
    }
    return fd_cuda_check(cudaStreamSynchronize(up->stream), "upload of weights", err);
}

fd_code fd_weights_upload(const fd_graph *graph, cudaStream_t stream, fd_device_weights *out, fd_error *err) {
    uint64_t bytes;
    FD_TRY(fd_weights_bytes(graph, &bytes, err));
    FD_TRY(fd_device_alloc(&out->block, bytes, "the weights", err));
    out->matrix = calloc((size_t)graph->n_weight + 1, sizeof *out->matrix);
    out->vector = calloc((size_t)graph->n_weight + 1, sizeof *out->vector);
    if (!out->matrix || !out->vector) return fd_fail(err, FD_ERR_MEMORY, "weights: out of memory");
    uploader up;
    fd_code code = uploader_open(&up, graph, stream, err);
    if (code == FD_OK) code = upload_all(graph, &up, out, err);
    uploader_close(&up);
    return code;
}

void fd_weights_free(fd_device_weights *weights) {
    fd_device_free(&weights->block);
    free(weights->matrix);
    free(weights->vector);
    memset(weights, 0, sizeof *weights);
}
