#include "compare/infer/evidence_internal.h"
#include "compare/infer/f16_sums.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/attribute/attribution_row.h"
#include "compare/attribute/residuals.h"
#include "compare/attribute/typical.h"
#include "compare/bounds/dot_inputs.h"
#include "faults/faults.h"

static int64_t slot_of(const fd_evidence *e, int32_t node, int32_t pos) {
    int32_t late = pos - (e->n_pos - e->n_slot); /* among the last */
    return (int64_t)node * e->n_slot + (pos < MOST_SLOTS / 2 ? pos : late);
}

/* Unrecorded tensors that a node is computed through, each counted once. */
static int32_t count_way(const fd_evidence *e, int32_t node, bool *counted) {
    int32_t n = 0;
    for (int k = 0; k < FD_MAX_INPUTS; k++) {
        int32_t in = e->graph->nodes[node].input[k];
        if (in < 0 || counted[in] || fd_trace_has_data(e->trace, e->graph->nodes[in].name)) continue;
        counted[in] = true;
        n += 1 + count_way(e, in, counted);
    }
    return n;
}

/* Inputs come before what reads them. */
static void find_through_attention(fd_evidence *e) {
    const fd_node *nodes = e->graph->nodes;
    for (int32_t i = 0; i < e->graph->n_node; i++)
        for (int k = 0; k < FD_MAX_INPUTS; k++) {
            int32_t in = nodes[i].input[k];
            if (in < 0 || fd_trace_has_data(e->trace, nodes[in].name)) continue;
            e->through_attention[i] |= of_attention(nodes[in].op) || e->through_attention[in];
        }
}

fd_code fd_evidence_open(const fd_graph *graph, const fd_trace *trace, int32_t n_pos, fd_evidence *out, fd_error *err) {
    size_t n = (size_t)graph->n_node;
    *out = (fd_evidence){.graph = graph, .trace = trace, .n_pos = n_pos};
    out->n_slot = n_pos < MOST_SLOTS ? n_pos : MOST_SLOTS;
    out->wide = calloc(n, 2 * sizeof *out->wide);
    out->seen = calloc(n, sizeof *out->seen);
    out->stored = calloc(n, sizeof *out->stored);
    out->n_way = calloc(n, sizeof *out->n_way);
    out->through_attention = calloc(n, sizeof *out->through_attention);
    out->n_value = calloc(n, sizeof *out->n_value);
    out->n_rounded = calloc(n, sizeof *out->n_rounded);
    out->kind = fd_fault_kinds(graph);
    bool *counted = malloc(n * sizeof *counted);
    bool ok = out->wide && out->seen && out->stored && out->n_way && out->through_attention && out->n_value &&
              out->n_rounded && out->kind && counted;
    if (ok) find_through_attention(out);
    for (size_t i = 0; ok && i < n; i++) {
        if (!fd_trace_has_data(trace, graph->nodes[i].name)) continue;
        memset(counted, 0, n * sizeof *counted);
        out->n_way[i] = count_way(out, (int32_t)i, counted);
    }
    free(counted);
    return ok ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "inferring a class: out of memory");
}

void fd_evidence_close(fd_evidence *e) {
    free(e->wide);
    free(e->seen);
    free(e->stored);
    free(e->n_way);
    free(e->through_attention);
    free(e->n_value);
    free(e->n_rounded);
    free(e->kind);
    *e = (fd_evidence){0};
}

fd_code fd_class_case_open(fd_evidence *e, const fd_numerics_class *numerics, fd_class_case *out, fd_error *err) {
    size_t n = (size_t)e->graph->n_node * (size_t)e->n_slot;
    *out = (fd_class_case){.evidence = e, .numerics = numerics, .first = -1};
    out->rows = malloc(sizeof *out->rows * n);
    if (!out->rows) return fd_fail(err, FD_ERR_MEMORY, "inferring a class: out of memory");
    for (size_t i = 0; i < n; i++) out->rows[i].z = -1;
    return FD_OK;
}

void fd_class_case_again(fd_class_case *c) {
    const int64_t n = (int64_t)c->evidence->graph->n_node * c->evidence->n_slot;
    for (int64_t i = 0; i < n; i++) c->rows[i] = (fd_evidence_row){.z = -1};
    c->values_alone = false;
    c->n_table = c->n_not_of_table = 0;
}

void fd_class_case_free(fd_class_case *c) {
    free(c->rows);
    c->rows = NULL;
}

/* Which digits the candidate's values have: the same rows for every class, so it is asked of the first one's alone. */
static void note_storage(fd_evidence *e, const fd_attribution_row *row) {
    int32_t node = row->node->id;
    uint32_t dtype = fd_trace_node_at(e->trace, fd_trace_find(e->trace, row->node->name))->dtype;
    e->seen[node] = true;
    e->stored[node] = dtype != FD_F16 && dtype != FD_BF16;
    for (int64_t i = 0; i < row->stride; i++) {
        /* a table of GELU ends at 10, and gives the argument beyond */
        if (row->node->op == FD_OP_GELU && !(row->candidate[i] < 10)) continue;
        e->wide[2 * node] |= fd_rounding_error(row->candidate[i], F16_DIGITS, 0x1p-24) > 0;
        e->wide[2 * node + 1] |= fd_rounding_error(row->candidate[i], BF16_DIGITS, 0) > 0;
    }
}

