/* Rows of random weights for make-model: each element is a function of (stream, element), so no weight has to be held
 * in memory, and the values depend on no number of threads. */
#ifndef FD_MODEL_RANDOM_WEIGHTS_H
#define FD_MODEL_RANDOM_WEIGHTS_H

#include <stdint.h>

#include "base/status.h"

typedef struct random_weights { /* one tensor's */
    uint32_t dtype;
    int64_t columns;
    uint64_t stream; /* random_stream */
    float mean, deviation;
} random_weights;

/* Of a tensor: those of one model do not repeat each other. */
uint64_t random_stream(uint64_t seed, const char *name);

/* Rows row0 … row0 + n_row - 1 of `user`, a random_weights, as a file holds them: what fd_gguf_put_tensor asks for.
 * Types that fd_quantize_row knows get normal values, the others random quants of the same deviation. */
fd_code random_weights_fill(void *user, int64_t row0, int64_t n_row, void *to, fd_error *err);

#endif
