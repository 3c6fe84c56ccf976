#include "dumpers/client/blocks.h"

enum { GAPS = 4 }; /* a block is copied whole when its elements fill a quarter of it */

fd_tracer_blocks fd_tracer_blocks_of(const fd_tracer_view *view) {
    fd_tracer_blocks out = {.n_axis = 1 + view->n_dim, .n = {view->n_row}, .stride = {view->row_stride}, .n_block = 1};
    for (int d = 0; d < view->n_dim && d < FD_TRACER_ROW_DIM; d++) {
        out.n[1 + d] = view->shape[d];
        out.stride[1 + d] = view->stride[d];
    }
    for (;; out.n_outer++) {
        int64_t elements = 1;
        out.block = 1;
        for (int a = out.n_outer; a < out.n_axis && a <= FD_TRACER_ROW_DIM; a++) {
            elements *= out.n[a];
            out.block += (out.n[a] - 1) * out.stride[a];
        }
        if (out.block / GAPS <= elements || out.n_outer == out.n_axis - 1) return out;
        out.n_block *= out.n[out.n_outer];
    }
}

int64_t fd_tracer_block_offset(const fd_tracer_blocks *blocks, int64_t block) {
    int64_t offset = 0;
    for (int a = blocks->n_outer - 1; a >= 0; a--) {
        offset += block % blocks->n[a] * blocks->stride[a];
        block /= blocks->n[a];
    }
    return offset;
}

fd_tracer_view fd_tracer_blocks_view(const fd_tracer_view *view, const fd_tracer_blocks *blocks, const char *data) {
    fd_tracer_view out = *view;
    int64_t stride = blocks->block;
    out.data = data;
    for (int a = blocks->n_outer - 1; a >= 0; a--) {
        *(a == 0 ? &out.row_stride : &out.stride[a - 1]) = stride;
        stride *= blocks->n[a];
    }
    return out;
}
