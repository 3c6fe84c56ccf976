/* Matches the names of a source with the nodes of a reference. */
#include "dumpers/import/propose/propose.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/propose/internal.h"

static const char *node_name(const fd_proposer *p, int32_t node) {
    return fd_trace_node_at(p->ref, node)->name;
}

/* ---- names ---- */

static fd_proposed *add_item(fd_proposer *p, const char *name, const char *slice) {
    if (p->n == p->room) {
        size_t room = p->room ? 2 * p->room : 256;
        fd_proposed *items = realloc(p->items, room * sizeof *items);
        if (!items) return NULL;
        p->items = items;
        p->room = room;
    }
    fd_proposed *item = &p->items[p->n++];
    *item = (fd_proposed){.turned_as.node = -1};
    snprintf(item->name, sizeof item->name, "%s", name);
    snprintf(item->slice, sizeof item->slice, "%s", slice);
    return item;
}

static bool add_tensor(fd_proposed *item, size_t tensor) {
    size_t *tensors = realloc(item->tensors, (item->n + 1) * sizeof *tensors);
    if (!tensors) return false;
    item->tensors = tensors;
    tensors[item->n++] = tensor;
    return true;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const fd_proposed *)a)->name, ((const fd_proposed *)b)->name);
}

/* All tensors, or those that a map leaves over: left [n_left]. */
static fd_code gather(fd_proposer *p, const size_t *left, size_t n_left) {
    fd_code memory = FD_OK;
    const size_t count = left ? n_left : fd_source_count(p->source);
    for (size_t k = 0; memory == FD_OK && k < count; k++) {
        const size_t i = left ? left[k] : k;
        const fd_source_tensor *t = fd_source_at(p->source, i);
        char name[256];
        int n = t->n_same > 1 ? snprintf(name, sizeof name, "%s#%d", t->name, t->occurrence)
                              : snprintf(name, sizeof name, "%s", t->name);
        if (n < 0 || (size_t)n >= sizeof name || strpbrk(name, " \t*{|")) /* not to be written as a pattern */
            return fd_fail(p->err, FD_ERR_INPUT,
                           "%s: tensor \"%.200s\": a name with spaces, * { | or of more than 255 bytes",
                           fd_source_path(p->source), t->name);
        fd_proposed *item = add_item(p, name, "");
        if (!item || !add_tensor(item, i)) memory = fd_fail(p->err, FD_ERR_MEMORY, "map auto: out of memory");
    }
    if (memory != FD_OK) return memory;
    qsort(p->items, p->n, sizeof *p->items, by_name);
    size_t kept = 0;
    for (size_t i = 0; i < p->n; i++) { /* the same name in all steps is one item */
        fd_proposed *last = kept ? &p->items[kept - 1] : NULL;
        if (last && strcmp(last->name, p->items[i].name) == 0) {
            if (!add_tensor(last, p->items[i].tensors[0]))
                return fd_fail(p->err, FD_ERR_MEMORY, "map auto: out of memory");
            free(p->items[i].tensors);
        } else {
            p->items[kept++] = p->items[i];
        }
    }
    p->n = kept;
    return FD_OK;
}

/* ---- values ---- */

/* Logarithms of lengths: behind a bug these change, too. */
#define OWN_SIZE   0.02
#define OTHER_SIZE 0.18

/* Of two nodes that differ by a constant alone (logits, and logits before the factor; a branch, and the branch times 0.81) one
 * has the name's very values. It comes first; true where there is such a pair. Both ways about: 0.81 is as far from 1 as
 * 1 / 0.81 is. */
static bool prefer_own_size(fd_candidate *best) {
    if (best[0].node < 0 || best[1].node < 0) return false;
    const bool tie = fabs(best[0].away - best[1].away) <= 0.01 * best[0].away + 1e-12;
    const double first = fabs(log(fabs(best[0].factor))), second = fabs(log(fabs(best[1].factor)));
    if (!tie || !((first < OWN_SIZE && second > OTHER_SIZE) || (second < OWN_SIZE && first > OTHER_SIZE))) return false;
    if (second < first) {
        const fd_candidate other = best[0];
        best[0] = best[1];
        best[1] = other;
    }
    return true;
}

