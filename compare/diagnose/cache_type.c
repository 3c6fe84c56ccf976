#include "compare/diagnose/cache_type.h"

/* Attention's results depart, of most layers in which they were recorded, behind a cache that was not; and nothing else does. Farther on a
 * bound has room for a bug. */
static bool is_attention_alone(const fd_attribution_options *o, const fd_attribution *of) {
    int32_t n = 0, n_depart = 0;
    for (int32_t i = 0; i < o->graph->n_node; i++) {
        const fd_node_finding *f = &of->introduced[i];
        const bool mix = o->graph->nodes[i].op == FD_OP_ATTN_MIX, departs = f->finding != FD_FOUND_NOTHING;
        if (departs && (!mix || f->span_first == f->node)) return false;
        n += mix && of->z[i] >= 0;
        n_depart += departs;
    }
    return of->found && 2 * n_depart > n;
}

fd_code fd_find_cache_type(const fd_attribution_options *options, const fd_attribution *of, const char **type,
                           fd_error *err) {
    static const char *const types[] = {"q8_0", "q4_0", "q4_1", "q5_0", "q5_1"};
    fd_attribution_options how = *options;
    *type = NULL;
    if (of->numerics->exact || fd_trace_get_info(how.cand)->kv_type[0] || !is_attention_alone(options, of))
        return FD_OK;
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
