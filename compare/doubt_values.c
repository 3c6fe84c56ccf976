#include "compare/doubt_values.h"

#include <stdio.h>

#include "compare/diagnose/narrow.h"
#include "compare/diagnose/printed.h"

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

fd_code fd_doubt_narrow(fd_comparison *c, const fd_attribution *of, fd_error *err) {
    fd_attribution_options how = fd_comparison_options(c, FD_CANDIDATE);
    fd_narrow narrow;
    how.numerics = of->numerics;
    if (of->found) return FD_OK;
    FD_TRY(fd_find_narrow(&how, &narrow, err));
    if (narrow.n == 0) return FD_OK;
    fd_remark r = {FD_REASON_NARROW, .n = {narrow.n}};
    snprintf(r.node, sizeof r.node, "%s", c->o->graph->nodes[narrow.node].name);
    snprintf(r.other, sizeof r.other, "%s", narrow.dtype == FD_F16 ? "binary16's" : "bfloat16's");
    fd_verdict_reason(c->verdict, r);
    return FD_OK;
}