/* Is the next node so many times as far away? An exact hit leaves room for rounding in float elements. */
static bool is_clear(fd_candidate *best, double far, double times) {
    const fd_candidate *next = &best[prefer_own_size(best) ? 2 : 1];
    const double near = best[0].away > 1e-12 ? best[0].away : 1e-12;
    return best[0].node >= 0 && best[0].away <= far && (next->node < 0 || next->away >= times * near);
}

/* Does the node read node `of`, and have its size? */
static bool may_pass_on(const fd_proposer *p, int32_t v, int32_t of) {
    const fd_trace_node *node = fd_trace_node_at(p->ref, v);
    return (strcmp(node->inputs[0], node_name(p, of)) == 0 || strcmp(node->inputs[1], node_name(p, of)) == 0) &&
           fd_trace_elements(node, 0) == fd_trace_elements(fd_trace_node_at(p->ref, of), 0);
}

static bool part_is_clear(const fd_scorer *scorer, fd_ranking *ranking, int part) {
    int from, to;
    return fd_propose_part(part, fd_scorer_positions(scorer), &from, &to) && to - from > 1 &&
           is_clear(ranking->best[part], FD_PROPOSE_PART_FAR, FD_PROPOSE_PART_CLEAR);
}

/* By all positions, or by the longest part that is clear: of two positions and more, for one may fit by chance. Where an engine adds
 * a branch of zeros, or leaves RoPE or a norm out, the op gives what it reads: of two parts that say the one and the other the op is right. */
static int deciding_part(const fd_proposer *p, const fd_scorer *scorer, fd_ranking *ranking) {
    int part = 0;
    for (int k = 1; k < FD_PROPOSE_PARTS && !part; k++)
        if (part_is_clear(scorer, ranking, k)) part = k;
    for (int k = part + 1; k < FD_PROPOSE_PARTS && part; k++)
        if (part_is_clear(scorer, ranking, k) && may_pass_on(p, ranking->best[k]->node, ranking->best[part]->node))
            return k;
    return part;
}

static void judge(const fd_proposer *p, const fd_scorer *scorer, fd_ranking *ranking, fd_proposed *item) {
    int from, to, part = 0;
    item->clear = is_clear(ranking->best[0], FD_PROPOSE_FAR, FD_PROPOSE_CLEAR);
    item->part_first = item->part_last = -1;
    if (!item->clear && (part = deciding_part(p, scorer, ranking)) > 0) {
        item->clear = fd_propose_part(part, fd_scorer_positions(scorer), &from, &to);
        item->part_first = fd_scorer_position(scorer, from);
        item->part_last = fd_scorer_position(scorer, to - 1);
    }
    memcpy(item->best, ranking->best[part], sizeof item->best);
    item->matched = item->best[0].node >= 0 && item->best[0].away <= FD_PROPOSE_FAR;
}

/* A cache's row has the values of what was written to it; a whole cache, or a name with "cache" in it, means the copy. */
static void prefer_cache(const fd_proposer *p, fd_proposed *item) {
    bool is_cache = item->clear && (strcasestr(item->name, "cache") || strstr(item->best[0].ops, "rows=cache"));
    for (int32_t v = 0; is_cache && v < fd_trace_n_node(p->ref); v++) {
        const fd_trace_node *node = fd_trace_node_at(p->ref, v);
        if (strcmp(node->op, "kv_write") == 0 && strcmp(node->inputs[0], node_name(p, item->best[0].node)) == 0) {
            item->best[0].node = v;
            return;
        }
    }
}

/* Is the nearest node computed from the name's own values? A norm whose weights are nearly one leaves what it reads nearly as it is, so
 * that it is near says nothing of what the name is. */
