/* KV_WRITE: the row of position p becomes row p of the cache, rounded where the cache has a type of its own. An item is
 * a position.
 *
 * row_offset is 0 in every real model; a fault shifts it, and a row that falls outside the cache is dropped. */
#include "reference_cpu/real.h"
#include "model/gguf/quant.h"

#include <string.h>

/* Blocks have no room for a value that is not finite: it leaves its row as it is. */
static void round_row(uint32_t type, real *row, int64_t n) {
    enum { PIECE = 256 };
    const bool has_blocks = fd_dtype_get(type)->block_elements > 1;
    float x[PIECE];
    for (int64_t i = 0; i < n && has_blocks; i++)
        if (!isfinite((float)row[i])) return;
    for (int64_t at = 0; at < n; at += PIECE) {
        int64_t count = n - at < PIECE ? n - at : PIECE;
        for (int64_t i = 0; i < count; i++) x[i] = (float)row[at + i];
        fd_round_through(type, x, count);
        for (int64_t i = 0; i < count; i++) row[at + i] = (real)x[i];
    }
}

void REF(kv_write)(const fd_op_args *args, int64_t begin, int64_t end) {
    int64_t width = fd_node_width(args->node);

    for (int64_t row = begin; row < end; row++) {
        int64_t at = (int64_t)args->pos0 + row + args->node->row_offset;
        if (at < 0 || at >= fd_ref_cache_rows(args)) continue;
        real *to = (real *)args->out + at * width;
        memcpy(to, (const real *)args->in[0] + row * width, sizeof(real) * (size_t)width);
        if (args->node->kv_type != FD_F32) round_row(args->node->kv_type, to, width);
    }
}
