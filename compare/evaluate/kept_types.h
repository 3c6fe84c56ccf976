/* A cache in blocks: explanations are computed with K and V as they are kept. */
#ifndef FD_COMPARE_EVALUATE_KEPT_TYPES_H
#define FD_COMPARE_EVALUATE_KEPT_TYPES_H

#include "compare/evaluate/request.h"

/* Of the cache that the node writes, or reads; FD_F32: as the class keeps it, or of no cache of K or V. */
uint32_t fd_explain_kv_type(const fd_explain_request *request, const fd_node *node);

#endif
