/* Is what a product's row departs by one value of its input that went to the other side of a step? */
#ifndef FD_COMPARE_ATTRIBUTE_ONE_VALUE_H
#define FD_COMPARE_ATTRIBUTE_ONE_VALUE_H

#include "compare/attribute/attribution.h"

/* *yes: of a product with a weight, and what is left of the finding's row lies along one column of that weight. `options` are the side's,
 * with its class. */
fd_code fd_is_one_value(const fd_attribution_options *options, const fd_node_finding *finding, bool *yes,
                        fd_error *err);

#endif
