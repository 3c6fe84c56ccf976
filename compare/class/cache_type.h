/* A K/V cache in blocks that the trace says nothing of: engines are run with one by an option (llama.cpp's -ctk q8_0), which no dump
 * of arrays shows. Replay makes the same blocks, so it leaves nothing of such a run, and of a bug it leaves as much as before. */
#ifndef FD_COMPARE_CLASS_CACHE_TYPE_H
#define FD_COMPARE_CLASS_CACHE_TYPE_H

#include "compare/attribute/attribution.h"

/* `type`: with K and V in such blocks or bfloat16 ("q8_0", "q8_0/f16" of K and V) nothing departs, where `of` says that something does behind
 * a cache that was not recorded, and the trace does not say its type; "": there is none. `options`: as `of` was judged. */
fd_code fd_find_cache_type(const fd_attribution_options *options, const fd_attribution *of, char *type, size_t size,
                           fd_error *err);

#endif
