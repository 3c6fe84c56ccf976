#include "compare/diagnose/cache_type.h"

#include "compare/bounds/bounds.h"

/* Is every tensor that departs computed through a cache that was not recorded? */
static bool behind_caches(const fd_attribution_options *o, const fd_attribution *of) {
    for (int32_t i = 0; i < o->graph->n_node; i++) {
        const fd_node_finding *f = &of->introduced[i];
        bool cache = false;
        if (f->finding == FD_FOUND_NOTHING) continue;
        for (int32_t k = f->span_first; k < i; k++)
            cache |= fd_node_is_kv_cache(&o->graph->nodes[k]) && !fd_trace_has_data(o->cand, o->graph->nodes[k].name);
        if (!cache) return false;
    }
    return of->found;
}

fd_code fd_find_cache_type(const fd_attribution_options *options, const fd_attribution *of, const char **type,
                           fd_error *err) {
    static const char *const types[] = {"q8_0", "q4_0", "q4_1", "q5_0", "q5_1"};
    fd_attribution_options how = *options;
    *type = NULL;
    if (of->numerics->exact || fd_trace_get_info(how.cand)->kv_type[0] || !behind_caches(options, of)) return FD_OK;
    how.numerics = of->numerics;
    how.on_row = NULL;
    how.progress = NULL;
    for (size_t i = 0; i < sizeof types / sizeof *types && !*type; i++) {
        fd_attribution with;
        how.kv_type = types[i];
        FD_TRY(fd_attribute_errors(&how, &with, err));
        if (!with.found) *type = types[i];
        fd_attribution_free(&with);
    }
    return FD_OK;
}
