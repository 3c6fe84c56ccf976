/* EMBED: out[r] = table[token[r]]. An item is a position. */
#include "reference_cpu/real.h"
#include "model/weight_rows.h"

void REF(embed)(const fd_op_args *args, int64_t begin, int64_t end) {
    const fd_weight *table = args->weight[0];
    float piece[FD_PIECE];

    for (int64_t r = begin; r < end; r++) {
        real *y = (real *)args->out + r * table->n_col;
        for (int64_t at = 0; at < table->n_col; at += FD_PIECE) {
            fd_weight_piece(table, args->tokens[r], at, piece);
            for (int64_t i = 0; i < fd_piece_length(table->n_col, at); i++) y[at + i] = (real)piece[i];
        }
    }
}
