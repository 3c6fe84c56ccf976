#include "compare/diagnose/cache_type.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/bounds/numerics_class.h"

/* What reads a cache that was not recorded departs in most layers, K's readers or V's or both, and nothing else does. Farther on a bound
 * has room for a bug. */
static bool is_attention_alone(const fd_attribution_options *o, const fd_attribution *of) {
    int32_t n[2] = {0}, n_depart[2] = {0};
    for (int32_t i = 0; i < o->graph->n_node; i++) {
        const fd_node_finding *f = &of->introduced[i];
        const fd_op op = o->graph->nodes[i].op;
        const bool reads = op == FD_OP_ATTN_SCORES || op == FD_OP_ATTN_MIX, departs = f->finding != FD_FOUND_NOTHING;
        if (departs && (!reads || f->span_first == f->node)) return false;
        n[op == FD_OP_ATTN_MIX] += reads && of->z[i] >= 0;
        n_depart[op == FD_OP_ATTN_MIX] += departs;
    }
    for (int i = 0; i < 2; i++)
        if (n_depart[i] > 0 && !(2 * n_depart[i] > n[i])) return false;
    return of->found;
}

/* "K/V" of these, in an order of how often engines are run so. */
static const char *const types[] = {"q8_0", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "f16"};
enum { N_TYPE = sizeof types / sizeof *types, NO_OTHER = N_TYPE - 1, N_PAIR = N_TYPE * N_TYPE - 1 };

/* Pair i of all but the class's own for both: first the same of both, then one of them the class's, then the others. */
static bool pair_at(int32_t i, char *to, size_t size) {
    int32_t at = 0;
    for (int32_t pass = 0; pass < 3; pass++)
        for (int32_t k = 0; k < N_TYPE; k++)
            for (int32_t v = 0; v < N_TYPE; v++) {
                const int32_t order = k == v ? 0 : k == NO_OTHER || v == NO_OTHER ? 1 : 2;
                if (order != pass || (k == NO_OTHER && v == NO_OTHER) || at++ != i) continue;
                if (k == v)
                    snprintf(to, size, "%s", types[k]);
                else
                    snprintf(to, size, "%s/%s", types[k], types[v]);
                return true;
            }
    return false;
}

static fd_code departs(const fd_attribution_options *how, bool *yes, fd_error *err) {
    fd_attribution with;
    const fd_code code = fd_attribute_errors(how, &with, err);
    *yes = code != FD_OK || with.found;
    fd_attribution_free(&with);
    return code;
}

/* The first finding's node is asked alone, and then all of them. */
static fd_code explains(fd_attribution_options *how, bool *only, bool *yes, fd_error *err) {
    bool wrong;
    *yes = false;
    how->wanted = only;
    FD_TRY(departs(how, &wrong, err));
    how->wanted = NULL;
    if (wrong) return FD_OK;
    FD_TRY(departs(how, &wrong, err));
    *yes = !wrong;
    return FD_OK;
}

static bool shows_scores(const fd_attribution_options *o) {
    for (int32_t i = 0; i < o->graph->n_node; i++) {
        const fd_node *node = &o->graph->nodes[i];
        if ((node->op == FD_OP_ATTN_SCORES || node->op == FD_OP_ATTN_SOFTMAX) && fd_trace_has_data(o->cand, node->name))
            return true;
    }
    return false;
}

/* The class, and what ggml's kernels do: beside the same products, these differ in attention alone. */
static const fd_numerics_class *class_at(const fd_attribution_options *o, const fd_attribution *of, int i) {
    if (i == 0) return of->numerics;
    return fd_numerics_class_find(shows_scores(o) ? "ggml-cpu" : "ggml-cpu-fa");
}

fd_code fd_find_cache_type(const fd_attribution_options *options, const fd_attribution *of, char *type, size_t size,
                           fd_error *err) {
    fd_attribution_options how = *options;
    fd_code code = FD_OK;
    bool found = false;
    type[0] = '\0';
    if (of->numerics->exact || fd_trace_get_info(how.cand)->kv_type[0] || !is_attention_alone(options, of))
        return FD_OK;
    bool *only = calloc((size_t)how.graph->n_node, sizeof *only);
    if (!only) return fd_fail(err, FD_ERR_MEMORY, "verdict: out of memory");
    only[of->first.node] = true;
    how.on_row = NULL;
    how.progress = NULL;
    how.kv_type = type;
    for (int32_t i = 0; i < N_PAIR && !found && code == FD_OK; i++) {
        pair_at(i, type, size);
        for (int k = 0; k < 2 && !found && code == FD_OK; k++) {
            how.numerics = class_at(options, of, k);
            if (k > 0 && how.numerics == of->numerics) continue;
            code = explains(&how, only, &found, err);
        }
    }
    if (!found) type[0] = '\0';
    free(only);
    return code;
}