static bool is_near_to_itself(const fd_proposer *p, const fd_proposed *item) {
    if (item->best[0].node < 0) return false;
    const fd_trace_node *node = fd_trace_node_at(p->ref, item->best[0].node);
    return strstr(node->op, "norm") != NULL && fd_propose_is_taken_for(p, item, node->inputs[0]);
}

static fd_code rank(fd_proposer *p, fd_scorer *scorer, fd_proposed *item) {
    fd_ranking ranking;
    FD_TRY(fd_scorer_rank(scorer, item->tensors, item->n, item->slice, &ranking, p->err));
    judge(p, scorer, &ranking, item);
    if (is_near_to_itself(p, item)) item->clear = item->matched = false;
    item->turned_as = ranking.turned;
    prefer_cache(p, item);
    fd_propose_logits(p, item);
    return FD_OK;
}

/* Q, K and V, or gate and up, in one array: each part is a tensor of its own. */
static fd_code split(fd_proposer *p, fd_scorer *scorer, size_t at) {
    const int64_t *of = p->plan.values.of;
    int64_t q = of[FD_NAME_MAP_N_HEAD] * of[FD_NAME_MAP_HEAD_DIM],
            kv = of[FD_NAME_MAP_N_HEAD_KV] * of[FD_NAME_MAP_HEAD_DIM], ff = p->plan.graph->hparams.n_ff;
    const fd_source_tensor *t = fd_source_at(p->source, p->items[at].tensors[0]);
    int32_t n_tok = t->step < 0 || t->rank > 1 ? 1 : p->plan.steps[t->step].n_pos; /* of a flat array */
    int64_t width = t->rank ? t->shape[t->rank - 1] / n_tok : 0;
    const int64_t qkv[] = {0, q, q + kv, q + 2 * kv}, gate_up[] = {0, ff, 2 * ff};
    const int64_t *ends = width == q + 2 * kv ? qkv : width == 2 * ff ? gate_up : NULL;
    size_t n_part = ends == qkv ? 3 : 2, n_found = 0, start = p->n;
    for (size_t i = 0; ends && i < n_part; i++) {
        char slice[24], name[256];
        strcpy(name, p->items[at].name);
        snprintf(slice, sizeof slice, "slice=%lld:%lld", (long long)ends[i], (long long)ends[i + 1]);
        fd_proposed *item = add_item(p, name, slice);
        for (size_t k = 0; item && k < p->items[at].n; k++)
            if (!add_tensor(item, p->items[at].tensors[k])) item = NULL;
        if (!item) return fd_fail(p->err, FD_ERR_MEMORY, "map auto: out of memory");
        FD_TRY(rank(p, scorer, item));
        n_found += item->matched;
    }
    if (n_found == n_part && ends) {
        p->items[at].written = true; /* its parts stand for it */
        return FD_OK;
    }
    while (p->n > start) free(p->items[--p->n].tensors);
    return FD_OK;
}

static fd_code rank_all(fd_proposer *p, fd_scorer *scorer) {
    size_t n = p->n;
    for (size_t i = 0; i < n; i++) {
        const fd_source_tensor *t = fd_source_at(p->source, p->items[i].tensors[0]);
        if (fd_source_is_weight(t->name) || fd_source_is_tokens(t)) continue;
        FD_TRY(rank(p, scorer, &p->items[i]));
        if (!p->items[i].matched && !fd_propose_is_ids(&p->plan, p->items[i].tensors[0])) FD_TRY(split(p, scorer, i));
    }
    fd_propose_doubt_logits(p);
    return FD_OK;
}

static int32_t order_of(const fd_proposed *item) {
    return item->best[0].node < 0 ? INT32_MAX : item->best[0].node;
}

static int by_node(const void *a, const void *b) {
    const fd_proposed *x = a, *y = b;
    if (order_of(x) != order_of(y)) return order_of(x) < order_of(y) ? -1 : 1;
    return strcmp(x->name, y->name);
}

