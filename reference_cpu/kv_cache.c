/* KV_WRITE: the row of position p becomes row p of the cache. An item is a position.
 *
 * row_offset is 0 in every real model; a fault shifts it, and a row that falls outside the cache is dropped. */
#include "reference_cpu/real.h"

#include <string.h>

void REF(kv_write)(const fd_op_args *args, int64_t begin, int64_t end) {
    int64_t width = fd_node_width(args->node);

    for (int64_t row = begin; row < end; row++) {
        int64_t to = (int64_t)args->pos0 + row + args->node->row_offset;
        if (to < 0 || to >= fd_ref_cache_rows(args)) continue;
        memcpy((real *)args->out + to * width, (const real *)args->in[0] + row * width, sizeof(real) * (size_t)width);
    }
}
