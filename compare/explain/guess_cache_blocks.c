/* A cache that is kept in blocks of 32, whose blocks are written or read with another scale, or with their parts exchanged. */
#include <stdlib.h>
#include <string.h>

#include "compare/bounds/bounds.h"
#include "compare/explain/guesses.h"
#include "compare/hypothesis/internal.h"
#include "model/gguf/quant.h"

enum { BLOCK = 32 };

static const char *const words[FD_N_CACHE_BLOCKS] = {
    [FD_BLOCKS_SCALE_BEFORE] = "each has the scale of the one before",
    [FD_BLOCKS_SCALE_NEXT] = "each has the scale of the next one",
    [FD_BLOCKS_SCALE_FIRST] = "all have the scale of the row's first",
    [FD_BLOCKS_NIBBLES] = "the two nibbles of a byte are exchanged",
    [FD_BLOCKS_HALVES] = "the two halves of the quants are exchanged",
    [FD_BLOCKS_LAST_MISSING] = "a row's last is zero",
};

const char *fd_cache_blocks_text(int rule) {
    return words[rule];
}

/* A block is its scale, in some types a minimum, high bits, and last the quants. */
static void edit_row(int rule, uint8_t *blocks, int64_t n_block, int64_t size) {
    const int64_t n_quant = size == fd_dtype_get(FD_Q8_0)->block_bytes ? BLOCK : BLOCK / 2;
    for (int64_t b = n_block - 1; b > 0 && rule == FD_BLOCKS_SCALE_BEFORE; b--)
        memcpy(blocks + b * size, blocks + (b - 1) * size, 2);
    for (int64_t b = 0; b + 1 < n_block && rule == FD_BLOCKS_SCALE_NEXT; b++)
        memcpy(blocks + b * size, blocks + (b + 1) * size, 2);
    for (int64_t b = 1; b < n_block && rule == FD_BLOCKS_SCALE_FIRST; b++) memcpy(blocks + b * size, blocks, 2);
    for (int64_t b = 0; b < n_block; b++) {
        uint8_t *quants = blocks + (b + 1) * size - n_quant, first[BLOCK / 2];
        for (int64_t i = 0; i < n_quant && rule == FD_BLOCKS_NIBBLES && n_quant < BLOCK; i++)
            quants[i] = (uint8_t)(quants[i] << 4 | quants[i] >> 4);
        if (rule != FD_BLOCKS_HALVES) continue;
        memcpy(first, quants, (size_t)n_quant / 2);
        memcpy(quants, quants + n_quant / 2, (size_t)n_quant / 2);
        memcpy(quants + n_quant / 2, first, (size_t)n_quant / 2);
    }
    if (rule == FD_BLOCKS_LAST_MISSING) memset(blocks + (n_block - 1) * size, 0, (size_t)size);
}

void fd_cache_blocks(int rule, uint32_t type, float *rows, int64_t n_row, int64_t width) {
    if (!fd_kv_is_quantised(type) || width % BLOCK != 0) return;
    const int64_t size = fd_dtype_get(type)->block_bytes;
    uint8_t *blocks = malloc((size_t)(width / BLOCK * size));
    for (int64_t r = 0; r < n_row && blocks; r++) {
        fd_quantize_row(type, rows + r * width, blocks, width);
        edit_row(rule, blocks, width / BLOCK, size);
        fd_dequantize_row(type, blocks, rows + r * width, width);
    }
    free(blocks);
}

/* Of K and V, then of one of them. */
fd_code fd_guess_cache_blocks(fd_trial *t, fd_error *err) {
    const fd_node *nodes = t->all.request->args.graph->nodes;
    int32_t readers[3] = {-1};
    int n = 1, n_reader = 0;
    if (t->all.request->k_type == FD_F32 && t->all.request->v_type == FD_F32) return FD_OK;
    for (int32_t i = t->n_span - 1; i >= 0; i--)
        if (fd_reads_kv_cache(&nodes[t->span[i]]) && n < 3) readers[n++] = t->span[i];
    n_reader = n - 1;
    for (int k = n_reader == 2 ? 0 : 1; k < n; k++)
        for (int rule = 0; rule < FD_N_CACHE_BLOCKS && !fd_trial_fits(t); rule++) {
            const fd_hypothesis h = {.guess = FD_GUESS_CACHE,
                                     .node = readers[k],
                                     .layer = FD_ANY_LAYER,
                                     .which = FD_CACHE_BLOCKS,
                                     .n = rule};
            FD_TRY(fd_trial_try(t, &h, err));
        }
    return FD_OK;
}
