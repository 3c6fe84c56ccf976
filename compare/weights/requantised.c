#include "compare/weights/requantised.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/weights/requantised_sample.h"

/* Weights of which all grids are tried until one fits; and elements that are held in binary32, 4 GiB of them. */
enum { MOST_TRIED = 4, MOST_WEIGHTS_REFINED = 16 };
#define MOST_HELD (1ll << 30)

typedef enum weight_state { UNTOLD, OWN, AGAIN } weight_state;

typedef struct weights_asked {
    const fd_requantised_options *o;
    const fd_graph *graph;
    int32_t *reader;     /* [n_weight] the first node that reads it as a matrix, recorded if any is; -1: none; owned */
    weight_state *state; /* [n_weight] owned */
    fd_requantisation *grid; /* [n_weight] of AGAIN; owned */
    int32_t n_tried, first;  /* first: weight that was quantised again; -1: none yet */
} weights_asked;

static bool is_matrix(const fd_graph *graph, const fd_node *node) {
    const bool reads = node->op == FD_OP_EMBED || node->op == FD_OP_MATMUL || node->op == FD_OP_EXPERT_MATMUL;
    return reads && node->weight[0] >= 0 && graph->weights[node->weight[0]].n_row > 1;
}

/* ---- one weight ---- */

/* Of the size of what the weight gives. */
static double left_of(const fd_requantised_sample *s, const fd_requantisation *q) {
    const fd_requantised_slope slope = fd_requantised_slope_of(s, q);
    return isfinite(slope.error) && s->size > 0 ? slope.after / s->size : INFINITY;
}

/* Scales in 16 bits move the numbers of a fine grid by steps. */
enum { MOVED_BY_SCALES = 6 };

/* All grids whose numbers are kept in one of `n_way` ways from `way` on; the best that fits. */
static bool try_grids(const fd_requantised_sample *s, int32_t way, int32_t n_way, fd_requantisation *best) {
    enum { MOST_GRIDS = 1024 };
    fd_requantised_slope of[MOST_GRIDS];
    fd_requantisation q;
    int32_t n = 0, at = -1;
    while (n < MOST_GRIDS / n_way && fd_requantisation_at(n, &q)) n++;
    n *= n_way;
#pragma omp parallel for schedule(dynamic) private(q)
    for (int32_t i = 0; i < n; i++) {
        fd_requantisation_at(i / n_way, &q);
        fd_requantisation_keep(&q, way + i % n_way);
        of[i] = (fd_requantised_slope){.error = INFINITY};
        const bool told = way == 0 || q.bits >= MOVED_BY_SCALES;
        if (told && fd_requantisation_fits(&q, s->weight->n_col) && fd_requantised_may_fit(s, &q))
            of[i] = fd_requantised_slope_of(s, &q);
    }
    for (int32_t i = 0; i < n; i++)
        if (fd_requantised_fits(&of[i]) && (at < 0 || of[i].after < of[at].after)) at = i;
    if (at < 0) return false;
    fd_requantisation_at(at / n_way, best);
    fd_requantisation_keep(best, way + at % n_way);
    return true;
}

static bool try_all(const fd_requantised_sample *s, fd_requantisation *best) {
    return try_grids(s, 0, 1, best) || try_grids(s, 1, FD_REQUANTISATION_WAYS - 1, best);
}

/* int8 rows of weights beside int8 rows of activations are a class, w8a8: what they leave is theirs. */
#define WEIGHTS_ALONE 0.25

static bool is_of_class(const fd_requantised_sample *s, const fd_requantisation *q) {
    const fd_requantised_slope slope = fd_requantised_slope_of(s, q);
    return q->bits == 8 && q->group == 0 && !(slope.after <= WEIGHTS_ALONE * slope.before);
}

static void ask_weight(weights_asked *a, int32_t w, const fd_requantised_sample *s) {
    const bool known = a->first >= 0;
    fd_requantisation q = known ? a->grid[a->first] : (fd_requantisation){0};
    fd_requantised_slope slope = {.error = INFINITY};
    if (fd_requantised_sample_is_right(s)) {
        a->state[w] = OWN;
        return;
    }
    if (known && fd_requantisation_fits(&q, s->weight->n_col)) slope = fd_requantised_slope_of(s, &q);
    bool fits = fd_requantised_fits(&slope);
    if (!fits && a->n_tried < MOST_TRIED) {
        a->n_tried++;
        fits = try_all(s, &q);
        if (fits) a->n_tried = 0; /* engines that mix widths have few */
    }
    if (fits && !is_of_class(s, &q)) {
        a->state[w] = AGAIN;
        a->grid[w] = q;
        if (!known) a->first = w;
    } else if (fd_requantised_refuted(&slope)) {
        a->state[w] = OWN;
    }
}

