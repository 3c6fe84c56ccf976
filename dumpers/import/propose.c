/* The names of a source beside the nodes of a reference, and the lines of the map that follow. */
#include "dumpers/import/propose.h"

#include <ctype.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/propose_internal.h"

/* A name fits when the angle to its node is below acos(0.9), and is clear when the next node is ten times as far away. */
static const double FAR = 0.1, CLEAR = 10;

typedef struct proposed { /* one name (over all steps), or a part of one */
    size_t *tensors;
    size_t n;
    char name[256]; /* with #occurrence where it repeats */
    char slice[24]; /* "" or "slice=0:64" */
    fd_candidate best[FD_PROPOSE_KEEP];
    bool matched, clear;
    bool written;
} proposed;

typedef struct proposer {
    const fd_source *source;
    const fd_trace *ref;
    fd_import_plan plan;
    proposed *items;
    size_t n, room;
    FILE *out;
    fd_proposal *total;
    fd_error *err;
} proposer;

static const char *node_name(const proposer *p, int32_t node) {
    return fd_trace_node_at(p->ref, node)->name;
}

/* ---- names ---- */

static proposed *add_item(proposer *p, const char *name, const char *slice) {
    if (p->n == p->room) {
        size_t room = p->room ? 2 * p->room : 256;
        proposed *items = realloc(p->items, room * sizeof *items);
        if (!items) return NULL;
        p->items = items;
        p->room = room;
    }
    proposed *item = &p->items[p->n++];
    *item = (proposed){0};
    snprintf(item->name, sizeof item->name, "%s", name);
    snprintf(item->slice, sizeof item->slice, "%s", slice);
    return item;
}

static bool add_tensor(proposed *item, size_t tensor) {
    size_t *tensors = realloc(item->tensors, (item->n + 1) * sizeof *tensors);
    if (!tensors) return false;
    item->tensors = tensors;
    tensors[item->n++] = tensor;
    return true;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const proposed *)a)->name, ((const proposed *)b)->name);
}

