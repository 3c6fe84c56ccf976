/* ROPE: pair i of every head turns by the angle of its position, (a, b) → (a·c − b·s, a·s + b·c). One item a position.
 *
 * Contract:  a' = fma(a, c, −(b·s))     b' = fma(a, s, b·c)
 * each a product rounded once and a fused multiply-add; c and s from the shared tables (model/rope_table.c), column i.
 * Interleaved pairs are (2i, 2i+1), half pairs (i, i + n_rot/2). Elements past n_rot are copied. */
#include "reference_cpu/real.h"

void REF(rope)(const fd_op_args *args, int64_t begin, int64_t end) {
    const fd_node *node = args->node;
    int32_t n_head = node->shape[0], head_dim = node->shape[1], half = node->rope.n_rot / 2;
    bool interleaved = node->rope.pairing == FD_ROPE_INTERLEAVED;

    for (int64_t row = begin; row < end; row++) {
        const real *cosine = (const real *)args->rope_cos + (args->pos0 + row) * half;
        const real *sine = (const real *)args->rope_sin + (args->pos0 + row) * half;
        for (int32_t head = 0; head < n_head; head++) {
            const real *x = (const real *)args->in[0] + (row * n_head + head) * head_dim;
            real *y = (real *)args->out + (row * n_head + head) * head_dim;
            for (int32_t i = 0; i < half; i++) {
                int32_t first = interleaved ? 2 * i : i, second = interleaved ? 2 * i + 1 : i + half;
                real a = x[first], b = x[second], c = cosine[i], s = sine[i];
                y[first] = real_fma(a, c, -(b * s));
                y[second] = real_fma(a, s, b * c);
            }
            for (int32_t i = 2 * half; i < head_dim; i++) y[i] = x[i];
        }
    }
}
