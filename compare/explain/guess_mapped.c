/* What is read under one number is another one's: K/V heads in another order, experts' matrices. Which is whose is found number by
 * number, for what is computed from one says nothing about the others; then the whole is tried by the rule of all explanations. */
#include "compare/explain/guesses.h"

static uint64_t with(uint64_t map, int32_t i, int32_t from) {
    return (map & ~(UINT64_C(15) << 4 * i)) | (uint64_t)from << 4 * i;
}

/* Takes `map` if it leaves less than *least. */
static fd_code better(fd_trial *t, fd_hypothesis *h, uint64_t map, double *least, fd_error *err) {
    fd_hypothesis other = *h;
    double left;
    other.keys = map;
    if (fd_trial_exhausted(t)) return FD_OK;
    FD_TRY(fd_trial_distance(t, &t->all, &other, &left, err));
    if (left < *least) *least = left, h->keys = map;
    return FD_OK;
}

/* Of each number the one whose rows leave least. */
static fd_code find_each(fd_trial *t, double plain, fd_hypothesis *h, fd_error *err) {
    const uint64_t right = fd_hypothesis_right_map(h);
    const int32_t n_from = h->which == FD_MAPPED_QUERIES ? h->other : h->n;
    uint64_t map = right;
    for (int32_t i = 0; i < h->n; i++) {
        double least = plain;
        h->keys = right;
        for (int32_t from = 0; from < n_from; from++)
            if (from != (int32_t)(right >> 4 * i & 15)) FD_TRY(better(t, h, with(right, i, from), &least, err));
        map = with(map, i, (int32_t)(h->keys >> 4 * i & 15));
    }
    h->keys = map;
    return FD_OK;
}

/* From the map that is found: through a layer one head alone may leave no less, or another as little, while others are wrong. */
static fd_code find_one_by_one(fd_trial *t, fd_hypothesis *h, fd_error *err) {
    const int32_t n_from = h->which == FD_MAPPED_QUERIES ? h->other : h->n;
    double least;
    FD_TRY(fd_trial_distance(t, &t->all, h, &least, err));
    for (int sweep = 0; sweep < 2; sweep++)
        for (int32_t i = 0; i < h->n; i++)
            for (int32_t from = 0; from < n_from; from++) FD_TRY(better(t, h, with(h->keys, i, from), &least, err));
    return FD_OK;
}

/* Where outputs are sums over several numbers, one alone may make them no better: two exchanged, all moved on. */
static fd_code find_together(fd_trial *t, double plain, fd_hypothesis *h, fd_error *err) {
    const uint64_t right = fd_hypothesis_right_map(h);
    double least = plain;
    h->keys = right;
    for (int32_t a = 0; a < h->n; a++)
        for (int32_t b = a + 1; b < h->n; b++) FD_TRY(better(t, h, with(with(right, a, b), b, a), &least, err));
    for (int32_t by = 1; by < h->n; by++) {
        uint64_t moved = 0;
        for (int32_t i = 0; i < h->n; i++) moved = with(moved, i, (i + by) % h->n);
        FD_TRY(better(t, h, moved, &least, err));
    }
    return FD_OK;
}

static fd_code try_map(fd_trial *t, fd_hypothesis h, fd_error *err) {
    const uint64_t right = fd_hypothesis_right_map(&h);
    double plain;
    if (h.n < 2 || h.n > FD_MOST_MAPPED || fd_trial_fits(t) || fd_trial_exhausted(t)) return FD_OK;
    FD_TRY(fd_trial_distance(t, &t->all, &fd_no_hypothesis, &plain, err));
    FD_TRY(find_each(t, plain, &h, err));
    if (h.keys != right) FD_TRY(fd_trial_try(t, &h, err));
    if (fd_trial_fits(t) || t->n_span == 1) return FD_OK;
    if (h.which == FD_MAPPED_QUERIES) {
        const uint64_t found = h.keys;
        FD_TRY(find_one_by_one(t, &h, err));
        return h.keys == found || h.keys == right ? FD_OK : fd_trial_try(t, &h, err);
    }
    FD_TRY(find_together(t, plain, &h, err));
    return h.keys == right ? FD_OK : fd_trial_try(t, &h, err);
}