static fd_code ask_each(weights_asked *a, fd_error *err) {
    for (int32_t w = 0; w < a->graph->n_weight; w++) {
        fd_requantised_sample s;
        bool known = false;
        const int32_t reader = a->reader[w];
        if (reader < 0 || a->state[w] != UNTOLD || a->graph->nodes[reader].op == FD_OP_EXPERT_MATMUL) continue;
        fd_code code = fd_requantised_sample_open(a->o, reader, &s, &known, err);
        if (code == FD_OK && known) ask_weight(a, w, &s);
        fd_requantised_sample_free(&s);
        FD_TRY(code);
        if (a->first < 0 && a->n_tried >= MOST_TRIED) return FD_OK;
    }
    return FD_OK;
}

/* ---- all of them ---- */

/* Squares of binary32's rounding: rows of an embedding that are met exactly decide, whatever products leave. */
#define NOTHING_LEFT 0x1p-44

enum { N_VARIANT = FD_REQUANTISE_RULES * FD_REQUANTISATION_WAYS };

static fd_requantisation variant_of(const fd_requantisation *q, int32_t i) {
    fd_requantisation out = *q;
    out.rule = (fd_requantise_rule)(i / FD_REQUANTISATION_WAYS);
    fd_requantisation_keep(&out, i % FD_REQUANTISATION_WAYS);
    return out;
}

static bool are_alike(const fd_requantisation *a, const fd_requantisation *b) {
    return a->rule == b->rule && a->bits == b->bits && a->group == b->group && a->dtype == b->dtype;
}

/* Weights of one grid may be nearer to those of another engine, or of scales in 16 bits. */
static fd_code refine(weights_asked *a, fd_error *err) {
    const fd_requantisation first = a->grid[a->first];
    double left[N_VARIANT] = {0};
    int32_t n = 0, best = 0;
    for (int32_t w = 0; w < a->graph->n_weight && n < MOST_WEIGHTS_REFINED; w++) {
        fd_requantised_sample s;
        bool known = false;
        if (a->state[w] != AGAIN || !are_alike(&a->grid[w], &first)) continue;
        fd_code code = fd_requantised_sample_open(a->o, a->reader[w], &s, &known, err);
#pragma omp parallel for schedule(dynamic) if (known)
        for (int i = 0; i < N_VARIANT; i++) {
            const fd_requantisation q = variant_of(&first, i);
            if (known)
                left[i] += fd_requantisation_fits(&q, s.weight->n_col) ? log(left_of(&s, &q) + NOTHING_LEFT) : INFINITY;
        }
        n += known;
        fd_requantised_sample_free(&s);
        FD_TRY(code);
    }
    for (int i = 1; i < N_VARIANT; i++)
        if (left[i] < left[best]) best = i;
    for (int32_t w = 0; w < a->graph->n_weight; w++)
        if (a->state[w] == AGAIN && are_alike(&a->grid[w], &first)) a->grid[w] = variant_of(&first, best);
    return FD_OK;
}

static bool of_one_kind(const weights_asked *a, int32_t v, int32_t w) {
    const fd_node *nodes = a->graph->nodes;
    const bool outside = nodes[a->reader[v]].layer < 0 && nodes[a->reader[w]].layer < 0;
    return outside || fd_fault_same_kind(&nodes[a->reader[v]], &nodes[a->reader[w]]);
}

/* Of the weights that something tells: that was quantised again if most were. */
static int32_t most_are_like(const weights_asked *a, const bool *told) {
    int32_t n = 0, own = a->first;
    for (int32_t w = 0; w < a->graph->n_weight; w++) {
        if (!told[w]) continue;
        n += a->state[w] == AGAIN ? 1 : -1;
        if (a->state[w] == OWN) own = w;
    }
    return n >= 0 ? a->first : own;
}

/* What nothing recorded tells is as its like in other layers, else as most are. */
static void assume_the_rest(weights_asked *a, const bool *told) {
    const int32_t most = most_are_like(a, told);
    for (int32_t w = 0; w < a->graph->n_weight; w++) {
        int32_t like = most;
        if (a->reader[w] < 0 || told[w]) continue;
        for (int32_t v = 0; v < a->graph->n_weight; v++)
            if (a->reader[v] >= 0 && told[v] && of_one_kind(a, v, w)) like = v;
        a->state[w] = a->state[like];
        a->grid[w] = a->grid[like];
        if (!fd_requantisation_fits(&a->grid[w], a->graph->weights[w].n_col)) a->state[w] = OWN;
    }
}

/* ---- what is said ---- */

static void list_others(const weights_asked *a, int32_t first, fd_verdict_weights *v) {
    size_t at = 0;
    int32_t n_left = v->n_differ - 1;
    for (int32_t w = 0; w < a->graph->n_weight; w++) {
        const char *name = a->graph->weights[w].name;
        if (w == first || a->reader[w] < 0 || a->state[w] != AGAIN) continue;
        if (at + strlen(name) + 24 > sizeof v->others) {
            snprintf(v->others + at, sizeof v->others - at, " and %d more", n_left);
            return;
        }
        at += (size_t)snprintf(v->others + at, sizeof v->others - at, "%s%s", at ? ", " : "", name);
        n_left--;
    }
}

