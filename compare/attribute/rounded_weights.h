/* The model with the weights of some nodes in 16 bits, as an engine of such tensors holds them. */
#ifndef FD_COMPARE_ATTRIBUTE_ROUNDED_WEIGHTS_H
#define FD_COMPARE_ATTRIBUTE_ROUNDED_WEIGHTS_H

#include "model/graph.h"

typedef struct fd_rounded_weights {
    fd_graph *graph; /* to be replayed; owned */
    uint32_t type;   /* FD_F16, FD_BF16 */
    void **rows;     /* [n_weight] NULL: as in the file; owned */
} fd_rounded_weights;

/* Of an engine whose results have that unit roundoff. Freed with fd_rounded_weights_free, also after a failure. */
fd_code fd_rounded_weights_open(const fd_graph *graph, double u, fd_rounded_weights *out, fd_error *err);
void fd_rounded_weights_free(fd_rounded_weights *weights);

/* Rounds the weights that these nodes [n_node] read, and that are not yet. */
fd_code fd_rounded_weights_add(fd_rounded_weights *weights, const bool *nodes, fd_error *err);

#endif
