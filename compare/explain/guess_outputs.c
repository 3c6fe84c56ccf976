#include <math.h>

#include "compare/explain/guesses.h"
#include "compare/explain/solve.h"

/* ---- values ---- */

/* The elements of a row that are beyond in any row (of scores and weights the heads): [first, end), and the factor that
 * fits them best. */
static double factor_of_region(const fd_trial *t, int32_t *first, int32_t *end) {
    const fd_explain_request *r = t->all.request;
    const fd_variant *plain = &t->all.plain;
    int64_t width = fd_node_row_stride(r->args.node, r->args.n_kv), each = r->args.node->over_kv ? r->args.n_kv : 1;
    /* of a cache all rows are judged; those of earlier steps are as they should be */
    const int64_t from = r->n_unjudged > r->n_earlier ? r->n_unjudged : r->n_earlier;
    double cy = 0, yy = 0;
    *first = INT32_MAX;
    *end = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t i = from * width; i < r->args.n_pos * width; i++) {
            int32_t at = (int32_t)(i % width / each);
            if (each > 1 && i % each > r->args.pos0 + i / width) continue; /* past the row's own position */
            double c = r->output[i], y = plain->rows[i], tau = plain->tau ? plain->tau[i] : 0;
            if (pass == 0 && !(fabs(c - y) <= tau)) {
                if (at < *first) *first = at;
                if (at >= *end) *end = at + 1;
            }
            if (pass == 1 && at >= *first && at < *end && isfinite(c) && isfinite(y)) {
                cy += c * y;
                yy += y * y;
            }
        }
    return yy > 0 ? cy / yy : 1;
}

/* The first columns that are zero in every row, and are no zeros where the op is right: where bounds are a little too narrow, others may
 * be beyond as well. */
static bool zero_region(const fd_trial *t, int32_t *first, int32_t *end) {
    const fd_explain_request *r = t->all.request;
    const int64_t width = fd_node_width(r->args.node);
    *first = *end = 0;
    for (int64_t at = 0; at < width && !r->args.node->over_kv; at++) {
        bool zero = true, right = true;
        for (int64_t row = r->n_unjudged; row < r->args.n_pos; row++) {
            zero &= fabsf(r->output[row * width + at]) <= 0;
            right &= fabsf(t->all.plain.rows[row * width + at]) <= 0;
        }
        if (!zero || right) {
            if (*end > *first) break;
            continue;
        }
        if (*end == *first) *first = (int32_t)at;
        *end = (int32_t)at + 1;
    }
    return *end > *first;
}

static bool has_bias(const fd_node *node) {
    return (node->op == FD_OP_MATMUL || node->op == FD_OP_CONV) && node->weight[1] >= 0;
}

/* Bounds have room for few digits of it, too. */
#define NEAR_ROOT 2e-6

/* The root of a whole number, or one over it: sqrt(head_dim). The factor itself where there is none near. */
static double root_near(double factor) {
    const double square = factor * factor, whole = round(square >= 1 ? square : 1 / square);
    const double root = square >= 1 ? sqrt(whole) : 1 / sqrt(whole);
    return fabs(root / fabs(factor) - 1) <= NEAR_ROOT ? copysign(root, factor) : factor;
}

static fd_code try_region(fd_trial *t, const fd_node *node, fd_error *err) {
    fd_hypothesis h = {.guess = FD_GUESS_FACTOR, .node = node->id};
    if (zero_region(t, &h.first, &h.end)) FD_TRY(fd_trial_try(t, &h, err));
    double factor = factor_of_region(t, &h.first, &h.end), rounded = 0;
    if (h.first >= h.end || fd_trial_fits(t)) return FD_OK;
    FD_TRY(fd_trial_try(t, &h, err)); /* zeros */
    h.before_bias = true;
    if (has_bias(node) && !fd_trial_fits(t)) FD_TRY(fd_trial_try(t, &h, err));
    h.before_bias = false;
    fd_hypothesis earlier = {.guess = FD_GUESS_ROWS, .node = node->id, .n = 1};
    if (h.end - h.first < fd_node_width(node)) earlier.first = h.first, earlier.end = h.end;
    if (!node->over_kv && node->op != FD_OP_KV_WRITE && !fd_trial_fits(t)) FD_TRY(fd_trial_try(t, &earlier, err));
    h.value = root_near(factor);
    if ((h.value < factor || h.value > factor) && !fd_trial_fits(t)) FD_TRY(fd_trial_try(t, &h, err));
    for (double unit = 1; unit <= 1e7 && !fd_trial_fits(t); unit *= 10) {
        h.value = round(factor * unit) / unit;
        bool again = h.value <= rounded && h.value >= rounded; /* the same digits */
        rounded = h.value;
        if (!again && fabs(factor - 1) > 0.5 / unit) FD_TRY(fd_trial_try(t, &h, err));
    }
    h.value = factor;
    return fd_trial_fits(t) ? FD_OK : fd_trial_try(t, &h, err);
}

