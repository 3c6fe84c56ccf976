#include "compare/doubt_class.h"

#include <math.h>
#include <stdio.h>

#include "compare/class/approximated.h"
#include "compare/class/mixed.h"
#include "compare/class/other_kernel.h"
#include "compare/class/own_cache.h"
#include "compare/class/own_products.h"
#include "compare/class/weight_type.h"
#include "compare/diagnose/along_nearest.h"
#include "compare/diagnose/suspects.h"

/* In a call of as many rows, after one that departs, so much less is left that it is no longer there. */
#define STOPPED 16.0f

/* What an engine is meant to do it does in all calls alike: of a prompt or of single tokens, and from some position on, but not in one and
 * not in the next. */
static bool stops(const fd_comparison *c, const fd_attribution *of) {
    const fd_verdict_map *map = &c->map[FD_CANDIDATE];
    const fd_trace_step *steps = fd_trace_steps(c->pair.cand);
    const float *z = map->by_pos + (size_t)of->first.node * (size_t)map->n_pos;
    bool stopped = false;
    for (int32_t s = of->first.step, n_row = 0; s < fd_trace_n_step(c->pair.cand); s++) {
        float most = -1;
        for (int32_t p = steps[s].pos0; p < steps[s].pos0 + steps[s].n_pos && p < map->n_pos; p++)
            if (!(z[p] <= most)) most = z[p];
        if (s == of->first.step) n_row = steps[s].n_pos;
        stopped |= steps[s].n_pos == n_row && most >= 0 && STOPPED * most < (float)of->first.z;
    }
    return stopped;
}

/* Roundings are about as large in a later step as in the first that departs: single rows have kernels of their own, and bugs. */
#define MOST_GROWN 16.0f

static bool grows(const fd_comparison *c, const fd_attribution *of) {
    const fd_verdict_map *map = &c->map[FD_CANDIDATE];
    const float *z = map->by_pos + (size_t)of->first.node * (size_t)map->n_pos;
    float most = 0, later = 0;
    for (int32_t p = 0; p < map->n_pos; p++) {
        float *in = fd_trace_step_of(c->pair.cand, p) <= of->first.step ? &most : &later;
        if (!(z[p] <= *in)) *in = z[p];
    }
    return !(later <= MOST_GROWN * most);
}

/* What stands before it may be meant so. */
static void begin_at(fd_attribution *of, int32_t node) {
    of->next = of->first;
    of->first = of->introduced[node];
    of->first_stays = true;
}

/* All that departs is as an engine may be meant to be: then nothing was introduced, as far as anybody can tell. */
static fd_code doubt_for_mixed_class(fd_comparison *c, bool inferred, fd_attribution *of, fd_error *err) {
    fd_diagnose_options ask = fd_comparison_question(c, &of->first, of, FD_CANDIDATE);
    fd_explanation e;
    const bool may_be = fd_may_be_mixed_class(c->o->graph, of);
    const bool approximates = inferred && fd_may_be_approximated(c->o->graph, of);
    bool own = false, along = false, as_well = false;
    fd_node_finding place;
    double error;
    int32_t other = -1;
    const fd_op op = c->o->graph->nodes[of->first.node].op;
    const bool cached = inferred && of->found && op == FD_OP_KV_WRITE;
    const bool attends = inferred && of->found && op == FD_OP_ATTN_MIX && !(of->numerics->u_out > 0x1p-24);
    if (c->verdict->weights.n_differ > 0 || of->numerics->exact || !(may_be || approximates || cached || attends))
        return FD_OK;
    if (stops(c, of) || (attends && grows(c, of))) return FD_OK;
    if (c->likely_at > 0) return FD_OK; /* a bug showed the class */
    FD_TRY(fd_comparison_explain(c, &ask, &e, err));
    if (!e.named && inferred) FD_TRY(fd_explain_along_nearest(&ask, &c->first, &place, &along, err));
    if (along) return FD_OK;
    fd_remark r = {FD_REASON_MIXED_CLASS};
    if (may_be && inferred) FD_TRY(fd_is_mixed_class(&ask, of, &e, &own, &other, err));
    if (other >= 0)
        FD_TRY(fd_is_own_cache(&ask, of, &error, &as_well, err)); /* K rounded before may go to another step */
    if (as_well) other = -1;
    if (attends && !own && (!e.named || fd_explains_by_one_rounding(&e)))
        FD_TRY(fd_find_beside_attention(&ask, of, &other, err));
    if (!may_be && cached) FD_TRY(fd_find_beside_cache(&ask, of, &e, &other, err));
    if (may_be && inferred && !own && !e.named && other < 0) FD_TRY(fd_find_apart_of_own_way(&ask, of, &other, err));
    if (other >= 0) { /* what stands before it may be meant so */
        begin_at(of, other);
        return FD_OK;
    }
    if (may_be && inferred && !own && !as_well) FD_TRY(fd_rounds_as_well(&ask, of, &e, &as_well, err));
    if (own || as_well)
        snprintf(r.text, sizeof r.text, "%.120s%s", e.remaining[0].summary, as_well ? ", or in another way" : "");
    else if (may_be && !e.named)
        FD_TRY(fd_say_own_way(&ask, of, !inferred, r.text, sizeof r.text, &own, err));
    own |= as_well;
    if (!own && approximates) FD_TRY(fd_is_approximated(&ask, of, &e, r.text, sizeof r.text, &own, err));
    if (!own) return FD_OK;
    const char *at = e.named ? e.remaining[0].at : "";
    snprintf(r.node, sizeof r.node, "%s", at[0] ? at : c->o->graph->nodes[of->first.node].name);
    fd_verdict_reason(c->verdict, r);
    of->found = false;
    return FD_OK;
}

