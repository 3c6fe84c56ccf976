#include "compare/replay/rival.h"

#include <math.h>
#include <stdlib.h>

#include "compare/bounds/dot_inputs.h"

/* Rows of the finding's tensor. */
typedef struct rows {
    int32_t node, n, n_too_large;
} rows;

static void add_row(void *user, const fd_attribution_row *row) {
    rows *of = user;
    double errors = 0, typical = 0, size = 0;
    for (int64_t i = 0; i < row->stride; i++) {
        double c = row->candidate[i], y = row->replayed[i], tau = row->tau[i];
        if (!isfinite(c) || !isfinite(y) || !isfinite(tau)) continue;
        errors += (c - y) * (c - y);
        typical += tau * tau;
        size += y * y;
    }
    if (row->node->id != of->node || row->node->op == FD_OP_TOP_K || !(typical <= size)) return;
    of->n++;
    of->n_too_large += fd_error_is_too_large(sqrt(errors), sqrt(typical));
}

/* The finding's tensor alone, which costs what lies between it and recorded ones. */
static fd_code judge_tensor(const fd_attribution_options *options, const fd_node_finding *finding,
                            const fd_numerics_class *numerics, rows *of, bool *departs, fd_error *err) {
    fd_attribution_options how = *options;
    fd_attribution found;
    bool *wanted = calloc((size_t)options->graph->n_node, sizeof *wanted);
    if (!wanted) return fd_fail(err, FD_ERR_MEMORY, "judging a class: out of memory");
    wanted[finding->node] = true;
    how.wanted = wanted;
    how.numerics = numerics;
    how.on_row = of ? add_row : NULL;
    how.user = of;
    fd_code code = fd_attribute_errors(&how, &found, err);
    *departs = code == FD_OK && found.found;
    fd_attribution_free(&found);
    free(wanted);
    return code;
}

fd_code fd_rival_explains(const fd_attribution_options *options, const fd_node_finding *finding,
                          const fd_numerics_class *rival, bool *yes, fd_error *err) {
    const fd_numerics_class typical = fd_numerics_class_typical(rival);
    fd_attribution_options how = *options;
    rows of = {.node = finding->node};
    fd_attribution all;
    bool departs, unused;
    how.ref = NULL;
    how.on_row = NULL;
    how.progress = NULL;
    *yes = false;
    FD_TRY(judge_tensor(&how, finding, rival, NULL, &departs, err));
    if (!departs && !fd_class_leaves_nothing(rival)) FD_TRY(judge_tensor(&how, finding, &typical, &of, &unused, err));
    if (departs || of.n_too_large > 0) return FD_OK;
    how.numerics = rival;
    fd_code code = fd_attribute_errors(&how, &all, err);
    *yes = code == FD_OK && !all.found;
    fd_attribution_free(&all);
    return code;
}
