/* RoPE turns pairs and leaves their lengths as they are, and so every head's, whatever angles, base, pairs or dimensions an engine
 * takes. A tensor whose heads all have the lengths of Q or K, and none of their directions, is what RoPE gave. */
#include <math.h>
#include <stdio.h>
#include <string.h>

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

/* What rounding leaves of a direction is nearer. */
static const double SAME_DIRECTION = 1e-4;

static bool is_input_of(const fd_proposer *p, int32_t node, int32_t of) {
    return strcmp(fd_trace_node_at(p->ref, node)->name, fd_trace_node_at(p->ref, of)->inputs[0]) == 0;
}

/* RoPE leaves elements where they stand: those of Q that are in another order in their heads are so behind it. Lengths do not say it. */
static void take_order(const fd_proposer *p, fd_proposed *item) {
    const fd_trace_node *node = fd_trace_node_at(p->ref, item->best[0].node);
    const char *of = node->inputs[0], *own = item->best[0].ops;
    const size_t n = strlen(own);
    const int32_t known = fd_trace_find(p->ref, of);
    if (strstr(own, "interleave")) return;
    if (known >= 0 && p->known_turned[known]) {
        snprintf(item->best[0].ops + n, FD_PROPOSE_MAX_OPS - n, "%sreshape=-1 heads=%lld interleave", n ? " " : "",
                 (long long)node->shape[0]);
        return;
    }
    for (size_t i = 0; i < p->n; i++) {
        const fd_proposed *input = &p->items[i];
        if (input == item || !fd_propose_has_values_of(p, input, of)) continue;
        const char *order = strstr(input->best[0].ops, "reshape=-1 heads=");
        if (!order || n + strlen(order) + 2 > FD_PROPOSE_MAX_OPS) continue;
        snprintf(item->best[0].ops + n, FD_PROPOSE_MAX_OPS - n, "%s%s", n ? " " : "", order);
        return;
    }
}

/* Q's and K's own directions, but not quite, are those of a small angle. */
static void take(const fd_proposer *p, fd_proposed *item) {
    const int32_t node = item->turned_as.node;
    const bool nearly = item->clear && item->best[0].away > SAME_DIRECTION && is_input_of(p, item->best[0].node, node);
    if ((item->clear && !nearly) || fd_propose_is_named(p, node, item)) return;
    double away = 2;
    size_t at = FD_PROPOSE_KEEP - 1; /* where it stands already, or the last one's place */
    for (size_t i = 0; i < FD_PROPOSE_KEEP; i++)
        if (item->best[i].node == node) {
            away = item->best[i].away;
            at = i;
        }
    memmove(&item->best[1], &item->best[0], at * sizeof *item->best);
    item->best[0] = item->turned_as;
    item->best[0].away = away;
    take_order(p, item);
    item->turned = item->clear = item->matched = true;
    item->part_first = item->part_last = -1;
}

/* Elements that stand elsewhere in their head have its length before RoPE and behind it: of two such names either may be that node. */
static bool is_alone(const fd_proposer *p, const fd_proposed *item) {
    for (size_t i = 0; i < p->n; i++) {
        const fd_proposed *other = &p->items[i];
        if (other != item && !other->clear && other->turned_as.node == item->turned_as.node) return false;
    }
    return true;
}

void fd_propose_take_turned(fd_proposer *p) {
    for (size_t i = 0; i < p->n; i++)
        if (p->items[i].turned_as.node >= 0 && is_alone(p, &p->items[i])) take(p, &p->items[i]);
}
