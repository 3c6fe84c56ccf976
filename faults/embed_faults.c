/* Embedding bugs: another row, another layout, or a scale that this model does not have. */
#include "faults/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf/quant.h"

static void lookup(const fd_op_args *args, int64_t token_offset, float scale) {
    const fd_weight *table = args->weight[0];
    for (int32_t r = 0; r < args->n_pos; r++) {
        float *y = (float *)args->out + r * table->n_col;
        float *row = fd_fault_row(table, (args->tokens[r] + token_offset) % table->n_row);
        for (int64_t i = 0; i < table->n_col; i++) y[i] = row ? row[i] * scale : NAN;
        free(row);
    }
}

FD_OVERRIDE(next_row, lookup(args, 1, 1.0f))
FD_OVERRIDE(scaled_by_sqrt_d, lookup(args, 0, sqrtf((float)args->weight[0]->n_col)))

/* Position 0 is where a BOS stands: its row was added to the vocabulary and never loaded, or is taken for padding. */
static void first_is_zero(const fd_op_args *args) {
    lookup(args, 0, 1.0f);
    for (int64_t i = 0; args->pos0 == 0 && i < args->weight[0]->n_col; i++) ((float *)args->out)[i] = 0.0f;
}

/* Element i of token t from flat[i·n_vocab + t]: the table taken as [n_embd, n_vocab]. */
static void by_column(const fd_op_args *args) {
    const fd_weight *table = args->weight[0];
    int32_t block = fd_dtype_get(table->dtype)->block_elements;
    int64_t row_bytes = fd_dtype_row_bytes(table->dtype, table->n_col);
    int32_t block_bytes = fd_dtype_get(table->dtype)->block_bytes;
    float values[256]; /* the longest block */
    for (int32_t r = 0; r < args->n_pos; r++)
        for (int64_t i = 0; i < table->n_col; i++) {
            int64_t at = i * table->n_row + args->tokens[r], row = at / table->n_col, col = at % table->n_col;
            const char *from = (const char *)table->data + row * row_bytes + col / block * block_bytes;
            fd_dequantize_row(table->dtype, from, values, block);
            ((float *)args->out)[r * table->n_col + i] = values[col % block];
        }
}

/* token_embd_scaled of the architectures that have it. */
FD_EDIT(scale_missing, node->scale = 1.0f)
FD_EDIT(scale_twice, node->scale *= node->scale)

/* A learned position, added to the embedding. */
static void position_one_further(const fd_op_args *args) {
    const fd_weight *table = args->weight[0];
    for (int32_t p = 0; p < args->n_pos; p++) {
        int64_t at = args->pos0 + p + 1;
        float *row = at < table->n_row ? fd_fault_row(table, at) : NULL;
        for (int64_t i = 0; i < table->n_col; i++)
            ((float *)args->out)[p * table->n_col + i] =
                row ? ((const float *)args->in[0])[p * table->n_col + i] + row[i] : NAN;
        free(row);
    }
}

#define POSITION(name, summary) .info = {name, "embedding", summary, "inp_pos", true}, .op = FD_OP_ADD_POSITION

#define EMBED_SCALE(name, summary)                                                                                     \
    .info = {name, "embedding", summary, "token_embd_scaled", true}, .op = FD_OP_SCALE, .nodes = "token_embd_scaled"
#define EMBED(name, summary) .info = {name, "embedding", summary, "token_embd", true}, .op = FD_OP_EMBED

static const fd_fault rows[] = {
    {EMBED("embed_by_column", "the embedding is gathered by column: the table is taken as [n_embd, n_vocab]"),
     .override = by_column},
    {EMBED("embed_scaled", "the rows of the embedding are scaled by sqrt(n_embd) where they are read"),
     .override = scaled_by_sqrt_d},
    {EMBED_SCALE("embed_scale_missing", "the embedding is not scaled, though this architecture does it"),
     .edit = scale_missing},
    {EMBED_SCALE("embed_scale_twice", "the embedding is scaled twice"), .edit = scale_twice},
    {EMBED("embed_next_row", "the row of token + 1 is taken"), .override = next_row},
    {EMBED("embed_special_zero", "the row of the first token, where a BOS stands, is zero"), .override = first_is_zero},
    {POSITION("position_missing", "no position is added to the embedding"), .override = fd_fault_copy},
    {POSITION("position_one_further", "the row of position + 1 is added to the embedding"),
     .override = position_one_further},
};
const fd_fault_family fd_embed_faults = FD_FAULT_FAMILY(rows);
