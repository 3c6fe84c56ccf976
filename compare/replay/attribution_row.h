/* One row of one node: which elements lie beyond their bounds, and how much of the error is introduced and
 * inherited. */
#ifndef FD_COMPARE_REPLAY_ATTRIBUTION_ROW_H
#define FD_COMPARE_REPLAY_ATTRIBUTION_ROW_H

#include "compare/replay/attribution.h"

/* Beyond this part of the tensor's own size, τ of a span says nothing: it could hide an error in any of its ops. */
#define FD_INCONCLUSIVE_SPAN 0.5

/* growth [2], may be NULL: Σ(c − r)² and Σ r² of the row are added. */
fd_node_finding fd_attribute_row(const fd_attribution_row *row, double *growth);

/* No element is beyond, but the bound of the span that ends here would hide an error of the tensor's own size. */
bool fd_row_is_inconclusive(const fd_attribution_row *row, const fd_node_finding *finding);

#endif
