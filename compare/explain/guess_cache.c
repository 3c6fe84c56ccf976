/* Rows of the cache that attention reads, and that are others than were written. Where scores are recorded, each key has a column of
 * its own: which of them depart, and whose they are, is read off; of values guess_values.c asks. Through unrecorded tensors single rows
 * and pages are tried. */
#include <math.h>
#include <stdlib.h>

#include "compare/explain/guesses.h"

enum { MOST_PAGES = 8, MOST_ROWS = 64, MOST_PAGE = 16, MOST_OUTSIDE = 8 };

fd_code fd_guess_cache_rows(fd_trial *t, fd_hypothesis h, fd_error *err) {
    if (h.end == t->all.request->args.n_kv) {
        fd_hypothesis open = h;
        open.end = 0;
        FD_TRY(fd_trial_try(t, &open, err));
        if (fd_trial_fits(t) && h.end - h.first > 1) return FD_OK;
    }
    return fd_trial_try(t, &h, err);
}

/* Of this node's cache; where that fits, of K and V alike: what else is recorded tells. */
static fd_code try_alone_and_both(fd_trial *t, fd_hypothesis h, fd_error *err) {
    FD_TRY(fd_guess_cache_rows(t, h, err));
    h.node = -1;
    h.layer = FD_ANY_LAYER;
    return fd_trial_fits(t) && h.which != FD_CACHE_OF ? fd_guess_cache_rows(t, h, err) : FD_OK;
}

/* Of half as many rows as there are or more: fewer would have shown in steps before. */
static fd_code try_rings(fd_trial *t, int32_t node, fd_error *err) {
    const int32_t n_kv = t->all.request->args.n_kv;
    fd_hypothesis h = {.guess = FD_GUESS_CACHE, .node = node, .layer = FD_ANY_LAYER, .which = FD_CACHE_RING};
    for (h.n = n_kv / 2; h.n < n_kv && n_kv <= MOST_ROWS && !fd_trial_fits(t); h.n++)
        if (h.n > 0) FD_TRY(node < 0 ? fd_trial_try(t, &h, err) : try_alone_and_both(t, h, err));
    return FD_OK;
}

/* ---- keys: read off the scores ---- */

typedef struct columns {
    const fd_explain_request *r;
    const fd_variant *plain;
    int64_t n_head, n_kv, stride;
} columns;

static columns columns_of(const fd_trial *t) {
    const fd_explain_request *r = t->all.request;
    const fd_node *node = r->args.node;
    return (columns){r, &t->all.plain, node->shape[0], r->args.n_kv, fd_node_row_stride(node, r->args.n_kv)};
}

/* In that row key `key` of the candidate is key `of` of the op as it should be; -1: zeros. */
static bool is_key_of_row(const columns *c, int64_t row, int64_t key, int64_t of) {
    for (int64_t head = 0; head < c->n_head; head++) {
        const int64_t at = row * c->stride + head * c->n_kv + key;
        const double is = of < 0 ? 0 : (double)c->plain->rows[at - key + of];
        const double tau = c->plain->tau ? fmax(c->plain->tau[at], of < 0 ? 0 : c->plain->tau[at - key + of]) : 0;
        if (!(fabs((double)c->r->output[at] - is) <= tau)) return false;
    }
    return true;
}

/* In every row that sees both. */
static bool is_column(const columns *c, int64_t key, int64_t of) {
    int64_t n = 0;
    for (int64_t row = c->r->n_unjudged; row < c->r->args.n_pos; row++) {
        const int64_t own = c->r->args.pos0 + row;
        if (key > own || of > own) continue;
        if (!is_key_of_row(c, row, key, of)) return false;
        n++;
    }
    return n > 0;
}

/* Keys [*first, *end) are those that depart, some of those between them perhaps not; false: none. */
static bool keys_that_depart(const columns *c, int32_t *first, int32_t *end) {
    *first = *end = 0;
    for (int32_t key = 0; key < c->n_kv; key++) {
        if (is_column(c, key, key)) continue;
        if (*end == 0) *first = key;
        *end = key + 1;
    }
    return *end > 0;
}

