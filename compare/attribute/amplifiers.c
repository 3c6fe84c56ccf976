/* How much errors grow in an op. */
#include <math.h>

#include "compare/attribute/attribution_row.h"

static double relative_error(const double *growth, int32_t node) {
    const double *g = &growth[2 * node];
    return g[1] > 0 ? sqrt(g[0] / g[1]) : 0;
}

/* Relative error out over the largest relative error in; -1: not known. */
static double growth_of(const fd_graph *graph, const double *growth, int32_t id) {
    const fd_node *node = &graph->nodes[id];
    double in = 0;
    for (int k = 0; k < FD_MAX_INPUTS; k++)
        if (node->input[k] >= 0) in = fmax(in, relative_error(growth, node->input[k]));
    return in > 0 && growth[2 * id + 1] > 0 ? relative_error(growth, id) / in : -1;
}

/* What growth is usual for the op of node `id`: the third largest of its other nodes, as robust here as their
 * median, which would need a list. Infinite with fewer than three. */
static double usual_growth(const fd_graph *graph, const double *growth, int32_t id) {
    double largest[3] = {-1, -1, -1};
    for (int32_t k = 0; k < graph->n_node; k++) {
        double own = k != id && graph->nodes[k].op == graph->nodes[id].op ? growth_of(graph, growth, k) : -1;
        for (int m = 0; m < 3; m++)
            if (own > largest[m]) {
                double pushed = largest[m];
                largest[m] = own;
                own = pushed;
            }
    }
    return largest[2] < 0 ? INFINITY : largest[2];
}

bool fd_amplifies(const fd_graph *graph, const double *growth, int32_t node) {
    double own = growth_of(graph, growth, node);
    return own > 10 && own > 10 * usual_growth(graph, growth, node);
}