/* Position 0 has one row of V, which a cache of binary16 rounds. */
static void note_sums(fd_evidence *e, const fd_attribution_row *row) {
    const int32_t n_head = row->node->shape[0], node = row->node->id;
    if (row->node->op != FD_OP_ATTN_MIX || row->pos == 0 || !e->wide[2 * node]) return;
    for (int64_t at = 0; at < row->stride; at += row->stride / n_head) {
        e->n_mix++;
        e->n_mix_f16 += fd_are_f16_sums(row->candidate + at, row->stride / n_head);
    }
}

bool fd_evidence_shows_f16_sums(const fd_evidence *e) {
    return e->n_mix_f16 > 0 && 2 * e->n_mix_f16 >= e->n_mix;
}

static double nearest(double x, int digits) {
    int exponent;
    frexp(x, &exponent);
    return ldexp(rint(ldexp(x, digits - exponent)), exponent - digits);
}

/* Does the finest class give them, but for one rounding? A last bit of binary32 brings few of them to the other side of a step. */
static void note_rounded(fd_evidence *e, const fd_attribution_row *row) {
    const int32_t node = row->node->id;
    const int digits = e->wide[2 * node + 1] ? F16_DIGITS : BF16_DIGITS;
    if (e->wide[2 * node] && e->wide[2 * node + 1]) return; /* nobody asks */
    e->n_value[node] += row->stride;
    for (int64_t i = 0; i < row->stride; i++)
        e->n_rounded[node] += row->candidate[i] == nearest(row->replayed[i], digits);
}

/* A bug's: it is beyond every class, and says nothing of any. */
static bool has_nan(const fd_attribution_row *row) {
    for (int64_t i = 0; i < row->stride; i++)
        if (isnan(row->candidate[i])) return true;
    return false;
}

/* Nothing is rounded in zeros that are right: of an embedding's row that was not read, say. */
static bool is_zeros_of_zeros(const fd_attribution_row *row) {
    for (int64_t i = 0; i < row->stride; i++)
        if (row->candidate[i] != 0 || row->replayed[i] != 0) return false;
    return true;
}

void fd_evidence_add(void *user, const fd_attribution_row *row) {
    fd_class_case *c = user;
    fd_evidence *e = c->evidence;
    int32_t node = row->node->id;
    fd_evidence_row seen = {.typical = INFINITY};
    double squares = 0, size = 0, errors = 0;
    if (has_nan(row) || is_zeros_of_zeros(row)) return;
    if (!e->finest) note_storage(e, row);
    if (!e->finest) note_sums(e, row);
    if (!e->finest) note_rounded(e, row);
    for (int64_t i = 0; i < row->stride; i++) {
        double z = c->values_alone ? 0 : fd_bound_z(row->candidate[i], row->replayed[i], row->tau[i]);
        if (!(z <= (double)seen.z)) seen.z = (float)z;
        if (isfinite(row->tau[i])) squares += row->tau[i] * row->tau[i];
        double error = row->candidate[i] - row->replayed[i];
        if (!isinf(row->candidate[i]) || !isinf(row->replayed[i])) errors += error * error; /* not of masked scores */
        if (isfinite(row->replayed[i])) size += row->replayed[i] * row->replayed[i];
    }
    seen.tau = (float)sqrt(squares / (double)row->stride);
    seen.error = (float)sqrt(errors / (double)row->stride);
    seen.vague = row->span_first != node && row->node->op != FD_OP_TOP_K &&
                 !(squares <= FD_INCONCLUSIVE_SPAN * FD_INCONCLUSIVE_SPAN * size);
    seen.left = (float)fd_row_oddness(row);
    seen.remains = (float)fd_row_left(row);
    seen.through = row->span_first != node && row->node->op != FD_OP_TOP_K;
    seen.long_span = seen.through && e->n_way[node] >= FD_LONG_SPAN;
    c->loses_to_steps |= row->steps > 0;
    if (fd_gelu_is_table(c->numerics, row->node) && row->span_first == node && e->stored[node]) {
        c->n_table++; /* found there again, of inputs that are known, nothing is left */
        c->n_not_of_table += seen.left > 1;
    }
    c->rows[slot_of(e, node, row->pos)] = seen;
}

void fd_evidence_add_typical(void *user, const fd_attribution_row *row) {
    fd_class_case *c = user;
    fd_evidence_row *seen = &c->rows[slot_of(c->evidence, row->node->id, row->pos)];
    double squares = 0, size = 0;
    for (int64_t i = 0; i < row->stride; i++) {
        if (isfinite(row->tau[i])) squares += row->tau[i] * row->tau[i];
        if (isfinite(row->replayed[i])) size += row->replayed[i] * row->replayed[i];
    }
    seen->typical = (float)sqrt(squares / (double)row->stride);
    seen->unknown = row->node->op == FD_OP_TOP_K || !(squares <= size);
}
