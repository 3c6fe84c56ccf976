/* A cache kept in few bits by a rule that nobody can see, because K and V were not recorded: with scales that the engine was given.
 * The values cannot be found, but how large the errors are can: row by row as rounding the cache makes them, in no direction. Through
 * whole layers products that read 8 bits look like that, too. */
#ifndef FD_COMPARE_CLASS_OWN_CACHE_H
#define FD_COMPARE_CLASS_OWN_CACHE_H

#include "compare/diagnose/diagnose.h"

/* Are the errors of all tensors that depart such ones? *error: the largest, relative to the result. */
fd_code fd_is_own_cache(const fd_diagnose_options *ask, const fd_attribution *of, double *error, bool *yes,
                        fd_error *err);

/* Attention that is computed in 16 bits in most layers, beside tensors of binary32, is the engine's choice whatever else departs: the first
 * node that is no part of it; -1: there is none, or no such attention. */
fd_code fd_find_beside_attention(const fd_diagnose_options *ask, const fd_attribution *of, int32_t *other,
                                 fd_error *err);

/* Where nothing explains the errors: products or a cache of the engine's own (mixed.h, above), and which of them in words, into `to`.
 * `cache_alone`: the class was said, which says how products round and nothing of a cache. */
fd_code fd_say_own_way(const fd_diagnose_options *ask, const fd_attribution *of, bool cache_alone, char *to,
                       size_t size, bool *yes, fd_error *err);

/* So it is, but for nodes that depart by far more than their kind does in any other layer: the first of these; -1: it is not so. */
fd_code fd_find_apart_of_own_way(const fd_diagnose_options *ask, const fd_attribution *of, int32_t *other,
                                 fd_error *err);

#endif
