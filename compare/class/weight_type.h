/* Weights that an engine converts to 16 bits as it loads the file, all of them, and multiplies in binary32: norms' and the embedding's
 * are rounded as those of products are, which classes of 16-bit factors do not do. No slope tells such weights, as it does of integers
 * (weights/requantised.h), so the whole run is judged by them. */
#ifndef FD_COMPARE_CLASS_WEIGHT_TYPE_H
#define FD_COMPARE_CLASS_WEIGHT_TYPE_H

#include "compare/attribute/attribution.h"

/* `of`: as judged in a class that was inferred. Where that has products of coarse factors, or the file's matrices are of 16 bits, and nothing departs from an engine of
 * binary32 whose weights are of such a type, `to` says so in words; "": else. *other: some of what departs is such weights, the first of it
 * among them, and this node is the first that departs all the same: the place of a bug; else -1. `how`: as for `of`. */
fd_code fd_find_weight_type(const fd_attribution_options *how, const fd_attribution *of, char *to, size_t size,
                            int32_t *other, fd_error *err);

#endif
