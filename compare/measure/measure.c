#include "compare/measure/measure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/measure/measure_logits.h"
#include "numerics/contract.h"

enum { REF, CAND };

fd_code fd_measures_open(const fd_graph *graph, const int32_t *tokens, int32_t n_pos, fd_measures *out, fd_error *err) {
    size_t n_node = (size_t)graph->n_node, n = (size_t)n_pos;
    *out = (fd_measures){.n_node = graph->n_node,
                         .n_pos = n_pos,
                         .n_layer = graph->hparams.n_layer,
                         .n_head = graph->hparams.n_head,
                         .maps = {.layer = -1}};
    out->nodes = calloc(n_node + 1, sizeof *out->nodes);
    out->relative = malloc(sizeof *out->relative * (n_node * n + 1));
    out->logits = calloc(n + 1, sizeof *out->logits);
    out->entropy = calloc(2 * (size_t)out->n_layer * (size_t)out->n_head + 1, sizeof *out->entropy);
    out->n_entropy = calloc(2 * (size_t)out->n_layer + 1, sizeof *out->n_entropy);
    if (tokens) out->tokens = malloc(sizeof *out->tokens * (n + 1));
    if (!out->nodes || !out->relative || !out->logits || !out->entropy || !out->n_entropy || (tokens && !out->tokens)) {
        fd_measures_free(out);
        return fd_fail(err, FD_ERR_MEMORY, "measures of %d nodes at %d positions: out of memory", graph->n_node, n_pos);
    }
    for (size_t i = 0; i < n_node * n; i++) out->relative[i] = -1;
    if (tokens) memcpy(out->tokens, tokens, sizeof *tokens * n);
    return FD_OK;
}

/* A row without its padding: element i of `n` lies at fd_at(i). */
typedef struct layout {
    int64_t n_head, wide, slice; /* elements a head has; and in memory */
} layout;

static layout layout_of(const fd_attribution_row *row) {
    const fd_node *node = row->node;
    if (node->over_kv) return (layout){node->shape[0], row->pos + 1, row->stride / node->shape[0]};
    if (node->n_dim == 2) return (layout){node->shape[0], node->shape[1], node->shape[1]};
    return (layout){1, row->stride, row->stride};
}

static int64_t place_of(const layout *l, int64_t i) {
    return i / l->wide * l->slice + i % l->wide;
}

static int biased_exponent(double x) {
    return (int)(fd_bits64(x) >> 52 & 0x7ff);
}

/* 2^-e of the units in the last place that binary32 has at y. Read off the bits, for it is asked of every element twice. */
static double units_at(double y) {
    int exponent = biased_exponent(y) - 1022; /* as frexp has it, which has 0 for 0, Inf and NaN */
    if (y == 0 || exponent == 1025) exponent = 0;
    if (exponent < -125) exponent = -125; /* subnormal */
    return fd_from_bits64((uint64_t)(1023 + 24 - exponent) << 52);
}

/* 0: equal; else from 1, the powers of two that hold `distance`, of which one is `units`. */
static int bin_of(double distance, double units) {
    if (distance == 0) return 0;
    double ulp = distance * units;
    if (!(ulp <= (double)(1ull << (FD_MEASURE_BINS - 2)))) return FD_MEASURE_BINS - 1;
    bool power = fd_bits64(ulp) << 12 == 0;
    return ulp <= 1 ? 1 : 1 + biased_exponent(ulp) - 1023 + !power;
}

static void keep_values(fd_measured_values *to, const fd_attribution_row *row, const layout *l, int64_t worst,
                        bool of_reference) {
    int64_t n = l->n_head * l->wide, first = worst - FD_MEASURE_VALUES / 2;
    if (first + FD_MEASURE_VALUES > n) first = n - FD_MEASURE_VALUES;
    if (first < 0) first = 0;
    *to = (fd_measured_values){.pos = row->pos, .first = first, .worst = worst};
    for (; to->n < FD_MEASURE_VALUES && first + to->n < n; to->n++) {
        int64_t at = place_of(l, first + to->n);
        double own = row->candidate[at], other = row->reference ? row->reference[at] : NAN;
        to->reference[to->n] = of_reference ? own : other;
        to->candidate[to->n] = of_reference ? other : own;
        to->replayed[to->n] = row->replayed[at];
        to->tau[to->n] = row->tau[at];
    }
}

/* z of every head, kept from the first position on in which one is beyond. */
static void keep_heads(fd_measures *m, fd_node_measure *node, const fd_attribution_row *row, const layout *l,
                       double z) {
    if (l->n_head < 2 || l->n_head > m->n_head || (!node->by_pos_head && z <= 1)) return;
    size_t n = (size_t)m->n_pos * (size_t)l->n_head;
    if (!node->by_pos_head) {
        node->by_pos_head = malloc(sizeof *node->by_pos_head * n);
        for (size_t i = 0; node->by_pos_head && i < n; i++) node->by_pos_head[i] = -1;
    }
    for (int64_t h = 0; node->by_pos_head && h < l->n_head; h++) {
        float *to = &node->by_pos_head[row->pos * l->n_head + h];
        for (int64_t i = 0; i < l->wide; i++) {
            int64_t at = h * l->slice + i;
            double here = fd_bound_z(row->candidate[at], row->replayed[at], row->tau[at]);
            if (!((float)here <= *to)) *to = isnan(here) ? INFINITY : (float)here;
        }
    }
}

