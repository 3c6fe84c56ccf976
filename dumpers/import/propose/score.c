/* How near a foreign tensor is to every node of the reference, in the layouts that engines use. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/propose/internal.h"

typedef struct sample { /* one node of the reference at one position */
    float *values;
    int64_t n;
    double norm;
} sample;

struct fd_scorer {
    const fd_import_plan *plan;
    const fd_trace *ref;
    int32_t n_node;
    int32_t pos[FD_PROPOSE_POSITIONS];
    int n_pos;
    sample *samples; /* [n_node, n_pos] */
};

static double norm_of(const float *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

static fd_code read_sample(fd_scorer *s, int32_t node, int k, fd_error *err) {
    sample *to = &s->samples[node * FD_PROPOSE_POSITIONS + k];
    int64_t n = fd_trace_elements(fd_trace_node_at(s->ref, node), s->pos[k]);
    to->values = malloc(sizeof(float) * (size_t)(n + 1));
    if (!to->values) return fd_fail(err, FD_ERR_MEMORY, "map auto: no memory for the reference");
    fd_error missing;
    if (fd_trace_read(s->ref, node, s->pos[k], to->values, NULL, &missing) != FD_OK) return FD_OK;
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(to->values[i])) return FD_OK; /* n stays 0: not to be compared with */
    to->n = n;
    to->norm = norm_of(to->values, n);
    return FD_OK;
}

fd_code fd_scorer_new(const fd_import_plan *plan, const fd_trace *ref, fd_scorer **out, fd_error *err) {
    fd_scorer *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s) return fd_fail(err, FD_ERR_MEMORY, "map auto: out of memory");
    s->plan = plan;
    s->ref = ref;
    s->n_node = fd_trace_n_node(ref);
    s->samples = calloc((size_t)s->n_node * FD_PROPOSE_POSITIONS + 1, sizeof *s->samples);
    int32_t n_token = plan->n_token;
    /* from the second position on: at the first, RoPE turns nothing and attention has one key */
    for (int k = 0; k < FD_PROPOSE_POSITIONS && (n_token > 1 ? k < n_token - 1 : k < 1); k++) {
        int32_t span = n_token - 1 < FD_PROPOSE_POSITIONS ? n_token - 1 : FD_PROPOSE_POSITIONS;
        s->pos[s->n_pos++] = n_token == 1 ? 0 : 1 + (int32_t)((int64_t)k * (n_token - 2) / (span > 1 ? span - 1 : 1));
    }
    fd_code code = s->samples ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "map auto: out of memory");
    for (int32_t i = 0; code == FD_OK && i < s->n_node; i++)
        for (int k = 0; code == FD_OK && k < s->n_pos; k++) code = read_sample(s, i, k, err);
    if (code == FD_OK)
        *out = s;
    else
        fd_scorer_free(s);
    return code;
}

void fd_scorer_free(fd_scorer *s) {
    if (!s) return;
    for (int32_t i = 0; s->samples && i < s->n_node * FD_PROPOSE_POSITIONS; i++) free(s->samples[i].values);
    free(s->samples);
    free(s);
}

/* ---- one layout ---- */

typedef struct layout {
    fd_name_map *map; /* of one rule */
    fd_import_plan plan;
    fd_import_rows rows[FD_PROPOSE_POSITIONS];
    bool open[FD_PROPOSE_POSITIONS];
    char ops[FD_PROPOSE_MAX_OPS];
} layout;

static void close_layout(layout *l) {
    for (int k = 0; k < FD_PROPOSE_POSITIONS; k++)
        if (l->open[k]) fd_import_rows_close(&l->rows[k]);
    fd_name_map_free(l->map);
}