/* At all nodes of the span that it may concern, then at each alone. */
static fd_code try_kind(fd_trial *t, fd_mapped_rule which, fd_error *err) {
    const fd_graph *graph = t->all.request->args.graph;
    int32_t n = 0, count = 0;
    fd_hypothesis h = {.guess = FD_GUESS_MAPPED, .which = (int32_t)which, .node = -1, .layer = FD_ANY_LAYER};
    for (int32_t i = 0; i < t->n_span; i++) {
        const fd_node *node = &graph->nodes[t->span[i]];
        if (!fd_hypothesis_may_concern(&h, node)) continue;
        const int32_t n_head = node->shape[0], n_kv = node->input[1] < 0 ? 0 : graph->nodes[node->input[1]].shape[0];
        const bool of_queries = which == FD_MAPPED_QUERIES || which == FD_MAPPED_NUMBERS;
        count = which == FD_MAPPED_EXPERTS   ? graph->hparams.n_expert
                : which == FD_MAPPED_OUTPUTS ? graph->nodes[node->input[0]].shape[0]
                : of_queries                 ? n_head
                                             : n_kv;
        if (which == FD_MAPPED_QUERIES) h.other = n_kv;
        n++;
    }
    h.n = count;
    if (which == FD_MAPPED_QUERIES && (h.other < 2 || h.other >= h.n))
        return FD_OK; /* every head has its own, or one for all */
    if (n > 1) FD_TRY(try_map(t, h, err));
    for (int32_t i = 0; i < t->n_span; i++) {
        h.node = t->span[i];
        if (fd_hypothesis_may_concern(&h, &graph->nodes[h.node])) FD_TRY(try_map(t, h, err));
    }
    return FD_OK;
}

/* More than published models have would take long. */
enum { MOST_EXPERTS = 64 };

/* Without its biases or with them. */
static fd_code try_left_out(fd_trial *t, fd_hypothesis h, fd_error *err) {
    for (h.n = 0; h.n < t->all.request->args.graph->hparams.n_expert && h.n < MOST_EXPERTS; h.n++)
        for (int bias = 0; bias < 2 && !fd_trial_fits(t); bias++) {
            h.before_bias = bias;
            FD_TRY(fd_trial_try(t, &h, err)); /* where there is none: without effect beside the other */
        }
    return FD_OK;
}

/* At all of a layer's products of experts, then at each alone. */
static fd_code try_experts(fd_trial *t, fd_error *err) {
    const fd_graph *graph = t->all.request->args.graph;
    fd_hypothesis h = {
        .guess = FD_GUESS_EXPERTS, .which = FD_EXPERTS_INPUTS_WEIGHTED, .node = -1, .layer = FD_ANY_LAYER};
    int32_t n = 0;
    for (int32_t i = 0; i < t->n_span; i++) n += fd_hypothesis_may_concern(&h, &graph->nodes[t->span[i]]);
    if (n > 0) FD_TRY(fd_trial_try(t, &h, err));
    h.which = FD_EXPERTS_LEFT_OUT;
    if (n > 0) FD_TRY(try_left_out(t, h, err));
    for (int32_t i = 0; i < t->n_span && n > 0 && !fd_trial_fits(t); i++) {
        h.node = t->span[i];
        if (fd_hypothesis_may_concern(&h, &graph->nodes[h.node])) FD_TRY(try_left_out(t, h, err));
    }
    return FD_OK;
}

/* The address of a cache that begins a head or an element late or early. */
static fd_code try_shifts(fd_trial *t, fd_error *err) {
    const fd_graph *graph = t->all.request->args.graph;
    fd_hypothesis h = {.guess = FD_GUESS_CACHE, .which = FD_CACHE_SHIFTED, .node = -1, .layer = FD_ANY_LAYER};
    int32_t n = 0, last = -1;
    for (int32_t i = 0; i < t->n_span; i++)
        if (fd_reads_kv_cache(&graph->nodes[t->span[i]])) n++, last = t->span[i];
    for (int32_t i = -1; i < t->n_span && n > 0; i++) {
        const fd_node *node = &graph->nodes[i < 0 ? last : t->span[i]];
        if (!fd_reads_kv_cache(node) || (i < 0 && n < 2)) continue; /* first K and V together, where neither is known */
        const int32_t by[] = {1, graph->nodes[node->input[1]].shape[1]};
        h.node = i < 0 ? -1 : node->id;
        for (int k = 0; k < 4 && !fd_trial_fits(t); k++) {
            h.n = k < 2 ? by[k] : -by[k - 2];
            FD_TRY(fd_trial_try(t, &h, err));
        }
    }
    return FD_OK;
}

fd_code fd_guess_mapped(fd_trial *t, fd_error *err) {
    if (fd_trial_many_layers(t)) return FD_OK;
    FD_TRY(try_shifts(t, err));
    FD_TRY(try_experts(t, err));
    if (fd_trial_fits(t)) return FD_OK;
    FD_TRY(fd_guess_head_numbers(t, err));
    FD_TRY(try_kind(t, FD_MAPPED_NUMBERS, err));
    FD_TRY(try_kind(t, FD_MAPPED_KV_HEADS, err));
    FD_TRY(try_kind(t, FD_MAPPED_QUERIES, err));
    FD_TRY(try_kind(t, FD_MAPPED_EXPERTS, err));
    return try_kind(t, FD_MAPPED_OUTPUTS, err);
}