static fd_code gather(proposer *p) {
    fd_code memory = FD_OK;
    for (size_t i = 0; memory == FD_OK && i < fd_source_count(p->source); i++) {
        const fd_source_tensor *t = fd_source_at(p->source, i);
        char name[256];
        int n = t->n_same > 1 ? snprintf(name, sizeof name, "%s#%d", t->name, t->occurrence)
                              : snprintf(name, sizeof name, "%s", t->name);
        if (n < 0 || (size_t)n >= sizeof name || strpbrk(name, " \t*{|")) /* not to be written as a pattern */
            return fd_fail(p->err, FD_ERR_INPUT,
                           "%s: tensor \"%.200s\": a name with spaces, * { | or of more than 255 bytes",
                           fd_source_path(p->source), t->name);
        proposed *item = add_item(p, name, "");
        if (!item || !add_tensor(item, i)) memory = fd_fail(p->err, FD_ERR_MEMORY, "map auto: out of memory");
    }
    if (memory != FD_OK) return memory;
    qsort(p->items, p->n, sizeof *p->items, by_name);
    size_t kept = 0;
    for (size_t i = 0; i < p->n; i++) { /* the same name in all steps is one item */
        proposed *last = kept ? &p->items[kept - 1] : NULL;
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

static void judge(proposed *item) {
    item->matched = item->best[0].node >= 0 && item->best[0].away <= FAR;
    /* an exact hit leaves room for rounding in float elements */
    double near = item->best[0].away > 1e-12 ? item->best[0].away : 1e-12;
    item->clear = item->matched && (item->best[1].node < 0 || item->best[1].away >= CLEAR * near);
}

/* A cache's row has the values of what was written to it; a name with "cache" in it means the copy. */
static void prefer_cache(const proposer *p, proposed *item) {
    for (int32_t v = 0; item->clear && strcasestr(item->name, "cache") && v < fd_trace_n_node(p->ref); v++) {
        const fd_trace_node *node = fd_trace_node_at(p->ref, v);
        if (strcmp(node->op, "kv_write") == 0 && strcmp(node->inputs[0], node_name(p, item->best[0].node)) == 0) {
            item->best[0].node = v;
            return;
        }
    }
}

static fd_code rank(proposer *p, fd_scorer *scorer, proposed *item) {
    FD_TRY(fd_scorer_rank(scorer, item->tensors, item->n, item->slice, item->best, p->err));
    judge(item);
    prefer_cache(p, item);
    return FD_OK;
}

/* Q, K and V, or gate and up, in one array: each part is a tensor of its own. */
static fd_code split(proposer *p, fd_scorer *scorer, size_t at) {
    const int64_t *of = p->plan.values.of;
    int64_t q = of[FD_NAME_MAP_N_HEAD] * of[FD_NAME_MAP_HEAD_DIM],
            kv = of[FD_NAME_MAP_N_HEAD_KV] * of[FD_NAME_MAP_HEAD_DIM], ff = p->plan.graph->hparams.n_ff;
    const fd_source_tensor *t = fd_source_at(p->source, p->items[at].tensors[0]);
    int64_t width = t->rank ? t->shape[t->rank - 1] : 0;
    const int64_t qkv[] = {0, q, q + kv, q + 2 * kv}, gate_up[] = {0, ff, 2 * ff};
    const int64_t *ends = width == q + 2 * kv ? qkv : width == 2 * ff ? gate_up : NULL;
    size_t n_part = ends == qkv ? 3 : 2, n_found = 0, start = p->n;
    for (size_t i = 0; ends && i < n_part; i++) {
        char slice[24], name[256];
        strcpy(name, p->items[at].name);
        snprintf(slice, sizeof slice, "slice=%lld:%lld", (long long)ends[i], (long long)ends[i + 1]);
        proposed *item = add_item(p, name, slice);
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

static fd_code rank_all(proposer *p, fd_scorer *scorer) {
    size_t n = p->n;
    for (size_t i = 0; i < n; i++) {
        const fd_source_tensor *t = fd_source_at(p->source, p->items[i].tensors[0]);
        if (!fd_array_is_float(t->type) && t->type != FD_ARRAY_U16) continue; /* ids and masks */
        FD_TRY(rank(p, scorer, &p->items[i]));
        if (!p->items[i].matched) FD_TRY(split(p, scorer, i));
    }
    return FD_OK;
}

/* ---- lines ---- */

/* The name with its k-th number (from 0) as {layer}, or {layer+1} when it is one more than the layer; false when it is
 * neither, or there is no such number. */
static bool with_layer(const char *name, int k, int32_t layer, char *out, size_t size) {
    size_t at = 0;
    for (const char *c = name; *c;) {
        const char *end = c;
        while (isdigit((unsigned char)*end)) end++;
        bool number = end > c && !(c > name && c[-1] == '#');
        long value = number ? strtol(c, NULL, 10) : 0;
        if (number && k-- == 0) {
            if (value != layer && value != layer + 1) return false;
            int n = snprintf(out + at, size - at, "%s%s", value == layer ? "{layer}" : "{layer+1}", end);
            return n > 0 && (size_t)n < size - at;
        }
        if (end == c) end++;
        if (at + (size_t)(end - c) >= size) return false;
        memcpy(out + at, c, (size_t)(end - c));
        at += (size_t)(end - c);
        out[at] = '\0';
        c = end;
    }
    return false;
}

static void node_pattern(const char *node, int32_t layer, char out[96]) {
    const char *tail = layer >= 0 ? strchr(node + 4, '.') : NULL;
    if (tail)
        snprintf(out, 96, "blk.{layer}%s", tail);
    else
        snprintf(out, 96, "%s", node);
}

static double confidence(const proposed *item) {
    double next = item->best[1].node >= 0 ? item->best[1].away : 1;
    return (1 - item->best[0].away) * (1 - (next > 0 ? item->best[0].away / next : 1));
}

/* The factor as an operation: 1, or one of those that attention and embeddings use. They are far apart, and behind a bug
 * lengths change as well: a fifth is allowed. */
static bool factor_text(const proposer *p, double factor, char out[40]) {
    const double head_dim = (double)p->plan.values.of[FD_NAME_MAP_HEAD_DIM],
                 n_embd = (double)p->plan.values.of[FD_NAME_MAP_N_EMBD];
    const struct {
        double value;
        const char *text;
    } known[] = {{1, ""},
                 {1 / sqrt(head_dim), " scale=1/sqrt(head_dim)"},
                 {sqrt(head_dim), " scale=sqrt(head_dim)"},
                 {1 / sqrt(n_embd), " scale=1/sqrt(n_embd)"},
                 {sqrt(n_embd), " scale=sqrt(n_embd)"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (fabs(factor / known[i].value - 1) < 0.2) return snprintf(out, 40, "%s", known[i].text), true;
    return out[0] = '\0', false;
}

/* What would be written for the item, and whether two items say the same. */
typedef struct line {
    char source[300], node[96], ops[FD_PROPOSE_MAX_OPS + 40];
    bool factor_known;
} line;

static line line_of(const proposer *p, const proposed *item, int number) {
    const fd_candidate *best = &item->best[0];
    const fd_trace_node *node = fd_trace_node_at(p->ref, best->node);
    line l = {0};
    char factor[40];
    l.factor_known = factor_text(p, best->factor, factor);
    snprintf(l.ops, sizeof l.ops, "%s%s", best->ops, factor);
    if (number >= 0 && node->layer >= 0 && with_layer(item->name, number, node->layer, l.source, sizeof l.source)) {
        node_pattern(node->name, node->layer, l.node);
    } else {
        snprintf(l.source, sizeof l.source, "%s", item->name);
        snprintf(l.node, sizeof l.node, "%s", node->name);
    }
    return l;
}

static bool same_line(const line *a, const line *b) {
    return strcmp(a->source, b->source) == 0 && strcmp(a->node, b->node) == 0 && strcmp(a->ops, b->ops) == 0 &&
           a->factor_known == b->factor_known;
}

/* Would the pattern also take a name whose values say something else? */
static bool pattern_misleads(const proposer *p, const line *l, int number) {
    for (size_t i = 0; i < p->n; i++) {
        const proposed *item = &p->items[i];
        fd_name_map_capture capture;
        if (item->written || !item->clear || item->slice[0] || !fd_name_map_matches(l->source, item->name, &capture))
            continue;
        line other = line_of(p, item, number);
        if (!same_line(l, &other)) return true;
    }
    return false;
}

/* Names that the pattern takes although their own values decide nothing, as those behind a bug: the other layers' names
 * speak for them. Appends their layers to `said`. */
static void take_by_name(proposer *p, const line *l, const char *slice, char *said, size_t size) {
    size_t at = 0;
    for (size_t i = 0; i < p->n; i++) {
        proposed *item = &p->items[i];
        fd_name_map_capture capture;
        char node[96];
        const fd_name_map_rule rule = {.node = (char *)(uintptr_t)l->node};
        if (item->written || item->clear || strcmp(item->slice, slice) != 0 ||
            !fd_name_map_matches(l->source, item->name, &capture))
            continue;
        if (capture.layer < 0 || !fd_name_map_node(&rule, &capture, node, sizeof node) ||
            fd_trace_find(p->ref, node) < 0)
            continue;
        item->written = true;
        item->best[0].node = fd_trace_find(p->ref, node);
        item->matched = true;
        p->total->n_by_name++;
        if (at + 12 < size) at += (size_t)snprintf(said + at, size - at, "%s%d", at ? ", " : "", capture.layer);
    }
}

static void write_line(proposer *p, const line *l, double sure, const proposed *item, size_t n, const char *by_name) {
    char next[160] = "no other node has its size";
    if (item->best[1].node >= 0)
        snprintf(next, sizeof next, "next %s, cosine %.4f", node_name(p, item->best[1].node), 1 - item->best[1].away);
    fprintf(p->out, "%-44s -> %s%s%s  # %.3f: cosine %.6f, %s", l->source, l->node, *l->ops ? " " : "", l->ops, sure,
            1 - item->best[0].away, next);
    if (n > 1) fprintf(p->out, "; the least of %zu layers", n);
    if (*by_name) fprintf(p->out, "; by name alone in layers %s", by_name);
    if (!l->factor_known) fprintf(p->out, "; its values are %.6g times the node's", 1 / item->best[0].factor);
    fprintf(p->out, "\n");
}

/* Writes the item's line together with all others that it stands for with {layer}. */
static void write_sure(proposer *p, proposed *item) {
    line single = line_of(p, item, -1), best = single;
    size_t most = 1;
    int number = -1;
    for (int k = 0; k < 4; k++) {
        line l = line_of(p, item, k);
        size_t n = 0;
        if (strcmp(l.source, single.source) == 0) continue;
        for (size_t i = 0; i < p->n; i++) {
            if (!p->items[i].clear || p->items[i].written) continue;
            line other = line_of(p, &p->items[i], k);
            n += same_line(&l, &other);
        }
        if (n > most && !pattern_misleads(p, &l, k)) {
            most = n;
            best = l;
            number = k;
        }
    }
    const proposed *least = item;
    for (size_t i = 0; number >= 0 && i < p->n; i++) {
        proposed *other = &p->items[i];
        if (!other->clear || other->written) continue;
        line l = line_of(p, other, number);
        if (!same_line(&best, &l)) continue;
        other->written = true;
        p->total->n_sure++;
        if (confidence(other) < confidence(least)) least = other;
    }
    if (!item->written) p->total->n_sure++;
    item->written = true;
    char by_name[80] = "";
    if (number >= 0) take_by_name(p, &best, item->slice, by_name, sizeof by_name);
    write_line(p, &best, confidence(least), least, most, by_name);
}

static void write_ask(proposer *p, proposed *item) {
    fprintf(p->out, "ask %s -> %s", item->name, node_name(p, item->best[0].node));
    for (int i = 1;
         i < FD_PROPOSE_KEEP && item->best[i].node >= 0 && item->best[i].away < CLEAR * item->best[0].away + 1e-11; i++)
        fprintf(p->out, " | %s", node_name(p, item->best[i].node));
    fprintf(p->out, "%s%s  #", *item->best[0].ops ? " " : "", item->best[0].ops);
    for (int i = 0; i < FD_PROPOSE_KEEP && item->best[i].node >= 0; i++)
        fprintf(p->out, " %.6f", 1 - item->best[i].away);
    fprintf(p->out, "\n");
    item->written = true;
    p->total->n_ask++;
}

static bool is_known(const proposer *p, const fd_import_options *o, const proposed *item) {
    const fd_source_tensor *t = fd_source_at(p->source, item->tensors[0]);
    bool tokens =
        strcmp(t->name, "tokens") == 0 || strcmp(t->name, "input_ids") == 0 || strncmp(t->name, "inp_tokens", 10) == 0;
    return tokens || (o->allow && fd_name_map_listed(o->allow, t->name));
}

static void write_rest(proposer *p, const fd_import_options *o) {
    char shape[128];
    for (size_t i = 0; i < p->n; i++)
        if (!p->items[i].written && p->items[i].matched) write_ask(p, &p->items[i]);
    for (size_t i = 0; i < p->n; i++) {
        proposed *item = &p->items[i];
        if (item->written) continue;
        const fd_source_tensor *t = fd_source_at(p->source, item->tensors[0]);
        bool known = is_known(p, o, item);
        fprintf(p->out, "%s %s  # %s %s", known ? "allow" : "# unmatched", item->name, fd_array_type_name(t->type),
                fd_array_shape_text(t->rank, t->shape, shape));
        if (item->best[0].node >= 0)
            fprintf(p->out, ", nearest %s, cosine %.3f", node_name(p, item->best[0].node), 1 - item->best[0].away);
        fprintf(p->out, "\n");
        if (!known) p->total->n_unmatched++;
    }
}

static void write_missing(proposer *p) {
    for (int32_t v = 0; v < fd_trace_n_node(p->ref); v++) {
        bool found = strcmp(fd_trace_node_at(p->ref, v)->op, "kv_write") == 0; /* a copy, never proposed */
        for (size_t i = 0; !found && i < p->n; i++) found = p->items[i].matched && p->items[i].best[0].node == v;
        if (found) continue;
        fprintf(p->out, "# nothing is %s\n", node_name(p, v));
        p->total->n_missing++;
    }
}

static int32_t order_of(const proposed *item) {
    return item->best[0].node < 0 ? INT32_MAX : item->best[0].node;
}

static int by_node(const void *a, const void *b) {
    const proposed *x = a, *y = b;
    if (order_of(x) != order_of(y)) return order_of(x) < order_of(y) ? -1 : 1;
    return strcmp(x->name, y->name);
}

static fd_code propose(proposer *p, const fd_import_options *options) {
    fd_scorer *scorer;
    FD_TRY(gather(p));
    FD_TRY(fd_scorer_new(&p->plan, p->ref, &scorer, p->err));
    fd_code code = rank_all(p, scorer);
    fd_scorer_free(scorer);
    if (code != FD_OK) return code;
    qsort(p->items, p->n, sizeof *p->items, by_node);
    fprintf(p->out, "# Proposed for %s. Each line: confidence, cosine with the node's values, the next best node.\n",
            fd_source_path(p->source));
    for (size_t i = 0; i < p->n; i++)
        if (p->items[i].clear && !p->items[i].written) write_sure(p, &p->items[i]);
    write_rest(p, options);
    write_missing(p);
    return ferror(p->out) ? fd_fail(p->err, FD_ERR_IO, "map auto: the map cannot be written") : FD_OK;
}

fd_code fd_propose_map(const fd_source *source, const fd_import_options *options, const fd_trace *ref, FILE *out,
                       fd_proposal *proposal, fd_error *err) {
    proposer p = {.source = source, .ref = ref, .out = out, .total = proposal, .err = err};
    *proposal = (fd_proposal){0};
    FD_TRY(fd_import_begin_plan(source, options, &p.plan, err));
    fd_code code = p.plan.n_token == fd_trace_n_pos(ref)
                       ? propose(&p, options)
                       : fd_fail(err, FD_ERR_INPUT, "%s: %d tokens, the reference %s has %d positions",
                                 fd_source_path(source), p.plan.n_token, fd_trace_path(ref), fd_trace_n_pos(ref));
    for (size_t i = 0; i < p.n; i++) free(p.items[i].tensors);
    free(p.items);
    fd_import_plan_free(&p.plan);
    return code;
}
