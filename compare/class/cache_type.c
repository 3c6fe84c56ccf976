#include "compare/class/cache_type.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/bounds/numerics_class.h"
#include "compare/infer/try_classes.h"

/* Of what is left without the type. Rounding K or V where the engine does not takes nothing away, of a bug neither. */
#define MOST_LEFT 0.5
/* Then no other type will do it better. */
#define SURELY 0x1p-4
/* Replays of several layers, as for logits alone, are asked about the first pairs only. */
enum { WIDE_SPAN = 40, PAIRS_OF_WIDE = 21 };

/* Multiplications of all replays together, without samples of roundings: some fifteen seconds of one core. */
#define MOST_SPENT 0x1p35

static bool has_cache(const fd_attribution_options *o, int32_t first, int32_t last) {
    for (int32_t i = first; i <= last; i++)
        if (fd_node_is_kv_cache(&o->graph->nodes[i])) return true;
    return false;
}

/* All that departs was computed through a cache that was not recorded. */
static bool is_behind_caches(const fd_attribution_options *o, const fd_attribution *of) {
    for (int32_t i = 0; i < o->graph->n_node; i++) {
        const fd_node_finding *f = &of->introduced[i];
        if (f->finding != FD_FOUND_NOTHING && !has_cache(o, f->span_first, f->node)) return false;
    }
    return of->found && has_cache(o, of->first.span_first, of->first.node);
}

/* "K/V" of these, in an order of how often engines are run so. */
static const char *const types[] = {"q8_0", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "f16"};
enum { N_TYPE = sizeof types / sizeof *types, NO_OTHER = N_TYPE - 1, N_PAIR = N_TYPE * N_TYPE - 1 };

/* Pair i of all but the class's own for both: first the same of both, then one of them the class's, then the others. */
static void pair_at(int32_t i, char *to, size_t size) {
    int32_t at = 0;
    for (int32_t pass = 0; pass < 3; pass++)
        for (int32_t k = 0; k < N_TYPE; k++)
            for (int32_t v = 0; v < N_TYPE; v++) {
                const int32_t order = k == v ? 0 : k == NO_OTHER || v == NO_OTHER ? 1 : 2;
                if (order != pass || (k == NO_OTHER && v == NO_OTHER) || at++ != i) continue;
                snprintf(to, size, k == v ? "%s" : "%s/%s", types[k], types[v]);
            }
}

typedef struct search {
    fd_attribution_options how;
    const fd_attribution *of;
    const fd_numerics_class *class_[3];
    double without[3]; /* what a class leaves without the type */
    int n_class;
    bool *only;         /* the first finding's node */
    double cost, spent; /* multiplications of its replay, and of all so far */
} search;

/* fd_attribution_options.on_row */
static void add_left(void *user, const fd_attribution_row *row) {
    double *squares = user;
    for (int64_t i = 0; i < row->stride; i++) {
        const double off = row->candidate[i] - row->replayed[i];
        if (isfinite(row->candidate[i]) || isfinite(row->replayed[i])) *squares += off * off;
    }
}

/* Judged by class k; with `squares` of the first finding's node alone, whose rows are added up there. */
static fd_code judge(search *s, int k, double *squares, bool *found, fd_error *err) {
    fd_attribution with;
    s->how.numerics = s->class_[k];
    s->how.wanted = squares ? s->only : NULL;
    s->how.rows_alone = squares != NULL;
    s->how.on_row = squares ? add_left : NULL;
    s->how.user = squares;
    const fd_code code = fd_attribute_errors(&s->how, &with, err);
    *found = code != FD_OK || with.found;
    fd_attribution_free(&with);
    return code;
}

