/* A cache kept in fewer bits that a first call does not read: it multiplies K and V as it has just computed them, and every later call reads
 * the rows that were kept, its own among them (OpenVINO's CPU plugin; serving engines whose prompts run in a kernel of their own). So a
 * prompt is right to the last bits, and no class rounds the cache of the calls after it alone. */
#ifndef FD_COMPARE_CLASS_LATER_CACHE_H
#define FD_COMPARE_CLASS_LATER_CACHE_H

#include "compare/attribute/attribution.h"
#include "compare/diagnose/diagnose.h"

/* Is all that departs, none of it in the first step, what such a cache gives? `to`: in which type, in words. */
fd_code fd_find_later_cache(const fd_diagnose_options *ask, const fd_attribution *of, char *to, size_t size, bool *yes,
                            fd_error *err);

/* A cache was recorded as it is kept, rounded, and in the first step what reads it departs, and nothing else does, but not from K and V as they were computed: ignored
 * [n_node] is set for every cache, which is then as one that was not recorded. */
fd_code fd_leave_later_cache_out(const fd_attribution_options *options, const fd_attribution *found, bool *ignored,
                                 bool *yes, fd_error *err);

#endif
