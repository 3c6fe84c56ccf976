/* The graph's weights in device memory: matrices in the types' device layouts (kernels/formats/pack.h), vectors as binary32. */
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

/* Bytes they will take. FD_ERR_UNSUPPORTED names a matrix whose type no kernel reads. */
fd_code fd_weights_bytes(const fd_graph *graph, uint64_t *bytes, fd_error *err);

/* All cores read and rearrange, while what is ready is copied. */
fd_code fd_weights_upload(const fd_graph *graph, int32_t device, cudaStream_t stream, fd_device_weights *out,
                          fd_error *err);
void fd_weights_free(fd_device_weights *weights);

#endif