static void measure_own(fd_measures *m, const fd_attribution_row *row, const layout *l, bool of_reference) {
    fd_node_measure *node = &m->nodes[row->node->id];
    double z = -1;
    int64_t worst = 0;
    for (int64_t h = 0; h < l->n_head; h++)
        for (int64_t i = 0; i < l->wide; i++) {
            int64_t at = h * l->slice + i;
            double y = row->replayed[at], units = units_at(y), here = fd_bound_z(row->candidate[at], y, row->tau[at]);
            node->ulp[bin_of(fabs(row->candidate[at] - y), units)]++;
            node->tau_ulp[bin_of(row->tau[at], units)]++;
            if (here <= z) continue;
            z = here;
            worst = h * l->wide + i;
        }
    if (node->values.n == 0 || !(z <= node->z)) {
        node->z = z;
        keep_values(&node->values, row, l, worst, of_reference);
    }
    keep_heads(m, node, row, l, z);
}

static void measure_both(fd_measures *m, const fd_attribution_row *row, const layout *l, bool of_reference) {
    fd_node_measure *node = &m->nodes[row->node->id];
    const double *r = of_reference ? row->candidate : row->reference;
    const double *c = of_reference ? row->reference : row->candidate;
    double error2 = 0, r2 = 0, c2 = 0, product = 0;
    for (int64_t h = 0; h < l->n_head; h++)
        for (int64_t at = h * l->slice; at < h * l->slice + l->wide; at++) {
            error2 += (c[at] - r[at]) * (c[at] - r[at]);
            r2 += r[at] * r[at];
            c2 += c[at] * c[at];
            product += c[at] * r[at];
        }
    node->n_pos++;
    node->error2 += error2;
    node->reference2 += r2;
    node->candidate2 += c2;
    node->product += product;
    double relative = r2 > 0 ? sqrt(error2 / r2) : error2 > 0 ? INFINITY : 0;
    m->relative[(int64_t)row->node->id * m->n_pos + row->pos] = isnan(relative) ? INFINITY : (float)relative;
}

/* ---- attention weights ---- */

static void add_entropy(fd_measures *m, int side, const fd_attribution_row *row, const layout *l, const double *p) {
    int64_t layer = (int64_t)side * m->n_layer + row->node->layer;
    int32_t n = ++m->n_entropy[layer];
    for (int64_t h = 0; h < l->n_head; h++) {
        double *mean = &m->entropy[layer * m->n_head + h], sum = 0;
        for (int64_t i = 0; i < l->wide; i++)
            if (p[h * l->slice + i] > 0) sum -= p[h * l->slice + i] * log(p[h * l->slice + i]);
        *mean += (sum - *mean) / n;
    }
}

/* Takes the maps for this layer: the first, and then the first with a node beyond. */
static bool wants_map(fd_measures *m, const fd_attribution_row *row, const layout *l) {
    fd_attention_maps *maps = &m->maps;
    int32_t n_pos = m->n_pos < FD_MEASURE_MAP_POS ? m->n_pos : FD_MEASURE_MAP_POS;
    bool beyond = false;
    if (row->pos >= n_pos) return false;
    if (maps->layer == row->node->layer) return maps->weights != NULL;
    for (int32_t i = row->node->id; i >= 0 && row->node->id - i < 32; i--) beyond |= m->nodes[i].z > 1;
    if (maps->layer >= 0 && (maps->beyond || !beyond)) return false;
    free(maps->weights);
    *maps = (fd_attention_maps){row->node->layer, (int32_t)l->n_head, n_pos, row->reference != NULL, beyond, NULL};
    maps->weights = calloc(2 * (size_t)l->n_head * (size_t)n_pos, (size_t)n_pos);
    return maps->weights != NULL;
}

static void add_map(fd_attention_maps *maps, int side, const fd_attribution_row *row, const layout *l,
                    const double *p) {
    for (int64_t h = 0; h < l->n_head; h++) {
        uint8_t *to = maps->weights + ((side * (int64_t)maps->n_head + h) * maps->n_pos + row->pos) * maps->n_pos;
        for (int64_t i = 0; i < l->wide; i++) {
            double share = p[h * l->slice + i];
            to[i] = share >= 1 ? 255 : share > 0 ? (uint8_t)(255 * share + 0.5) : 0;
        }
    }
}

static void measure_attention(fd_measures *m, const fd_attribution_row *row, const layout *l, bool of_reference) {
    const double *of[2] = {row->reference, row->candidate};
    if (row->node->layer < 0 || row->node->layer >= m->n_layer || l->n_head > m->n_head) return;
    bool map = wants_map(m, row, l);
    for (int i = 0; i < 2; i++) {
        int side = of_reference ? !i : i;
        if (!of[i]) continue;
        add_entropy(m, side, row, l, of[i]);
        if (map) add_map(&m->maps, side, row, l, of[i]);
    }
}

void fd_measures_add(fd_measures *m, const fd_attribution_row *row, bool of_reference) {
    layout l = layout_of(row);
    const char *dot = strrchr(row->node->name, '.');
    if (row->pos >= m->n_pos) return;
    measure_own(m, row, &l, of_reference);
    if (row->reference) measure_both(m, row, &l, of_reference);
    if (dot && strcmp(dot, ".attn_weights") == 0) measure_attention(m, row, &l, of_reference);
    if (row->reference && strcmp(row->node->name, "logits") == 0)
        fd_measure_logits_row(of_reference ? row->candidate : row->reference,
                              of_reference ? row->reference : row->candidate, row->stride, &m->logits[row->pos]);
}