static bool takes_halves(const fd_import_plan *plan, const fd_import_match *match) {
    const fd_name_map_rule *rule = &plan->map->rules[match->rule];
    bool halves = false;
    for (int i = 0; i < rule->n_op; i++) halves |= rule->ops[i].kind == FD_NAME_MAP_ROPE_HALVES;
    return halves && plan->values.rope_neighbours > 0;
}

static fd_code gather_asked(fd_proposer *p, const fd_import_options *options) {
    fd_import_plan named;
    p->known = calloc((size_t)fd_trace_n_node(p->ref) + 1, sizeof *p->known);
    p->known_turned = calloc((size_t)fd_trace_n_node(p->ref) + 1, sizeof *p->known_turned);
    if (!p->known || !p->known_turned) return fd_fail(p->err, FD_ERR_MEMORY, "map auto: out of memory");
    if (!options->map) return gather(p, NULL, 0);
    FD_TRY(fd_import_make_plan(p->source, options, &named, p->err));
    for (size_t i = 0; i < named.n_match; i++) {
        const int32_t node = fd_trace_find(p->ref, named.matches[i].node);
        if (node >= 0) p->known[node] = true;
        if (node >= 0) p->known_turned[node] |= takes_halves(&named, &named.matches[i]);
    }
    fd_code code = gather(p, named.unmatched, named.n_unmatched);
    fd_import_plan_free(&named);
    return code;
}

static fd_code propose(fd_proposer *p, const fd_import_options *options) {
    fd_scorer *scorer;
    FD_TRY(gather_asked(p, options));
    FD_TRY(fd_scorer_new(&p->plan, p->ref, &scorer, p->err));
    fd_code code = rank_all(p, scorer);
    fd_scorer_free(scorer);
    if (code != FD_OK) return code;
    FD_TRY(fd_propose_drop_other_rows(p));
    FD_TRY(fd_propose_cover(p));
    fd_propose_take_turned(p);
    fd_propose_keep_orders(p);
    fd_propose_drop_on_the_way(p);
    fd_propose_name_caches(p);
    qsort(p->items, p->n, sizeof *p->items, by_node);
    fd_propose_lines(p, options);
    return ferror(p->out) ? fd_fail(p->err, FD_ERR_IO, "map auto: the map cannot be written") : FD_OK;
}

/* Values of other tokens are near nothing, or near by accident. */
static fd_code check_tokens(const fd_proposer *p) {
    const char *source = fd_source_path(p->source), *ref = fd_trace_path(p->ref);
    if (p->plan.n_token != fd_trace_n_pos(p->ref))
        return fd_fail(p->err, FD_ERR_INPUT, "%s: %d tokens, the reference %s has %d positions", source,
                       p->plan.n_token, ref, fd_trace_n_pos(p->ref));
    for (int32_t i = 0; i < p->plan.n_token; i++)
        if (p->plan.tokens[i] != fd_trace_tokens(p->ref)[i])
            return fd_fail(p->err, FD_ERR_INPUT, "%s: token %d at position %d, the reference %s was fed %d there",
                           source, p->plan.tokens[i], i, ref, fd_trace_tokens(p->ref)[i]);
    return FD_OK;
}

fd_code fd_propose_map(const fd_source *source, const fd_import_options *options, const fd_trace *ref,
                       const fd_name_map *own, FILE *out, fd_proposal *proposal, fd_error *err) {
    fd_proposer p = {.source = source, .ref = ref, .own = own, .out = out, .total = proposal, .err = err};
    *proposal = (fd_proposal){0};
    FD_TRY(fd_import_begin_plan(source, options, &p.plan, err));
    fd_code code = check_tokens(&p);
    if (code == FD_OK) code = propose(&p, options);
    for (size_t i = 0; i < p.n; i++) free(p.items[i].tensors);
    free(p.items);
    free(p.known);
    free(p.known_turned);
    free(p.covered);
    fd_import_plan_free(&p.plan);
    return code;
}
