#include "compare/class/fused_class.h"

#include <stdio.h>

#include "compare/class/attempt.h"
#include "compare/class/mixed.h"
#include "compare/class/own_cache.h"

/* NULL: `numerics` is none of 16-bit tensors, or is fused itself. */
static const fd_numerics_class *fused(const fd_numerics_class *numerics) {
    char name[48];
    if (numerics->exact || numerics->u_out <= 0x1p-24 || numerics->fused_attention) return NULL;
    snprintf(name, sizeof name, "%s-fa", numerics->name);
    return fd_numerics_class_find(name);
}

static bool records_attention(const fd_attribution_options *options) {
    bool any = false;
    for (int32_t i = 0; i < options->graph->n_node; i++) {
        const fd_node *node = &options->graph->nodes[i];
        const bool ignored = options->ignored && options->ignored[i];
        any |= node->over_kv && !ignored && fd_trace_has_data(options->cand, node->name);
    }
    return any;
}

static bool hides_attention(const fd_graph *graph, const fd_node_finding *f) {
    bool any = false;
    for (int32_t i = f->span_first; i < f->node && f->finding != FD_FOUND_NOTHING; i++) any |= graph->nodes[i].over_kv;
    return any ||
           (f->finding != FD_FOUND_NOTHING && f->span_first < f->node && graph->nodes[f->node].op == FD_OP_ATTN_MIX);
}

/* Whether `judged`, in the inferred class, may be the same thing. */
static fd_code is_own_cache(const fd_attribution_options *options, const fd_attribution *judged,
                            const fd_class_attempt *a, bool *yes, fd_error *err) {
    const fd_diagnose_options ask = fd_diagnose_question(options, &a->of);
    double error;
    *yes = judged->found && a->of.found && fd_may_be_mixed_class(options->graph, judged) &&
           fd_may_be_mixed_class(options->graph, &a->of);
    return *yes ? fd_is_own_cache(&ask, &a->of, &error, yes, err) : FD_OK;
}

static fd_code explain(const fd_attribution_options *options, const fd_attribution *judged, fd_class_attempt *a,
                       fd_class_evidence *evidence, bool *own, fd_error *err) {
    fd_class_attempt_measure(a, options->graph);
    if (!hides_attention(options->graph, &a->first)) return FD_OK;
    for (int pass = 0; pass < 2 && !a->named; pass++)
        FD_TRY(fd_class_attempt_explain(options, a, pass == 0, evidence->undecided, a->n, err));
    return a->named ? FD_OK : is_own_cache(options, judged, a, own, err);
}

fd_code fd_refute_unfused_class(fd_attribution_options *options, const fd_attribution *judged,
                                fd_class_evidence *evidence, fd_error *err) {
    const fd_numerics_class *class_ = fused(options->numerics);
    fd_class_attempt a;
    bool own = false;
    if (!class_ || records_attention(options)) return FD_OK;
    fd_code code = fd_class_attempt_judge(options, class_, &a, err);
    if (code == FD_OK) code = explain(options, judged, &a, evidence, &own, err);
    if (code == FD_OK && (a.named || own)) {
        *evidence = (fd_class_evidence){.kind = a.named ? FD_EVIDENCE_BUG : FD_EVIDENCE_NONE};
        snprintf(evidence->other, sizeof evidence->other, "%s", options->numerics->name);
        snprintf(evidence->node, sizeof evidence->node, "%s", options->graph->nodes[a.first.node].name);
        options->numerics = class_;
    }
    fd_class_attempt_free(&a);
    return code;
}

fd_code fd_unfuse_class(fd_attribution_options *how, const fd_attribution *of, fd_error *err) {
    fd_attribution own;
    if (!of->found || !of->numerics->fused_attention) return FD_OK;
    fd_attribution_options plain = *how;
    plain.numerics = fd_class_unfused(of->numerics);
    plain.progress = NULL;
    FD_TRY(fd_attribute_errors(&plain, &own, err));
    if (own.found && own.first.step > of->first.step) how->numerics = plain.numerics;
    fd_attribution_free(&own);
    return FD_OK;
}