static fd_code try_factors(fd_trial *t, const fd_node *node, fd_error *err) {
    static const double factors[] = {0, -1, 2, 0.5};
    int64_t width = fd_node_row_stride(node, t->all.request->args.n_kv);
    fd_hypothesis h = {
        .guess = FD_GUESS_FACTOR, .node = node->id, .end = node->over_kv ? node->shape[0] : (int32_t)width};
    FD_TRY(fd_try_or_solve(t, h, factors, 4, err));
    h.before_bias = true;
    if (has_bias(node)) FD_TRY(fd_try_or_solve(t, h, factors, 4, err));
    return FD_OK;
}

static fd_code try_cap(fd_trial *t, const fd_node *node, fd_error *err) {
    fd_hypothesis h = {.guess = FD_GUESS_CAP, .node = node->id};
    bool found;
    if (node->op != FD_OP_MATMUL || node->layer >= 0 || fd_trial_fits(t)) return FD_OK;
    return fd_solve(t, h, 30, &found, err); /* as gemma's, near which others are */
}

/* How far the few rows are from `h` with the last `n` elements of each row as its region. */
static fd_code distance_of_tail(fd_trial *t, fd_hypothesis *h, int32_t n, double *distance, fd_error *err) {
    h->first = h->end - n;
    return fd_trial_distance(t, &t->few, h, distance, err);
}

/* The same at other nodes of that op in the span: zeros in gate or in up are zeros in their product. */
static fd_code try_siblings(fd_trial *t, fd_hypothesis h, fd_error *err) {
    const fd_node *nodes = t->all.request->args.graph->nodes, *own = &nodes[h.node];
    for (int32_t i = 0; i < t->n_span; i++) {
        const fd_node *other = &nodes[t->span[i]];
        h.node = other->id;
        if (other != own && other->op == own->op && fd_node_width(other) == fd_node_width(own))
            FD_TRY(fd_trial_try(t, &h, err));
    }
    return FD_OK;
}

/* The length of a tail: near a power of two, between whose neighbours the distance has one minimum. */
static fd_code try_tail(fd_trial *t, fd_hypothesis h, fd_error *err) {
    int32_t width = h.end, best = 0;
    double least = t->few_left / 2, at_a, at_b;
    for (int32_t n = 1; n < width; n *= 2) {
        double distance;
        FD_TRY(distance_of_tail(t, &h, n, &distance, err));
        if (distance < least) least = distance, best = n;
    }
    if (best == 0) return FD_OK;
    int32_t low = best / 2, high = 2 * best < width ? 2 * best : width - 1;
    while (high - low > 2) {
        int32_t a = low + (high - low) / 3, b = high - (high - low) / 3;
        FD_TRY(distance_of_tail(t, &h, a, &at_a, err));
        FD_TRY(distance_of_tail(t, &h, b, &at_b, err));
        if (at_a <= at_b)
            high = b;
        else
            low = a;
    }
    for (int32_t n = low > 0 ? low : 1; n <= high && !fd_trial_fits(t); n++) {
        h.first = width - n;
        FD_TRY(fd_trial_try(t, &h, err));
        if (fd_trial_fits(t)) FD_TRY(try_siblings(t, h, err));
    }
    return FD_OK;
}

