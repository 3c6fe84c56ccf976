/* Classes that repeat an engine's roundings: a factor of a product becomes binary16 or an int8 block, in the engine and in
 * the replay alike, but for a value that lies so near the middle between two steps that binary32's own error takes it to
 * the other side. Of a wide row one does, as a rule, and then the whole row of the product has an error of the step's
 * size over √width. Through a layer that is what a sound run leaves. */
#ifndef FD_COMPARE_ATTRIBUTE_STEPS_H
#define FD_COMPARE_ATTRIBUTE_STEPS_H

#include "compare/attribute/attribution.h"

/* What such values may leave of most rows of `node`, relative to the row: twice the widest step among the products
 * between its recorded inputs and itself, or of blocks that K or V is kept in (options->kv_type; NULL: as the trace says). 0: of these rows few
 * have one.
 * `whole` [n_node]: recorded at every position (plan.h).
 * *sums: of a class whose sums of V live in 16 bits, what these leave of a row with one key, where the node is such a sum or is computed
 * through one that was not recorded; else 0. */
double fd_steps_leave(const fd_attribution_options *options, const bool *whole, int32_t node, double *sums);

#endif
