/* How near a foreign tensor in one layout is to every node of the reference. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/propose/score.h"

static double norm_of(const float *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

static fd_code read_sample(fd_scorer *s, int32_t node, int k, fd_error *err) {
    fd_sample *to = &s->samples[node * FD_PROPOSE_POSITIONS + k];
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

int fd_scorer_positions(const fd_scorer *scorer) {
    return scorer->n_pos;
}

int32_t fd_scorer_position(const fd_scorer *scorer, int k) {
    return scorer->pos[k];
}

/* Sums over elements of a row against a node's, keys beyond the position left out. False when the sizes differ. */
static bool add_products(const fd_sample *ref, const fd_trace_node *node, int32_t pos, int rank, const int64_t *shape,
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

/* What the node's sums over a part of the positions say; false: nothing. */
static bool candidate_of(const double sums[][3], int from, int to, fd_candidate *out) {
    double sum[3] = {0};
    for (int k = from; k < to; k++)
        for (int i = 0; i < 3; i++) sum[i] += sums[k][i];
    const double norms = sqrt(sum[1] * sum[2]);
    if (!(norms > 0) || !isfinite(norms)) return false;
    out->away = 1 - fabs(sum[0]) / norms;
    out->factor = sum[0] / sum[1];
    return true;
}

static void offer_node(const fd_layout *l, int32_t node, int n_pos, const double sums[][3], fd_ranking *ranking) {
    for (int part = 0; part < (l->ids ? 1 : FD_PROPOSE_PARTS); part++) { /* few ids agree by chance */
        int from, to;
        fd_candidate candidate = {.node = node};
        strcpy(candidate.ops, l->ops);
        if (fd_propose_part(part, n_pos, &from, &to) && candidate_of(sums, from, to, &candidate))
            offer(ranking->best[part], &candidate);
    }
}

static void offer_turned(const fd_scorer *s, const fd_layout *l, int32_t node, const fd_lengths *lengths,
                         fd_ranking *ranking) {
    double factor;
    if (ranking->turned.node >= 0 || l->ids || !fd_lengths_agree(lengths, &factor)) return;
    for (int k = 0; k < s->n_pos; k++)
        if (!l->open[k]) return;
    ranking->turned = (fd_candidate){.node = node, .factor = factor};
    strcpy(ranking->turned.ops, l->ops);
}

void fd_scorer_score(const fd_scorer *s, fd_layout *l, bool only_heads, fd_ranking *ranking) {
    double(*sums)[FD_PROPOSE_POSITIONS][3] = calloc((size_t)s->n_node + 1, sizeof *sums);
    fd_lengths *lengths = calloc((size_t)s->n_node + 1, sizeof *lengths);
    bool *fits = calloc((size_t)s->n_node + 1, sizeof *fits);
    int n_open = 0;
    for (int32_t i = 0; fits && i < s->n_node; i++) {
        const fd_trace_node *node = fd_trace_node_at(s->ref, i);
        bool copy = strcmp(node->op, "kv_write") == 0;
        fits[i] = !copy && (!only_heads || is_heads(node->name)) && (node->over_kv || l->least == l->most) &&
                  (!l->ids || strcmp(node->op, "top_k") == 0);
    }
    for (int k = 0; sums && fits && lengths && k < s->n_pos; k++) {
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
        for (int32_t i = 0; i < s->n_node; i++) {
            const fd_trace_node *node = fd_trace_node_at(s->ref, i);
            const fd_sample *sample = &s->samples[i * FD_PROPOSE_POSITIONS + k];
            fits[i] = fits[i] && add_products(sample, node, s->pos[k], rank, shape, x, sums[i][k]);
            if (fits[i] && fd_propose_is_turned(node)) fd_lengths_add(&lengths[i], sample, node, x);
        }
    }
    for (int32_t i = 0; sums && fits && n_open > 0 && i < s->n_node; i++) {
        if (!fits[i]) continue;
        offer_node(l, i, s->n_pos, (const double(*)[3])sums[i], ranking);
        offer_turned(s, l, i, &lengths[i], ranking);
    }
    free(lengths);
    free(sums);
    free(fits);
}