/* Opens the rows of the sampled positions; the importer's own code reads them. `matches` [n_pos] is filled. */
static fd_code open_layout(const fd_scorer *s, const size_t *tensors, size_t n, int axis, const char *ops, layout *l,
                           fd_import_match *matches, fd_error *err) {
    char text[FD_PROPOSE_MAX_OPS + 32];
    *l = (layout){.plan = *s->plan};
    int length = axis < 0 ? snprintf(l->ops, sizeof l->ops, "axis=%d%s%s", axis, *ops ? " " : "", ops)
                          : snprintf(l->ops, sizeof l->ops, "%s", ops);
    if (length < 0 || (size_t)length >= sizeof l->ops)
        return fd_fail(err, FD_ERR_INPUT, "map auto: operations too long");
    snprintf(text, sizeof text, "x -> y %s", l->ops);
    FD_TRY(fd_name_map_parse("auto", text, strlen(text), &l->map, err));
    l->plan.map = l->map;
    for (int k = 0; k < s->n_pos; k++) {
        for (size_t i = 0; i < n; i++) {
            const fd_source_tensor *t = fd_source_at(s->plan->source, tensors[i]);
            int32_t step = t->step < 0 ? 0 : t->step;
            const fd_import_step *at = &s->plan->steps[step];
            bool here = t->step < 0 || (s->pos[k] >= at->pos0 && s->pos[k] < at->pos0 + at->n_pos);
            if (!here) continue;
            matches[k] = (fd_import_match){.tensor = tensors[i],
                                           .step = step,
                                           .axis = t->step < 0 ? 0
                                                   : axis < 0  ? axis + t->rank
                                                               : -1};
            if (matches[k].axis < 0 && axis < 0) return fd_fail(err, FD_ERR_INPUT, "%s: too few axes", t->name);
            FD_TRY(fd_import_rows_open(&l->plan, &matches[k], &l->rows[k], err));
            l->open[k] = true;
        }
    }
    return FD_OK;
}

/* Sums over elements of a row against a node's, keys beyond the position left out. False when the sizes differ. */
static bool add_products(const sample *ref, const fd_trace_node *node, int32_t pos, int rank, const int64_t *shape,
                         const double *x, double sums[3]) {
    int64_t n = 1, width = shape[rank - 1], keys = pos + 1;
    for (int i = 0; i < rank; i++) n *= shape[i];
    if (ref->n == 0) return false;
    if (!node->over_kv) {
        if (n != ref->n) return false;
        for (int64_t i = 0; i < n; i++) {
            sums[0] += x[i] * (double)ref->values[i];
            sums[1] += x[i] * x[i];
        }
    } else {
        if (width < keys || n / width * keys != ref->n) return false;
        for (int64_t h = 0; h < n / width; h++)
            for (int64_t k = 0; k < keys; k++) {
                double a = x[h * width + k];
                sums[0] += a * (double)ref->values[h * keys + k];
                sums[1] += a * a;
            }
    }
    sums[2] += ref->norm * ref->norm;
    return true;
}

static void offer(fd_candidate *best, const fd_candidate *candidate) {
    int at = 0;
    for (int i = 0; i < FD_PROPOSE_KEEP; i++)
        if (best[i].node == candidate->node) { /* each node once, in the simplest of the layouts that are as good */
            if (!(candidate->away < best[i].away - 1e-9)) return;
            memmove(&best[i], &best[i + 1], sizeof *best * (size_t)(FD_PROPOSE_KEEP - 1 - i));
            best[FD_PROPOSE_KEEP - 1] = (fd_candidate){.node = -1, .away = 2};
            break;
        }
    while (at < FD_PROPOSE_KEEP && best[at].away <= candidate->away) at++;
    if (at == FD_PROPOSE_KEEP) return;
    memmove(&best[at + 1], &best[at], sizeof *best * (size_t)(FD_PROPOSE_KEEP - 1 - at));
    best[at] = *candidate;
}

static bool is_heads(const char *name) {
    return strstr(name, ".attn_q") || strstr(name, ".attn_k") || strstr(name, ".cache_k");
}