static void describe(const weights_asked *a, const bool *told, fd_verdict_weights *v) {
    int32_t first = -1;
    *v = (fd_verdict_weights){.compared = true, .against_model = true, .by_values = true, .first_row = -1};
    v->n_zero_row = v->n_trailing_zero_row = v->expected_zero_row = v->expected_trailing_zero_row = -1;
    for (int32_t w = 0; w < a->graph->n_weight; w++) {
        if (a->reader[w] < 0) continue;
        v->n_same += a->state[w] == OWN;
        v->n_differ += a->state[w] == AGAIN;
        v->n_explained += a->state[w] == AGAIN && told[w];
        if (a->state[w] == AGAIN && told[w] && (first < 0 || a->reader[w] < a->reader[first])) first = w;
    }
    list_others(a, first, v);
    const fd_weight *weight = &a->graph->weights[first];
    snprintf(v->name, sizeof v->name, "%s", weight->name);
    snprintf(v->node, sizeof v->node, "%s", a->graph->nodes[a->reader[first]].name);
    snprintf(v->dtype, sizeof v->dtype, "%s", fd_dtype_get(weight->dtype)->name);
    snprintf(v->expected_dtype, sizeof v->expected_dtype, "%s", v->dtype);
    v->n_row = v->expected_n_row = weight->n_row;
    v->n_col = v->expected_n_col = weight->n_col;
    fd_requantised_say(&a->grid[first], v);
}

static fd_code hold(const weights_asked *a, fd_verdict_weights *v, fd_loaded_weights *loaded, fd_error *err) {
    int64_t n = 0;
    for (int32_t w = 0; w < a->graph->n_weight; w++)
        if (a->state[w] == AGAIN) n += a->graph->weights[w].n_row * a->graph->weights[w].n_col;
    if (n > MOST_HELD) { /* too large to be judged by them */
        loaded->unknown = calloc((size_t)a->graph->n_node + 1, sizeof *loaded->unknown);
        if (!loaded->unknown) return fd_fail(err, FD_ERR_MEMORY, "weights quantised again: out of memory");
        for (int32_t i = 0; i < a->graph->n_node; i++) {
            const int32_t w = a->graph->nodes[i].weight[0];
            loaded->unknown[i] = w >= 0 && a->state[w] == AGAIN;
            loaded->n_unknown += loaded->unknown[i];
        }
        v->n_unjudged = loaded->n_unknown;
        return FD_OK;
    }
    for (int32_t w = 0; w < a->graph->n_weight; w++)
        if (a->state[w] == AGAIN) FD_TRY(fd_requantised_hold(a->graph, w, &a->grid[w], loaded, err));
    v->replayed = loaded->graph != NULL;
    return FD_OK;
}

static fd_code ask_all(weights_asked *a, bool *told, fd_verdict_weights *v, fd_loaded_weights *loaded, fd_error *err) {
    for (int32_t w = 0; w < a->graph->n_weight; w++) a->reader[w] = -1;
    for (int32_t i = a->graph->n_node - 1; i >= 0; i--)
        if (is_matrix(a->graph, &a->graph->nodes[i])) {
            int32_t *reader = &a->reader[a->graph->nodes[i].weight[0]];
            if (*reader < 0 || fd_trace_has_data(a->o->cand, a->graph->nodes[i].name)) *reader = i;
        }
    FD_TRY(ask_each(a, err));
    if (a->first < 0) return FD_OK;
    FD_TRY(ask_each(a, err)); /* what was asked before a grid was known */
    FD_TRY(refine(a, err));
    for (int32_t w = 0; w < a->graph->n_weight; w++) told[w] = a->state[w] != UNTOLD;
    assume_the_rest(a, told);
    describe(a, told, v);
    return hold(a, v, loaded, err);
}

fd_code fd_weights_find_requantised(const fd_requantised_options *o, fd_verdict_weights *v, fd_loaded_weights *loaded,
                                    fd_error *err) {
    const size_t n = (size_t)o->graph->n_weight + 1;
    weights_asked a = {.o = o, .graph = o->graph, .first = -1};
    bool *told = calloc(n, sizeof *told);
    a.reader = malloc(sizeof *a.reader * n);
    a.state = calloc(n, sizeof *a.state);
    a.grid = calloc(n, sizeof *a.grid);
    const fd_code code = told && a.reader && a.state && a.grid
                             ? ask_all(&a, told, v, loaded, err)
                             : fd_fail(err, FD_ERR_MEMORY, "weights quantised again: out of memory");
    free(told);
    free(a.reader);
    free(a.state);
    free(a.grid);
    return code;
}