/* Those that hold rows as wide. */
fd_code fd_guess_other_caches(fd_trial *t, fd_hypothesis h, fd_error *err) {
    const fd_graph *graph = t->all.request->args.graph;
    const fd_node *reader = t->all.request->args.node, *own = &graph->nodes[reader->input[1]];
    h.which = FD_CACHE_OF;
    for (int32_t i = 0; i < graph->n_node && !fd_trial_fits(t); i++) {
        const fd_node *other = &graph->nodes[i];
        const int32_t away = other->layer - reader->layer;
        if (i == own->id || !fd_node_is_kv_cache(other) || away < -1 || away > 1) continue;
        if (fd_node_width(other) != fd_node_width(own)) continue;
        h.other = i;
        FD_TRY(fd_guess_cache_rows(t, h, err));
    }
    return FD_OK;
}

static fd_code try_keys(fd_trial *t, fd_error *err) {
    const columns c = columns_of(t);
    fd_hypothesis h = {.guess = FD_GUESS_CACHE, .node = c.r->args.node->id};
    if (!keys_that_depart(&c, &h.first, &h.end)) return FD_OK;
    for (int32_t of = -1; of < c.n_kv && !fd_trial_fits(t); of++) {
        if (of == h.first || !is_column(&c, h.first, of)) continue;
        h.which = of < 0 ? FD_CACHE_ZEROS : FD_CACHE_MOVED;
        h.n = of < 0 ? 0 : of - h.first;
        FD_TRY(try_alone_and_both(t, h, err));
    }
    h.n = 0;
    if (!fd_trial_fits(t)) FD_TRY(try_rings(t, h.node, err));
    return fd_trial_fits(t) ? FD_OK : fd_guess_other_caches(t, h, err);
}

/* A mask that makes scores 0 has the scores of keys that are zeros. Where V's rows are zeros as well, what mixes them tells. */
fd_code fd_guess_zero_keys(fd_trial *t, fd_error *err) {
    const fd_node *node = t->all.request->args.node;
    if (node->op != FD_OP_ATTN_SCORES || !fd_trial_fits(t)) return FD_OK;
    const fd_hypothesis *best = &t->contenders[0].h;
    if (best->guess != FD_GUESS_KEYS || !best->first) return FD_OK;
    const columns c = columns_of(t);
    fd_hypothesis h = {.guess = FD_GUESS_CACHE, .node = node->id, .which = FD_CACHE_ZEROS};
    if (!keys_that_depart(&c, &h.first, &h.end) || !is_column(&c, h.first, -1)) return FD_OK;
    if (best->which == FD_KEYS_SET) h.keys = best->keys;
    return try_alone_and_both(t, h, err);
}

/* ---- through unrecorded tensors ---- */

/* What is read past the last row, where nobody wrote: the nearer of the two. */
static fd_code choose_past_last(fd_trial *t, fd_hypothesis *h, fd_error *err) {
    fd_hypothesis zeros = *h;
    double stays, is_zero;
    zeros.other = 1;
    FD_TRY(fd_trial_distance(t, &t->all, h, &stays, err));
    FD_TRY(fd_trial_distance(t, &t->all, &zeros, &is_zero, err));
    if (is_zero < stays) *h = zeros;
    return FD_OK;
}

/* `node` -1: of K and V alike. */
static fd_code try_pages(fd_trial *t, int32_t node, fd_error *err) {
    const int32_t n_kv = t->all.request->args.n_kv;
    fd_hypothesis h = {.guess = FD_GUESS_CACHE, .node = node, .layer = FD_ANY_LAYER};
    for (h.first = 0; h.first < n_kv && n_kv <= MOST_ROWS; h.first++) /* one row alone */
        for (h.n = -1; h.n <= 1 && !fd_trial_fits(t); h.n++) {
            h.end = h.first + 1;
            h.which = h.n ? FD_CACHE_MOVED : FD_CACHE_ZEROS;
            if (h.first + h.n >= 0 && h.first + h.n < n_kv) FD_TRY(fd_trial_try(t, &h, err));
        }
    for (int sign = -1; sign <= 1 && !fd_trial_fits(t); sign += 2) { /* all of them one further on, or one before */
        h = (fd_hypothesis){
            .guess = FD_GUESS_CACHE, .node = node, .layer = FD_ANY_LAYER, .which = FD_CACHE_MOVED, .n = sign};
        h.first = sign < 0;
        if (sign > 0) FD_TRY(choose_past_last(t, &h, err));
        FD_TRY(fd_trial_try(t, &h, err));
    }
    FD_TRY(try_rings(t, node, err));
    for (int32_t size = 4; size <= 64; size *= 2) {
        const int32_t n = (n_kv + size - 1) / size;
        for (int32_t page = 0; page < n && n <= MOST_PAGES; page++)
            for (int32_t other = -1; other < n && n > 1 && !fd_trial_fits(t); other++) {
                if (page == other) continue;
                h.first = page * size;
                h.end = h.first + size;
                h.n = other < 0 ? 0 : (other - page) * size;
                h.which = other < 0 ? FD_CACHE_ZEROS : FD_CACHE_MOVED;
                FD_TRY(fd_trial_try(t, &h, err));
                h.which = FD_CACHE_EXCHANGED;
                if (page < other && !fd_trial_fits(t)) FD_TRY(fd_trial_try(t, &h, err));
            }
    }
    return FD_OK;
}