/* Scores the layout against all nodes. `only_heads`: against Q and K alone. A row that cannot be read is no match. */
static void score(const fd_scorer *s, layout *l, bool only_heads, fd_candidate *best) {
    double(*sums)[3] = calloc((size_t)s->n_node + 1, sizeof *sums);
    bool *fits = calloc((size_t)s->n_node + 1, sizeof *fits);
    int n_open = 0;
    for (int32_t i = 0; fits && i < s->n_node; i++) {
        const fd_trace_node *node = fd_trace_node_at(s->ref, i);
        fits[i] =
            strcmp(node->op, "kv_write") != 0 && (!only_heads || is_heads(node->name)); /* a copy of another node */
    }
    for (int k = 0; sums && fits && k < s->n_pos; k++) {
        int rank;
        int64_t shape[FD_ARRAY_MAX_RANK];
        const double *x;
        fd_error unread;
        if (!l->open[k]) continue;
        if (fd_import_rows_read(&l->rows[k], s->pos[k], &rank, shape, &x, &unread) != FD_OK) {
            n_open = 0;
            break;
        }
        n_open++;
        for (int32_t i = 0; i < s->n_node; i++)
            fits[i] = fits[i] && add_products(&s->samples[i * FD_PROPOSE_POSITIONS + k], fd_trace_node_at(s->ref, i),
                                              s->pos[k], rank, shape, x, sums[i]);
    }
    for (int32_t i = 0; sums && fits && n_open > 0 && i < s->n_node; i++) {
        double norms = sqrt(sums[i][1] * sums[i][2]);
        if (!fits[i] || !(norms > 0) || !isfinite(norms)) continue;
        fd_candidate candidate = {.node = i, .away = 1 - fabs(sums[i][0]) / norms, .factor = sums[i][0] / sums[i][1]};
        strcpy(candidate.ops, l->ops);
        offer(best, &candidate);
    }
    free(sums);
    free(fits);
}

/* ---- all layouts ---- */

/* One layout of the tensor against every node. A file that does not fit the layout is no match of it. */
static fd_code try_layout(const fd_scorer *s, const size_t *tensors, size_t n, int axis, const char *ops,
                          bool only_heads, fd_candidate *best, fd_error *err) {
    layout l;
    fd_import_match matches[FD_PROPOSE_POSITIONS];
    fd_code code = open_layout(s, tensors, n, axis, ops, &l, matches, err);
    if (code == FD_OK) score(s, &l, only_heads, best);
    close_layout(&l);
    return code == FD_ERR_INPUT ? FD_OK : code;
}

/* As it is, transposed, and with the pairs of RoPE the other way round in the heads of Q and in those of K. */
static fd_code try_axis(const fd_scorer *s, const size_t *tensors, size_t n, int axis, const char *slice,
                        fd_candidate *best, fd_error *err) {
    const long long n_head[] = {s->plan->values.of[FD_NAME_MAP_N_HEAD], s->plan->values.of[FD_NAME_MAP_N_HEAD_KV]};
    const char *gap = *slice ? " " : "";
    char ops[FD_PROPOSE_MAX_OPS - 16]; /* room for the axis */
    FD_TRY(try_layout(s, tensors, n, axis, slice, false, best, err));
    snprintf(ops, sizeof ops, "%s%stranspose", slice, gap);
    FD_TRY(try_layout(s, tensors, n, axis, ops, false, best, err));
    for (int k = 0; k < 4; k++) {
        snprintf(ops, sizeof ops, "%s%sreshape=-1 heads=%lld %s", slice, gap, n_head[k / 2],
                 k % 2 ? "deinterleave" : "interleave");
        FD_TRY(try_layout(s, tensors, n, axis, ops, true, best, err));
    }
    return FD_OK;
}

fd_code fd_scorer_rank(fd_scorer *s, const size_t *tensors, size_t n, const char *slice, fd_candidate *best,
                       fd_error *err) {
    const fd_source_tensor *longest = fd_source_at(s->plan->source, tensors[0]);
    for (int i = 0; i < FD_PROPOSE_KEEP; i++) best[i] = (fd_candidate){.node = -1, .away = 2};
    for (size_t i = 1; i < n; i++) {
        const fd_source_tensor *t = fd_source_at(s->plan->source, tensors[i]);
        if (s->plan->steps[t->step].n_pos > s->plan->steps[longest->step].n_pos) longest = t;
    }
    int32_t n_tok = longest->step < 0 ? 1 : s->plan->steps[longest->step].n_pos;
    if (n_tok == 1) return try_axis(s, tensors, n, 0, slice, best, err); /* no axis over positions, or the first */
    for (int axis = -longest->rank; axis < 0; axis++)
        if (longest->shape[axis + longest->rank] == n_tok) FD_TRY(try_axis(s, tensors, n, axis, slice, best, err));
    return FD_OK;
}
