/* One row of one node: which elements lie beyond their bounds, and how much of the error is introduced and
 * inherited. */
#ifndef FD_COMPARE_ATTRIBUTE_ATTRIBUTION_ROW_H
#define FD_COMPARE_ATTRIBUTE_ATTRIBUTION_ROW_H

#include "compare/attribute/attribution.h"

/* Beyond this part of the tensor's own size, τ of a span says nothing: it could hide an error in any of its ops. */
#define FD_INCONCLUSIVE_SPAN 0.5

/* growth [2], may be NULL: Σ(c − r)² and Σ r² of the row are added. */
fd_node_finding fd_attribute_row(const fd_attribution_row *row, double *growth);

/* Nobody knows what the node, or one from span_first on, which it was replayed through, was computed with. */
bool fd_is_unattributable(const fd_attribution_options *options, int32_t node, int32_t span_first);

/* By step, then node, then position. */
bool fd_finding_earlier(const fd_node_finding *a, const fd_node_finding *b);

/* Keeps the first of its node, the first of all, and the first at a later node. */
void fd_note_introduced(fd_attribution *out, const fd_node_finding *finding);

/* The relative error grew ten times more in this node than it does in other nodes of its op. growth [n_node, 2]: Σ(c − r)² and
 * Σ r². */
bool fd_amplifies(const fd_graph *graph, const double *growth, int32_t node);

/* No element is beyond, but the bound of the span that ends here would hide an error of the tensor's own size. */
bool fd_row_is_inconclusive(const fd_attribution_row *row, const fd_node_finding *finding);

#endif