fd_code fd_guess_cache(fd_trial *t, fd_error *err) {
    const fd_node *nodes = t->all.request->args.graph->nodes, *node = t->all.request->args.node;
    int32_t both = 0;
    if (node->op == FD_OP_ATTN_SCORES) FD_TRY(try_keys(t, err));
    if (node->op == FD_OP_ATTN_MIX) FD_TRY(fd_guess_values(t, err));
    if (node->op == FD_OP_ATTN_MIX && !fd_trial_fits(t)) FD_TRY(try_rings(t, node->id, err));
    for (int32_t i = t->n_span - 1; i >= 0 && !fd_trial_fits(t); i--) {
        const fd_node *reader = &nodes[t->span[i]];
        both += fd_reads_kv_cache(reader);
        if (both == 2 && reader->op == FD_OP_ATTN_SCORES) FD_TRY(try_pages(t, -1, err));
        if (fd_reads_kv_cache(reader) && !fd_trial_fits(t)) FD_TRY(try_pages(t, reader->id, err));
    }
    return FD_OK;
}

/* ---- rows of nothing in this run ---- */

/* Without being kept: of runs that explain all, the narrowest is the name. */
static fd_code would_fit(fd_trial *t, const fd_hypothesis *h, bool *yes, fd_error *err) {
    fd_variant v;
    FD_TRY(fd_evaluate(t->all.bench, h, t->all.request->args.node->id, true, &v, err));
    *yes = false;
    if (v.state == FD_VARIANT_COMPUTED) {
        const fd_explain_fit fit = fd_trial_fit(t, h, &v);
        *yes = fd_trial_is_fit(t, &fit);
    }
    fd_variant_free(&v);
    return FD_OK;
}

/* Of values: the last run that reaches the end and explains all, without what it has too many at its end. Half of the rows at most,
 * as of keys: as many rows as one likes explain anything. */
static fd_code try_unknown_values(fd_trial *t, fd_hypothesis h, fd_error *err) {
    const int32_t n_kv = t->all.request->args.n_kv;
    bool fits = false;
    h.end = n_kv;
    for (h.first = n_kv - 1; h.first >= 0; h.first--) {
        FD_TRY(would_fit(t, &h, &fits, err));
        if (fits) break;
    }
    if (!fits) return FD_OK;
    for (h.end = h.first + 1; h.end < n_kv; h.end++) {
        FD_TRY(would_fit(t, &h, &fits, err));
        if (fits) break;
    }
    return 2 * (h.end - h.first) > n_kv ? FD_OK : fd_trial_try(t, &h, err);
}

/* Each position's own key is another, which later positions find as it should be: it was written after it was read. */
static fd_code try_own_rows(fd_trial *t, const columns *c, fd_error *err) {
    const fd_hypothesis h = {.guess = FD_GUESS_CACHE, .node = c->r->args.node->id, .which = FD_CACHE_OWN};
    int32_t n_own = 0, n_later = 0;
    for (int64_t row = c->r->n_unjudged; row < c->r->args.n_pos; row++)
        for (int64_t key = 0, own = c->r->args.pos0 + row; key <= own; key++) {
            const bool right = is_key_of_row(c, row, key, key);
            if (key < own && !right) return FD_OK;
            n_own += key == own && !right;
            n_later += key < own && key >= c->r->args.pos0 + c->r->n_unjudged && right;
        }
    return n_own > 1 && n_later > 0 ? try_alone_and_both(t, h, err) : FD_OK;
}