/* What the first finding's node is computed through. */
static double cost_of(const fd_attribution_options *o, const fd_node_finding *first, int32_t n_pos) {
    double products = 0;
    for (int32_t i = first->span_first; i <= first->node; i++) {
        const fd_node *node = &o->graph->nodes[i];
        const fd_weight *w = node->weight[0] < 0 ? NULL : &o->graph->weights[node->weight[0]];
        if (w && node->op == FD_OP_MATMUL) products += (double)w->n_row * (double)w->n_col;
        if (w && node->op == FD_OP_EXPERT_MATMUL)
            products += (double)w->n_row * (double)w->n_col * node->shape[0] / o->graph->hparams.n_expert;
    }
    return products * n_pos;
}

static fd_code what_is_left(search *s, int k, double *left, fd_error *err) {
    double squares = 0;
    bool found;
    const fd_code code = judge(s, k, &squares, &found, err);
    s->spent += s->cost;
    *left = sqrt(squares);
    return code;
}

static fd_code explains_all(search *s, int k, bool *yes, fd_error *err) {
    bool found;
    const fd_code code = judge(s, k, NULL, &found, err);
    *yes = !found;
    return code;
}

/* The class, and what ggml's kernels do: without the type they may not have been told apart. */
static void list_classes(search *s) {
    const char *const ggml[] = {"ggml-cpu", "ggml-cpu-fa"};
    s->class_[s->n_class++] = s->of->numerics;
    for (int i = 0; i < (fd_shows_attention(&s->how) ? 1 : 2); i++) {
        const fd_numerics_class *c = fd_numerics_class_find(ggml[i]);
        if (c != s->of->numerics) s->class_[s->n_class++] = c;
    }
}

/* Rows of K and of V are whole blocks of these types. */
static bool can_be_kept(const fd_graph *graph, const char *pair) {
    uint32_t k, v;
    fd_error none;
    bool all = fd_kv_types_parse(pair, &k, &v, &none) == FD_OK;
    for (int32_t i = 0; i < graph->n_node && all; i++) {
        const fd_node *node = &graph->nodes[i];
        const int64_t n = fd_node_row_stride(node, 0);
        if (node->op == FD_OP_KV_WRITE) all = fd_dtype_row_bytes(k, n) >= 0 && fd_dtype_row_bytes(v, n) >= 0;
    }
    return all;
}

/* The pair that leaves least of those that explain all; *type "": there is none. */
static fd_code find_best(search *s, char *type, size_t size, fd_error *err) {
    const bool wide = s->of->first.node - s->of->first.span_first > WIDE_SPAN;
    double best = MOST_LEFT;
    for (int k = 0; k < s->n_class; k++) FD_TRY(what_is_left(s, k, &s->without[k], err));
    for (int32_t i = 0; i < (wide ? PAIRS_OF_WIDE : N_PAIR) && best > SURELY && s->spent < MOST_SPENT; i++) {
        char pair[16];
        pair_at(i, pair, sizeof pair);
        if (!can_be_kept(s->how.graph, pair)) continue;
        s->how.kv_type = pair;
        for (int k = 0; k < s->n_class; k++) {
            double left;
            bool all = false;
            FD_TRY(what_is_left(s, k, &left, err));
            if (left < best * s->without[k]) FD_TRY(explains_all(s, k, &all, err));
            if (!all) continue;
            best = left / s->without[k];
            snprintf(type, size, "%s", pair);
        }
    }
    return FD_OK;
}

fd_code fd_find_cache_type(const fd_attribution_options *options, const fd_attribution *of, char *type, size_t size,
                           fd_error *err) {
    search s = {.how = *options, .of = of, .cost = cost_of(options, &of->first, of->n_pos)};
    type[0] = '\0';
    if (of->numerics->exact || fd_trace_get_info(options->cand)->kv_type[0] || !is_behind_caches(options, of))
        return FD_OK;
    s.only = calloc((size_t)options->graph->n_node, sizeof *s.only);
    if (!s.only) return fd_fail(err, FD_ERR_MEMORY, "verdict: out of memory");
    s.only[of->first.node] = true;
    s.how.progress = NULL;
    list_classes(&s);
    const fd_code code = find_best(&s, type, size, err);
    free(s.only);
    return code;
}
