/* Rows of a weight as binary32, dequantised piece by piece, so that an op needs no memory of its own. */
#ifndef FD_MODEL_WEIGHT_ROWS_H
#define FD_MODEL_WEIGHT_ROWS_H

#include <string.h>

#include "model/graph.h"
#include "model/gguf/quant.h"

/* A multiple of every format's block (32, 64, 128, 256) and of the contract's 64 partial sums. */
enum { FD_PIECE = 256 };

static inline int64_t fd_piece_length(int64_t n, int64_t at) {
    return n - at < FD_PIECE ? n - at : FD_PIECE;
}

/* Elements [at, at + FD_PIECE) of a row, or up to its end; `at` is a multiple of FD_PIECE. */
static inline void fd_weight_piece(const fd_weight *w, int64_t row, int64_t at, float out[FD_PIECE]) {
    int64_t offset = row * fd_dtype_row_bytes(w->dtype, w->n_col) + fd_dtype_row_bytes(w->dtype, at);
    fd_dequantize_row(w->dtype, (const char *)w->data + offset, out, fd_piece_length(w->n_col, at));
}

/* A whole row, into out [n_col]. */
static inline void fd_weight_row(const fd_weight *w, int64_t row, float *out) {
    const int64_t offset = row * fd_dtype_row_bytes(w->dtype, w->n_col);
    fd_dequantize_row(w->dtype, (const char *)w->data + offset, out, w->n_col);
}

/* Element i of a row (its block is decoded: one element for the float formats). Biases and norms are binary32 in most
 * files, and are read an element at a time: theirs need no division by a block's length. */
static inline float fd_weight_row_element(const fd_weight *w, int64_t row, int64_t i) {
    if (w->dtype == FD_F32) {
        float value;
        memcpy(&value, (const char *)w->data + (row * w->n_col + i) * (int64_t)sizeof value, sizeof value);
        return value;
    }
    int64_t block = fd_dtype_get(w->dtype)->block_elements, first = i - i % block;
    int64_t offset = row * fd_dtype_row_bytes(w->dtype, w->n_col) + fd_dtype_row_bytes(w->dtype, first);
    float values[FD_PIECE];
    fd_dequantize_row(w->dtype, (const char *)w->data + offset, values, block);
    return values[i - first];
}

/* Element i of a one-row weight. */
static inline float fd_weight_element(const fd_weight *w, int64_t i) {
    return fd_weight_row_element(w, 0, i);
}

#endif