/* From the first key that departs on they are those some places before, but for the first of them. */
static fd_code try_late_slots(fd_trial *t, const columns *c, int32_t first, int32_t end, fd_error *err) {
    fd_hypothesis h = {.guess = FD_GUESS_CACHE, .node = c->r->args.node->id, .which = FD_CACHE_LATE, .first = first};
    for (h.n = 1; first + 2 * h.n <= end && end == c->n_kv && !fd_trial_fits(t); h.n++)
        if (is_column(c, first + h.n, first)) FD_TRY(try_alone_and_both(t, h, err));
    return FD_OK;
}

/* Roundings of 16 bits in attention leave as much as the few directions of other keys. */
#define MOST_ROUNDING 0x1p-22

/* Of attention that shows its output alone: rows from the first that departs on one place too far, which each position's own row that
 * is none of its own explains as well; that, in several rows; a row; a page, of K and V alike; last, keys besides all these. */
static fd_code try_attended(fd_trial *t, fd_error *err) {
    const fd_explain_request *r = t->all.request;
    fd_hypothesis h = {.guess = FD_GUESS_CACHE, .node = -1, .layer = FD_ANY_LAYER, .which = FD_CACHE_LATE, .n = 1};
    const int32_t n_kv = r->args.n_kv;
    const fd_numerics_class *c = r->numerics;
    if (!c || fmax(fmax(c->u_attn, c->u_in), fmax(c->u_kv, c->u_op)) > MOST_ROUNDING) return FD_OK;
    h.first = r->args.pos0 + r->n_unjudged;
    const bool several = t->out->n_departing > 1;
    if (several) FD_TRY(fd_trial_try(t, &h, err));
    h = (fd_hypothesis){.guess = FD_GUESS_CACHE, .node = -1, .layer = FD_ANY_LAYER, .which = FD_CACHE_OWN};
    if (!fd_trial_fits(t) && several) FD_TRY(fd_trial_try(t, &h, err));
    h.which = FD_CACHE_UNKNOWN;
    for (int32_t size = 1; size <= MOST_PAGE; size *= size == 1 ? 4 : 2)
        for (h.first = 0; h.first < n_kv && !fd_trial_fits(t); h.first += size) {
            h.end = h.first + size;
            FD_TRY(fd_trial_try(t, &h, err));
        }
    h.which = FD_CACHE_OUTSIDE;
    h.first = h.end = 0;
    for (h.n = 1; h.n <= MOST_OUTSIDE && !fd_trial_fits(t); h.n++) FD_TRY(fd_trial_try(t, &h, err));
    return FD_OK;
}

/* Was what is mixed, or the scores that it comes from, recorded? */
static bool shows_weights(const fd_explain_request *r) {
    const fd_node *softmax = &r->args.graph->nodes[r->args.node->input[0]];
    return !r->tensor || r->tensor(r->user, softmax->id) || r->tensor(r->user, softmax->input[0]);
}

/* Of keys: whole columns, few enough that the others say all else is right. */
fd_code fd_guess_unknown_cache(fd_trial *t, fd_error *err) {
    const fd_explain_request *r = t->all.request;
    fd_hypothesis h = {.guess = FD_GUESS_CACHE, .node = r->args.node->id, .which = FD_CACHE_UNKNOWN};
    if (!fd_fit_clearly_beyond(&t->out->unmodified))
        return FD_OK; /* a value that rounding took to its other side is no other row */
    if (r->args.node->op == FD_OP_ATTN_SCORES) {
        const columns c = columns_of(t);
        if (!keys_that_depart(&c, &h.first, &h.end)) return FD_OK;
        FD_TRY(try_late_slots(t, &c, h.first, h.end, err));
        if (!fd_trial_fits(t)) FD_TRY(try_own_rows(t, &c, err));
        if (fd_trial_fits(t) || 2 * (h.end - h.first) > r->args.n_kv) return FD_OK;
        return try_alone_and_both(t, h, err);
    }
    if (r->args.node->op != FD_OP_ATTN_MIX || r->args.n_kv > MOST_ROWS) return FD_OK;
    FD_TRY(try_unknown_values(t, h, err));
    return fd_trial_fits(t) || shows_weights(r) ? FD_OK : try_attended(t, err);
}
