#include "compare/doubt_class.h"

#include <math.h>
#include <stdio.h>

#include "compare/diagnose/mixed.h"
#include "compare/diagnose/own_cache.h"
#include "compare/diagnose/own_products.h"
#include "compare/diagnose/suspects.h"

/* Then nothing was introduced, as far as anybody can tell. */
static fd_code doubt_for_mixed_class(fd_comparison *c, fd_class_source source, fd_attribution *of, fd_error *err) {
    fd_diagnose_options ask = fd_comparison_question(c, of, FD_CANDIDATE);
    fd_explanation e;
    const bool inferred = source == FD_CLASS_INFERRED;
    bool mixed = false;
    if (c->verdict->weights.n_differ > 0 || !fd_may_be_mixed_class(c->o->graph, of) || of->numerics->exact)
        return FD_OK;
    FD_TRY(fd_comparison_explain(c, &ask, &e, err));
    fd_remark r = {FD_REASON_MIXED_CLASS};
    if (inferred) FD_TRY(fd_is_mixed_class(&ask, of, &e, &mixed, err));
    const bool as_well = inferred && !mixed && fd_rounds_as_well(c->o->graph, &e);
    if (mixed || as_well)
        snprintf(r.text, sizeof r.text, "%.120s%s", e.remaining[0].summary, as_well ? ", or in another way" : "");
    else if (!e.named)
        FD_TRY(fd_say_own_way(&ask, of, !inferred, r.text, sizeof r.text, &mixed, err));
    mixed |= as_well;
    if (!mixed) return FD_OK;
    const char *at = e.named ? e.remaining[0].at : "";
    snprintf(r.node, sizeof r.node, "%s", at[0] ? at : c->o->graph->nodes[of->first.node].name);
    fd_verdict_reason(c->verdict, r);
    of->found = false;
    return FD_OK;
}

/* Nor where an engine of 16-bit tensors multiplies in 8 bits. What departs besides is a bug all the same, and the first finding then. */
static fd_code doubt_for_own_products(fd_comparison *c, fd_class_source source, fd_attribution *of, fd_error *err) {
    fd_diagnose_options ask = fd_comparison_question(c, of, FD_CANDIDATE);
    fd_own_products own;
    fd_explanation e;
    const fd_node_finding first = of->found ? of->first : fd_first_suspect(c->o->graph, of);
    if (source != FD_CLASS_INFERRED || c->verdict->weights.n_differ > 0 || first.finding == FD_FOUND_NOTHING)
        return FD_OK;
    ask.finding = &first;
    FD_TRY(fd_find_own_products(&ask, of, &own, err));
    if (!own.are) return FD_OK;
    if (own.other >= 0) {
        of->first = of->introduced[own.other];
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

fd_code fd_doubt_class(fd_comparison *c, fd_class_source source, fd_attribution *of, fd_error *err) {
    FD_TRY(doubt_for_mixed_class(c, source, of, err));
    return doubt_for_own_products(c, source, of, err);
}
