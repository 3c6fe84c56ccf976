/* RoPE turns pairs and leaves their lengths as they are, and so every head's, whatever angles, base, pairs or dimensions an engine
 * takes. A tensor whose heads all have the lengths of Q or K, and none of their directions, is what RoPE gave. */
#include <math.h>

#include "dumpers/import/propose/score.h"

/* Lengths agree: bfloat16 tensors of 32 elements a head do to 3e-4. */
static const double SAME_LENGTH = 2e-3;
/* Heads that are normed and have one weight are all of a length: that says nothing. */
static const double LEAST_SPREAD = 0.02;

bool fd_propose_is_turned(const fd_trace_node *node) {
    return strcmp(node->op, "rope") == 0 && node->n_dim >= 2;
}

void fd_lengths_add(fd_lengths *l, const fd_sample *ref, const fd_trace_node *node, const double *x) {
    const int64_t d = node->shape[node->n_dim - 1];
    for (int64_t at = 0; at + d <= ref->n; at += d) {
        double own = 0, of = 0;
        for (int64_t i = at; i < at + d; i++) {
            own += x[i] * x[i];
            of += (double)ref->values[i] * (double)ref->values[i];
        }
        const double length = sqrt(of), ratio = sqrt(own / of);
        l->least = l->n == 0 || ratio < l->least ? ratio : l->least;
        l->most = l->n == 0 || !(ratio <= l->most) ? ratio : l->most; /* a NaN stays */
        l->sum += length;
        l->squares += length * length;
        l->n++;
    }
}

bool fd_lengths_agree(const fd_lengths *l, double *factor) {
    const double mean = l->sum / (double)l->n, spread = sqrt(fmax(0, l->squares / (double)l->n - mean * mean));
    *factor = fabs(l->most - 1) <= 0.01 ? 1 : 1 / l->most;
    return l->n > 1 && l->least > 0 && l->most / l->least - 1 <= SAME_LENGTH && spread >= LEAST_SPREAD * mean;
}