/* The last elements of every row were not written: zeros, or the row before. */
static fd_code try_tails(fd_trial *t, const fd_node *node, fd_error *err) {
    fd_hypothesis h = {.guess = FD_GUESS_FACTOR, .node = node->id, .end = (int32_t)fd_node_width(node)};
    if (node->op != FD_OP_MATMUL || fd_trial_fits(t) || fd_trial_exhausted(t)) return FD_OK;
    FD_TRY(try_tail(t, h, err));
    h.before_bias = true;
    if (has_bias(node) && !fd_trial_fits(t)) FD_TRY(try_tail(t, h, err));
    h.before_bias = false;
    h.guess = FD_GUESS_ROWS;
    h.which = FD_ROWS_EARLIER;
    h.n = 1;
    return fd_trial_fits(t) ? FD_OK : try_tail(t, h, err);
}

/* Tiles of a product's outputs in each other's place; where the product is asked about itself they are found by what stands there. */
static fd_code try_tiles(fd_trial *t, const fd_node *node, fd_error *err) {
    for (int32_t tile = 1; tile <= 256 && node->op == FD_OP_MATMUL; tile *= 2) {
        const fd_hypothesis h = {
            .guess = FD_GUESS_ORDER, .node = node->id, .which = FD_ORDER_BLOCKS, .n = 2, .other = tile, .keys = 1};
        if (2 * tile <= fd_node_width(node) && !fd_trial_fits(t)) FD_TRY(fd_trial_try(t, &h, err));
    }
    return FD_OK;
}

/* ---- how it computes ---- */

static fd_code try_twice(fd_trial *t, const fd_node *node, fd_error *err) {
    fd_hypothesis h = {.guess = FD_GUESS_TWICE, .node = node->id};
    const bool can = node->op == FD_OP_RMS_NORM || node->op == FD_OP_LAYER_NORM || node->op == FD_OP_SOFTCAP ||
                     node->op == FD_OP_GELU || node->op == FD_OP_SILU || node->op == FD_OP_SOFTMAX;
    return can && !fd_trial_fits(t) ? fd_trial_try(t, &h, err) : FD_OK;
}

/* ---- places ---- */

static fd_code try_orders(fd_trial *t, const fd_node *node, bool before_bias, fd_error *err) {
    if (node->over_kv || node->op == FD_OP_TOP_K) return FD_OK;
    int32_t n_head = fd_trial_heads_of(t, node);
    for (int rule = 0; rule < FD_ORDER_COUNT && !fd_trial_fits(t); rule++) {
        if (rule == FD_ORDER_HEADS_SWAPPED || rule >= FD_ORDER_PIECES) continue; /* found by what stands there */
        bool of_heads = rule >= FD_ORDER_HEADS_REVERSED && rule <= FD_ORDER_UNTRANSPOSED;
        if (of_heads && n_head < 2) continue;
        const bool in_groups = rule == FD_ORDER_HEADS_STRIDED || rule == FD_ORDER_HEADS_REPEATED;
        int32_t low = rule == FD_ORDER_ROTATED ? -2 : in_groups ? 2 : 1, high = 1;
        if (in_groups || rule == FD_ORDER_HEADS_ROTATED) high = n_head - 1;
        if (rule == FD_ORDER_HEADS_REPEATED) high = n_head;
        if (rule == FD_ORDER_ROTATED) high = 2;
        for (int32_t n = low; n <= high && !fd_trial_fits(t); n++) {
            fd_hypothesis h = {
                .guess = FD_GUESS_ORDER, .node = node->id, .before_bias = before_bias, .which = rule, .n = n};
            if (node->n_dim != 2 && n_head > 1) h.end = n_head;
            if (n == 0 || (in_groups && n_head % n)) continue;
            FD_TRY(fd_trial_try(t, &h, err));
        }
    }
    return FD_OK;
}

/* Of many heads neighbours alone. */
enum { MOST_HEADS_IN_PAIRS = 8 };

