#include "compare/doubt_values.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "compare/attribute/findings.h"
#include "compare/attribute/one_value.h"
#include "compare/class/cache_type.h"
#include "compare/class/mixed.h"
#include "compare/dump/narrow.h"
#include "compare/dump/printed.h"

fd_code fd_doubt_printed(fd_comparison *c, fd_attribution *of, bool undecided, fd_error *err) {
    const fd_attribution_options how = fd_comparison_options(c, FD_CANDIDATE);
    fd_printed printed;
    if (!of->found && of->n_inconclusive == 0 && !undecided) return FD_OK;
    FD_TRY(fd_find_printed(&how, &printed, err));
    if (printed.n == 0) return FD_OK;
    fd_remark r = {FD_REASON_PRINTED, .n = {printed.digits, printed.n, printed.n_of}, .flag = printed.decimals};
    snprintf(r.node, sizeof r.node, "%s", c->o->graph->nodes[printed.node].name);
    fd_verdict_reason(c->verdict, r);
    of->found = false;
    return FD_OK;
}

fd_code fd_doubt_narrow(fd_comparison *c, const fd_attribution *of, bool inferred, fd_error *err) {
    fd_attribution_options how = fd_comparison_options(c, FD_CANDIDATE);
    fd_narrow narrow;
    how.numerics = of->numerics;
    if (of->found) return FD_OK;
    /* int8 blocks have room for what 16-bit tensors leave, and for bugs of that size: so nothing shows such a class */
    const bool blocks = inferred && of->numerics->q8_activations;
    FD_TRY(fd_find_narrow(&how, blocks, &narrow, err));
    if (narrow.n == 0) return FD_OK;
    fd_remark r = {FD_REASON_NARROW, .n = {narrow.n}};
    snprintf(r.node, sizeof r.node, "%s", c->o->graph->nodes[narrow.node].name);
    snprintf(r.other, sizeof r.other, "%s", narrow.dtype == FD_F16 ? "binary16's" : "bfloat16's");
    fd_verdict_reason(c->verdict, r);
    return FD_OK;
}

static bool is_one_row(const fd_comparison *c, int32_t node) {
    const fd_verdict_map *map = &c->map[FD_CANDIDATE];
    const float *z = map->by_pos + (size_t)node * (size_t)map->n_pos;
    int32_t n = 0;
    for (int32_t p = 0; p < map->n_pos; p++) n += !(z[p] < 0) && !(z[p] <= 1);
    return n == 1;
}

/* Are those beyond the products of one input, in that row alone, each by one value of it? Then any small change that takes the value back
 * fits, so that a name says nothing. */
static fd_code is_one_value(const fd_comparison *c, const fd_attribution *of, bool *yes, fd_error *err) {
    const fd_graph *graph = c->o->graph;
    fd_attribution_options how = fd_comparison_options(c, FD_CANDIDATE);
    how.numerics = of->numerics;
    *yes = true;
    for (int32_t i = 0; i < graph->n_node && *yes; i++) {
        const fd_node_finding *f = &of->introduced[i];
        if (f->finding == FD_FOUND_NOTHING) continue;
        *yes = f->pos == of->first.pos && graph->nodes[i].input[0] == graph->nodes[of->first.node].input[0] &&
               is_one_row(c, i);
        if (*yes) FD_TRY(fd_is_one_value(&how, f, yes, err));
    }
    return FD_OK;
}

fd_code fd_doubt_one_step(fd_comparison *c, fd_attribution *of, fd_error *err) {
    const fd_node_finding *f = &of->first;
    const bool alone = of->n_by_finding[FD_FOUND_INTRODUCED] + of->n_by_finding[FD_FOUND_BOTH] == 1;
    fd_explanation e;
    bool one_value;
    if (!of->found || !fd_class_rounds_to_steps(of->numerics) || f->span_first == f->node) return FD_OK;
    if (!(f->z <= FD_LITTLE_BEYOND) || !is_one_row(c, f->node)) return FD_OK;
    FD_TRY(is_one_value(c, of, &one_value, err));
    if (!one_value) {
        fd_diagnose_options ask = fd_comparison_question(c, &of->first, of, FD_CANDIDATE);
        FD_TRY(fd_comparison_explain(c, &ask, &e, err));
        if (e.named || !alone) return FD_OK;
    }
    fd_remark r = {FD_REASON_ONE_STEP, .n = {f->pos}};
    snprintf(r.node, sizeof r.node, "%s", c->o->graph->nodes[f->node].name);
    fd_finding_globs(c->o->graph, f->span_first, f->node, r.text, sizeof r.text);
    fd_verdict_reason(c->verdict, r);
    of->found = false;
    return FD_OK;
}

fd_code fd_doubt_cache_type(fd_comparison *c, fd_attribution *of, fd_error *err) {
    const fd_attribution_options how = fd_comparison_options(c, FD_CANDIDATE);
    char type[16], shown[16] = "";
    FD_TRY(fd_find_cache_type(&how, of, type, sizeof type, err));
    if (!type[0]) return FD_OK;
    for (size_t i = 0; type[i]; i++) shown[i] = (char)toupper((unsigned char)type[i]);
    fd_remark r = {FD_REASON_MIXED_CLASS};
    snprintf(r.text, sizeof r.text, "what K and V kept as %s give, which --cache-type %s would say", shown, type);
    snprintf(r.node, sizeof r.node, "%s", c->o->graph->nodes[of->first.node].name);
    fd_verdict_reason(c->verdict, r);
    of->found = false;
    return FD_OK;
}

bool fd_is_said_own_way(const fd_verdict *verdict, const char *node) {
    const fd_remarks *reasons = &verdict->reasons;
    for (int32_t i = 0; i < reasons->n && i < FD_MAX_REMARKS; i++) {
        const fd_remark *r = &reasons->items[i];
        if (r->kind == FD_REASON_MIXED_CLASS && (!node[0] || strcmp(r->node, node) == 0)) return true;
    }
    return false;
}
