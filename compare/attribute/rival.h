/* Another class than the one that was inferred: could its engine have left what departs? */
#ifndef FD_COMPARE_ATTRIBUTE_RIVAL_H
#define FD_COMPARE_ATTRIBUTE_RIVAL_H

#include "compare/attribute/attribution.h"

/* Nothing of the trace departs from `rival`, and the errors at `finding` are as large as it leaves (typical.h); numerics, ref,
 * on_row and progress of the options are ignored. */
fd_code fd_rival_explains(const fd_attribution_options *options, const fd_node_finding *finding,
                          const fd_numerics_class *rival, bool *yes, fd_error *err);

#endif
