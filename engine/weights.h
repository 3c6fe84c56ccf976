/* The graph's weights in device memory: matrices in the types' device layouts (kernels/formats/pack.h), vectors as
 * binary32. */
#ifndef FD_ENGINE_WEIGHTS_H
#define FD_ENGINE_WEIGHTS_H

#include "engine/memory.h"
#include "kernels/formats/pack.h"
#include "model/graph.h"

typedef struct fd_device_weights {
    fd_block block;           /* all of them */
    fd_device_matrix *matrix; /* [n_weight]; data is NULL where no node uses the weight as a matrix */
    const float **vector;     /* [n_weight], device [n_col]; NULL where no node uses it as a vector */
} fd_device_weights;

/* Where a weight's rows are in the file: row i is at data + (i / run * period + i % run) * stride. All of a matrix:
 * one run. Of one that several GPUs share: a run of each expert's rows. */
typedef struct fd_weight_runs {
    int64_t run, period; /* rows */
    int64_t stride;      /* bytes */
} fd_weight_runs;

static inline fd_weight_runs fd_weight_whole(const fd_weight *w) {
    return (fd_weight_runs){w->n_row, w->n_row, fd_dtype_row_bytes(w->dtype, w->n_col)};
}

/* Bytes they will take. FD_ERR_UNSUPPORTED names a matrix whose type no kernel reads. */
fd_code fd_weights_bytes(const fd_graph *graph, uint64_t *bytes, fd_error *err);

/* All cores read and rearrange, while what is ready is copied. `rows` [n_weight]; NULL: all of every weight. */
fd_code fd_weights_upload(const fd_graph *graph, const fd_weight_runs *rows, int32_t device, cudaStream_t stream,
                          fd_device_weights *out, fd_error *err);
void fd_weights_free(fd_device_weights *weights);

#endif