static fd_code try_swapped_heads(fd_trial *t, const fd_node *node, fd_error *err) {
    int32_t n_head = node->n_dim == 2 ? node->shape[0] : 1;
    if (node->over_kv || node->op == FD_OP_TOP_K) return FD_OK;
    for (int32_t a = 0; a < n_head; a++)
        for (int32_t b = a + 1; b < n_head && !fd_trial_fits(t) && (b == a + 1 || n_head <= MOST_HEADS_IN_PAIRS); b++) {
            fd_hypothesis h = {
                .guess = FD_GUESS_ORDER, .node = node->id, .which = FD_ORDER_HEADS_SWAPPED, .n = a, .other = b};
            FD_TRY(fd_trial_try(t, &h, err));
        }
    return FD_OK;
}

static fd_code try_rows(fd_trial *t, const fd_node *node, fd_error *err) {
    int32_t n_pos = t->all.request->args.n_pos, pos0 = t->all.request->args.pos0;
    const struct {
        fd_row_rule rule;
        int32_t n;
    } rules[] = {{FD_ROWS_EARLIER, 1},    {FD_ROWS_EARLIER, -1},
                 {FD_ROWS_ALL_ARE, pos0}, {FD_ROWS_ALL_ARE, pos0 + n_pos - 1},
                 {FD_ROWS_ROLLED, 1},     {FD_ROWS_ROLLED, n_pos - 1}};
    if (node->op == FD_OP_KV_WRITE && t->all.request->n_earlier > 0) {
        fd_hypothesis h = {.guess = FD_GUESS_ROWS, .node = node->id, .which = FD_ROWS_LAST_OF_EARLIER};
        FD_TRY(fd_trial_try(t, &h, err));
    }
    if (node->over_kv) return FD_OK;
    for (int i = 0; i < 6 && !fd_trial_fits(t); i++) {
        fd_hypothesis h = {.guess = FD_GUESS_ROWS, .node = node->id, .which = rules[i].rule, .n = rules[i].n};
        FD_TRY(fd_trial_try(t, &h, err));
    }
    return FD_OK;
}

/* What is laid out or looked up: heads of attention's output, rows of an embedding, rows of a cache. */
static bool is_put_in_place(const fd_node *node) {
    return node->op == FD_OP_ATTN_MIX || node->op == FD_OP_EMBED || node->op == FD_OP_KV_WRITE;
}

fd_code fd_guess_places_inside(fd_trial *t, fd_error *err) {
    for (int32_t i = 0; i < t->n_span - 1 && !fd_trial_fits(t); i++) {
        const fd_node *node = &t->all.request->args.graph->nodes[t->span[i]];
        if (!is_put_in_place(node)) continue;
        FD_TRY(try_orders(t, node, false, err));
        FD_TRY(try_swapped_heads(t, node, err));
        FD_TRY(try_rows(t, node, err));
    }
    return FD_OK;
}

static fd_code try_node(fd_trial *t, int32_t i, fd_error *err) {
    const fd_node *node = &t->all.request->args.graph->nodes[t->span[i]];
    FD_TRY(fd_guess_statistics(t, node, err));
    FD_TRY(try_twice(t, node, err));
    if (i == t->n_span - 1 && !fd_trial_fits(t)) FD_TRY(try_region(t, node, err));
    if (!fd_trial_fits(t)) FD_TRY(try_factors(t, node, err));
    FD_TRY(try_cap(t, node, err));
    if (i < t->n_span - 1) FD_TRY(try_tails(t, node, err));
    if (i < t->n_span - 1) FD_TRY(try_tiles(t, node, err));
    FD_TRY(fd_guess_rounding(t, node, err));
    if (i < t->n_span - 1 && is_put_in_place(node)) return FD_OK; /* fd_guess_places_inside */
    FD_TRY(try_orders(t, node, false, err));
    if (i == t->n_span - 1 && has_bias(node)) FD_TRY(try_orders(t, node, true, err));
    FD_TRY(try_swapped_heads(t, node, err));
    return try_rows(t, node, err);
}

fd_code fd_guess_own_outputs(fd_trial *t, fd_error *err) {
    return try_node(t, t->n_span - 1, err);
}

fd_code fd_guess_outputs(fd_trial *t, fd_error *err) {
    for (int32_t i = t->n_span - (fd_trial_many_layers(t) ? 2 : 1); i >= 0 && !fd_trial_fits(t); i--)
        FD_TRY(try_node(t, i, err));
    return FD_OK;
}
