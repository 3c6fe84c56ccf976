#include "compare/attribute/rival.h"

#include <stdlib.h>

#include "compare/attribute/typical.h"

/* `node` alone, which costs what lies between it and recorded tensors; negative: all. */
static fd_code departs_from(const fd_attribution_options *options, const fd_numerics_class *rival, int32_t node,
                            bool *yes, fd_error *err) {
    fd_attribution_options how = *options;
    fd_attribution of;
    bool *wanted = calloc((size_t)options->graph->n_node, sizeof *wanted);
    if (!wanted) return fd_fail(err, FD_ERR_MEMORY, "judging a class: out of memory");
    if (node >= 0) wanted[node] = true;
    how.wanted = node >= 0 ? wanted : NULL;
    how.numerics = rival;
    fd_code code = fd_attribute_errors(&how, &of, err);
    *yes = code == FD_OK && of.found;
    fd_attribution_free(&of);
    free(wanted);
    return code;
}

fd_code fd_rival_explains(const fd_attribution_options *options, const fd_node_finding *finding,
                          const fd_numerics_class *rival, bool *yes, fd_error *err) {
    fd_attribution_options how = *options;
    bool departs, large = false;
    how.ref = NULL;
    how.on_row = NULL;
    how.progress = NULL;
    *yes = false;
    FD_TRY(departs_from(&how, rival, finding->node, &departs, err));
    if (departs) return FD_OK;
    if (!fd_class_leaves_nothing(rival)) FD_TRY(fd_has_large_errors(&how, rival, finding->node, &large, err));
    if (large) return FD_OK;
    FD_TRY(departs_from(&how, rival, -1, &departs, err));
    *yes = !departs;
    return FD_OK;
}
