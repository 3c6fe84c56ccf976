#include "compare/class/later_cache.h"

#include <stdio.h>

#include "base/dtype.h"
#include "compare/class/mixed.h"
#include "compare/diagnose/asked_rows.h"
#include "compare/hypothesis/round_scaled.h"
#include "compare/hypothesis/round_type.h"

/* In an order of how often engines are run so. */
static const struct {
    int32_t type;
    fd_scale_of scale;
} kept[] = {
    {FD_ROUND_UINT8, FD_SCALE_HEAD}, {FD_F16, FD_SCALE_NONE},        {FD_ROUND_E4M3, FD_SCALE_NONE},
    {FD_ROUND_INT8, FD_SCALE_HEAD},  {FD_Q8_0, FD_SCALE_NONE},       {FD_BF16, FD_SCALE_NONE},
    {FD_ROUND_E4M3, FD_SCALE_HEAD},  {FD_ROUND_E4M3, FD_SCALE_ROW},  {FD_ROUND_INT8, FD_SCALE_ROW},
    {FD_ROUND_UINT8, FD_SCALE_ROW},  {FD_ROUND_E5M2, FD_SCALE_NONE}, {FD_ROUND_INT4, FD_SCALE_HEAD},
};

static bool has_unrecorded_cache(const fd_diagnose_options *ask, const fd_node_finding *f) {
    for (int32_t i = f->span_first; i < f->node; i++)
        if (fd_node_is_kv_cache(&ask->graph->nodes[i]) && !fd_asked_is_recorded(ask, &ask->graph->nodes[i]))
            return true;
    return false;
}

/* All that departs begins after the first step, behind such a cache, in most layers. */
static bool may_be(const fd_diagnose_options *ask, const fd_attribution *of) {
    for (int32_t i = 0; i < ask->graph->n_node; i++) {
        const fd_node_finding *f = &of->introduced[i];
        if (f->finding == FD_FOUND_NOTHING) continue;
        if (fd_trace_step_of(ask->trace, f->pos) < 1 || !has_unrecorded_cache(ask, f)) return false;
        /* by little as much may be within elsewhere */
        if (!(f->z > 1 && f->z <= FD_LITTLE_BEYOND) && !fd_departs_in_most_layers(ask->graph, of, i)) return false;
    }
    return of->found;
}

fd_code fd_find_later_cache(const fd_diagnose_options *ask, const fd_attribution *of, char *to, size_t size, bool *yes,
                            fd_error *err) {
    *yes = false;
    if (!may_be(ask, of)) return FD_OK;
    for (size_t k = 0; k < sizeof kept / sizeof *kept && !*yes; k++) {
        const fd_hypothesis h = {.guess = FD_GUESS_ROUNDED,
                                 .node = -1,
                                 .layer = FD_ANY_LAYER,
                                 .ops = FD_OP_KV_WRITE + 1,
                                 .other = kept[k].type,
                                 .n = (int32_t)kept[k].scale};
        *yes = true;
        for (int32_t i = 0; i < ask->graph->n_node && *yes; i++) {
            fd_diagnose_options there = *ask;
            there.finding = &of->introduced[i];
            there.whole_run = true; /* the first step's rows are kept so, too */
            if (there.finding->finding != FD_FOUND_NOTHING) FD_TRY(fd_diagnose_fits(&there, &h, yes, err));
        }
        if (*yes)
            snprintf(to, size, "after the first call K and V are read rounded to %s%s",
                     fd_round_type_name(kept[k].type), fd_scale_name(kept[k].scale));
    }
    return FD_OK;
}

fd_code fd_leave_later_cache_out(const fd_attribution_options *options, const fd_attribution *found, bool *ignored,
                                 bool *yes, fd_error *err) {
    const fd_graph *graph = options->graph;
    fd_attribution_options how = *options;
    fd_attribution without;
    bool cached = false, behind = false, alone = true;
    *yes = false;
    for (int32_t i = 0; i < graph->n_node; i++) {
        ignored[i] = graph->nodes[i].op == FD_OP_KV_WRITE;
        cached |= ignored[i] && found->introduced[i].finding != FD_FOUND_NOTHING &&
                  fd_departs_in_most_layers(graph, found, i);
        const bool reads = fd_reads_cache_in_first_step(graph, options->cand, &found->introduced[i]);
        behind |= reads;
        alone &= reads || ignored[i] || found->introduced[i].finding == FD_FOUND_NOTHING;
    }
    if (!cached || !behind || !alone) return FD_OK;
    how.ignored = ignored;
    how.ref = NULL;
    how.progress = NULL;
    FD_TRY(fd_attribute_errors(&how, &without, err));
    *yes = true;
    for (int32_t i = 0; i < graph->n_node && *yes; i++)
        if (fd_reads_cache_in_first_step(graph, options->cand, &found->introduced[i]))
            *yes = !fd_reads_cache_in_first_step(graph, options->cand, &without.introduced[i]);
    fd_attribution_free(&without);
    return FD_OK;
}
