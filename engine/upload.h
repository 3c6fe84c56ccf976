/* Rows of weights on their way to the device: threads read and rearrange them into pinned buffers, two each, so that
 * one is filled while the other is copied. */
#ifndef FD_ENGINE_UPLOAD_H
#define FD_ENGINE_UPLOAD_H

#include "engine/memory.h"
#include "model/graph.h"

/* Neighbouring rows of one weight. */
typedef struct fd_upload_piece {
    const fd_weight *weight;
    bool as_vector;   /* binary32 elements; else packed as kernels/formats/pack.h says */
    const char *from; /* the first of them in the file */
    int64_t stride;   /* bytes from row to row there */
    int64_t n_row;
    char *to; /* device: where the first one goes */
} fd_upload_piece;

/* Bytes of one row on the device. */
size_t fd_upload_row_bytes(const fd_weight *weight, bool as_vector);

/* Rows that make a piece of good size: some 2 MiB, at least one row. */
int64_t fd_upload_piece_rows(const fd_weight *weight, bool as_vector);

/* Returns when all are on the device. Uses all cores. FD_ERR_MEMORY: no pinned memory; FD_ERR_DEVICE: a copy failed. */
fd_code fd_upload(const fd_upload_piece *pieces, int64_t n_piece, int32_t device, cudaStream_t stream, fd_error *err);

#endif
