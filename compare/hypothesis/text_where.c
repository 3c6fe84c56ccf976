/* Where a hypothesis holds, after what it says: in one layer, on one rank, in some elements or heads. */
#include <stdio.h>
#include <string.h>

#include "compare/hypothesis/internal.h"

/* A tensor-parallel engine's ranks. Parts of what experts make are those that each row chose: of these, the last half. */
static void rank_text(const fd_hypothesis *h, const fd_graph *graph, char *to, size_t size) {
    const bool moe = h->guess == FD_GUESS_FAULT && strcmp(fd_fault_at(h->fault)->family, "moe") == 0;
    int32_t n = 0;
    for (int32_t i = 0; i < graph->n_node && moe && n == 0; i++)
        if (graph->nodes[i].op == FD_OP_EXPERT_MATMUL) n = graph->nodes[i].shape[0];
    if (n < h->n_rank) {
        snprintf(to, size, " (on rank %d of %d ranks alone)", h->rank, h->n_rank);
        return;
    }
    const int32_t first = (h->rank * n + h->n_rank - 1) / h->n_rank;
    const int32_t end = ((h->rank + 1) * n + h->n_rank - 1) / h->n_rank;
    if (end - first == 1)
        snprintf(to, size, " (number %d alone of the %d experts that each row chose)", end, n);
    else
        snprintf(to, size, " (numbers %d to %d alone of the %d experts that each row chose)", first + 1, end, n);
}

static void heads_text(uint64_t heads, char *to, size_t size) {
    size_t at = (size_t)snprintf(to, size, " (head%s", heads & (heads - 1) ? "s" : "");
    for (int i = 0, n = 0; i < 64 && at + 8 < size; i++)
        if (heads >> i & 1) at += (size_t)snprintf(to + at, size - at, "%s %d", n++ ? "," : "", i);
    if (at < size) snprintf(to + at, size - at, " alone)");
}

void fd_hypothesis_where_text(const fd_hypothesis *h, const fd_graph *graph, char *to, size_t size) {
    to[0] = '\0';
    const bool says_layer = h->guess == FD_GUESS_WEIGHT && !h->kind[0];
    if (h->node < 0 && h->layer >= 0 && !says_layer) snprintf(to, size, ", in layer %d", h->layer);
    if (h->node < 0 && h->n_dim)
        snprintf(to + strlen(to), size - strlen(to), ", at the norms of %s",
                 h->n_dim == 1 ? "whole rows" : "Q's and K's heads");
    if (h->n_rank) rank_text(h, graph, to + strlen(to), size - strlen(to));
    if (h->to) snprintf(to + strlen(to), size - strlen(to), " (elements %d…%d alone)", h->from, h->to - 1);
    if (h->heads) heads_text(h->heads, to + strlen(to), size - strlen(to));
}
