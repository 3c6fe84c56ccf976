#include "compare/diff/inputs.h"

#include <stdio.h>
#include <string.h>

void fd_divergence_add_input(const char *name, fd_equality equality, fd_divergence *out) {
    int32_t at = out->n_input++;
    snprintf(out->inputs[at].name, sizeof out->inputs[at].name, "%s", name);
    out->inputs[at].equality = equality;
}

void fd_divergence_sum_inputs(fd_divergence *out) {
    int32_t n[FD_UNEQUAL + 1] = {0};
    for (int32_t i = 0; i < out->n_input; i++) n[out->inputs[i].equality]++;
    out->inputs_equal = n[FD_UNEQUAL]                                 ? FD_UNEQUAL
                        : n[FD_EQUALITY_UNKNOWN] || out->n_input == 0 ? FD_EQUALITY_UNKNOWN
                                                                      : FD_EQUAL;
}

fd_code fd_input_equality(fd_trace_pair *pair, const char *name, bool cached, int32_t pos, fd_equality *out,
                          fd_error *err) {
    *out = FD_EQUALITY_UNKNOWN;
    if (strcmp(name, "tokens") == 0) {
        bool known = fd_trace_tokens(pair->ref) && fd_trace_tokens(pair->cand);
        if (known) *out = pos < pair->align.first_token_differs ? FD_EQUAL : FD_UNEQUAL;
        return FD_OK;
    }
    const fd_node_pair *input = fd_trace_pair_find(pair, name);
    bool unknown = false;
    for (int32_t p = cached ? 0 : pos; input && p <= pos; p++) {
        fd_look look;
        FD_TRY(fd_trace_pair_look(pair, input, p, &look, err));
        unknown |= look.result == FD_LOOK_UNKNOWN;
        if (look.result != FD_LOOK_DIFFERS) continue;
        *out = FD_UNEQUAL;
        return FD_OK;
    }
    if (input && !unknown) *out = FD_EQUAL;
    return FD_OK;
}