/* Nor where an engine multiplies in 8 bits. What departs besides is a bug all the same, and the first finding then. */
static fd_code doubt_for_own_products(fd_comparison *c, fd_attribution *of, fd_error *err) {
    fd_diagnose_options ask = fd_comparison_question(c, &of->first, of, FD_CANDIDATE);
    fd_own_products own;
    fd_explanation e;
    const fd_node_finding first = of->found ? of->first : fd_first_suspect(c->o->graph, of);
    if (c->verdict->weights.n_differ > 0 || first.finding == FD_FOUND_NOTHING) return FD_OK;
    ask.finding = &first;
    FD_TRY(fd_find_own_products(&ask, of, &own, err));
    if (!own.are) return FD_OK;
    if (own.other >= 0) {
        begin_at(of, own.other);
        return FD_OK;
    }
    FD_TRY(fd_comparison_explain(c, &ask, &e, err));
    if (e.named && !fd_explains_by_one_rounding(&e)) return FD_OK;
    fd_remark r = {FD_REASON_MIXED_CLASS};
    snprintf(r.text, sizeof r.text, "products are off by %.1g of them in no direction, as FP8 or int8 factors leave it",
             own.error);
    snprintf(r.node, sizeof r.node, "%s", c->o->graph->nodes[first.node].name);
    fd_verdict_reason(c->verdict, r);
    of->found = false;
    return FD_OK;
}

/* Nor behind products that were not recorded, where another kernel may have multiplied otherwise than the one that the class repeats. */
static fd_code doubt_for_other_kernel(fd_comparison *c, fd_attribution *of, fd_error *err) {
    const fd_diagnose_options ask = fd_comparison_question(c, &of->first, of, FD_CANDIDATE);
    const fd_verdict_map *map = &c->map[FD_CANDIDATE];
    double error;
    fd_explanation e;
    if (!of->found || c->verdict->weights.n_differ > 0) return FD_OK;
    FD_TRY(fd_find_other_kernel(&ask, of, &error, err));
    if (!(error > 0)) return FD_OK;
    FD_TRY(fd_comparison_explain(c, &ask, &e, err));
    if (e.named && !fd_explains_by_one_rounding(&e)) return FD_OK;
    fd_remark r = {FD_REASON_RESIDUAL};
    snprintf(r.node, sizeof r.node, "%s", c->o->graph->nodes[of->first.node].name);
    snprintf(r.other, sizeof r.other, "%.1e", error);
    for (int32_t p = 0; p < map->n_pos; p++)
        r.n[0] += !(map->by_pos[(size_t)of->first.node * (size_t)map->n_pos + (size_t)p] <= 1);
    fd_verdict_reason(c->verdict, r);
    of->found = false;
    return FD_OK;
}

/* Nor where the weights were converted to 16 bits when they were loaded. */
static fd_code doubt_for_weight_type(fd_comparison *c, fd_attribution *of, fd_error *err) {
    const fd_attribution_options how = fd_comparison_options(c, FD_CANDIDATE);
    fd_remark r = {FD_REASON_MIXED_CLASS};
    if (!of->found || c->verdict->weights.compared) return FD_OK;
    int32_t other;
    FD_TRY(fd_find_weight_type(&how, of, r.text, sizeof r.text, &other, err));
    if (other >= 0) { /* what stands before it is such weights */
        begin_at(of, other);
    }
    if (!r.text[0]) return FD_OK;
    snprintf(r.node, sizeof r.node, "%s", c->o->graph->nodes[of->first.node].name);
    fd_verdict_reason(c->verdict, r);
    of->found = false;
    return FD_OK;
}

fd_code fd_doubt_class(fd_comparison *c, bool inferred, fd_attribution *of, fd_error *err) {
    FD_TRY(doubt_for_mixed_class(c, inferred, of, err));
    if (inferred) FD_TRY(doubt_for_weight_type(c, of, err));
    if (inferred) FD_TRY(doubt_for_other_kernel(c, of, err));
    return inferred ? doubt_for_own_products(c, of, err) : FD_OK;
}
