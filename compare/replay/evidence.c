#include "compare/replay/evidence.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/bounds/dot_inputs.h"
#include "compare/replay/attribution_row.h"
#include "compare/replay/residuals.h"
#include "faults/faults.h"

/* In its own class a node's largest z is about a half (one rounding of the output, half of the ulp allowed for it), and
 * 0.6 was the most that the emulated engines showed; a class that is four times too strict can just stay below 1. */
#define COMFORTABLE_Z 0.7

/* A class rounds much more than another where its bound is so many times as wide: its errors, a sixth of it as a
 * rule, are then beyond the other's. */
#define MUCH_MORE 16.0f

/* Of errors that round off a τ by six or more standard deviations, eight are all below a hundredth of it once in
 * 10^10 times. A bug spares rows: RoPE is the identity at position 0, where a token attends to itself alone too. */
#define FAR_SMALLER 0.01f

/* τ is four standard deviations or more of each rounding, and these partly cancel on the way: of sound runs from logits
 * alone a hundredth of it was left, three at most; of a bug in one layer a tenth. On a short way less cancels: there sound
 * runs had up to a twelfth, of what their class rounds more than binary32. */
#define LARGE_FOR_ROUNDING   0.05f
#define LARGE_ON_A_SHORT_WAY 0.125f
enum { LONG_SPAN = 8 };

/* Less than binary32 leaves, for a logarithm. */
#define TINIEST_LEFT 0x1p-30

/* A class that loses values to steps leaves more than binary32; but less than half of what the finest class leaves, whose
 * replay has not these roundings. */
#define HALF_OF_THE_FINEST 0.7

enum { F16_DIGITS = 11, BF16_DIGITS = 8 };

/* A bug in every layer departs at one or two of a layer's ten tensors or more; a class that is too strict, at every
 * product, which are half of them. */
enum { FEW_OF = 4 };

/* A sample has 16 rows of a node at most, at the beginning or half of them at the end. */
enum { MOST_SLOTS = 32 };

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

fd_code fd_evidence_open(const fd_graph *graph, const fd_trace *trace, int32_t n_pos, fd_evidence *out, fd_error *err) {
    size_t n = (size_t)graph->n_node;
    *out = (fd_evidence){.graph = graph, .trace = trace, .n_pos = n_pos};
    out->n_slot = n_pos < MOST_SLOTS ? n_pos : MOST_SLOTS;
    out->wide = calloc(n, 2 * sizeof *out->wide);
    out->stored = calloc(n, sizeof *out->stored);
    out->n_way = calloc(n, sizeof *out->n_way);
    bool *counted = malloc(n * sizeof *counted), ok = out->wide && out->stored && out->n_way && counted;
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
    free(e->stored);
    free(e->n_way);
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

void fd_class_case_free(fd_class_case *c) {
    free(c->rows);
    c->rows = NULL;
}

/* Copies, whose values may have been narrow from the start, and ids say nothing of an engine's tensors. */
static bool is_copy(const fd_node *node) {
    return node->op == FD_OP_EMBED || node->op == FD_OP_KV_WRITE || node->op == FD_OP_TOP_K;
}

/* Which digits the candidate's values have: the same rows for every class, so it is asked of the first one's alone. */
static void note_storage(fd_evidence *e, const fd_attribution_row *row) {
    int32_t node = row->node->id;
    uint32_t dtype = fd_trace_node_at(e->trace, fd_trace_find(e->trace, row->node->name))->dtype;
    e->stored[node] = dtype != FD_F16 && dtype != FD_BF16;
    for (int64_t i = 0; i < row->stride; i++) {
        e->wide[2 * node] |= fd_rounding_error(row->candidate[i], F16_DIGITS, 0x1p-24) > 0;
        e->wide[2 * node + 1] |= fd_rounding_error(row->candidate[i], BF16_DIGITS, 0) > 0;
    }
}

void fd_evidence_add(void *user, const fd_attribution_row *row) {
    fd_class_case *c = user;
    fd_evidence *e = c->evidence;
    int32_t node = row->node->id;
    fd_evidence_row seen = {0};
    double squares = 0, size = 0, errors = 0;
    if (!e->finest) note_storage(e, row);
    for (int64_t i = 0; i < row->stride; i++) {
        double z = fd_bound_z(row->candidate[i], row->replayed[i], row->tau[i]);
        if (!(z <= (double)seen.z)) seen.z = (float)z;
        if (isfinite(row->tau[i])) squares += row->tau[i] * row->tau[i];
        errors += ((double)row->candidate[i] - row->replayed[i]) * ((double)row->candidate[i] - row->replayed[i]);
        if (isfinite(row->replayed[i])) size += row->replayed[i] * row->replayed[i];
    }
    seen.tau = (float)sqrt(squares / (double)row->stride);
    seen.error = (float)sqrt(errors / (double)row->stride);
    seen.vague = row->span_first != node && row->node->op != FD_OP_TOP_K &&
                 !(squares <= FD_INCONCLUSIVE_SPAN * FD_INCONCLUSIVE_SPAN * size);
    seen.left = (float)fd_row_oddness(row);
    seen.remains = (float)fd_row_left(row);
    seen.through = row->span_first != node && row->node->op != FD_OP_TOP_K;
    seen.long_span = seen.through && e->n_way[node] >= LONG_SPAN;
    c->loses_to_steps |= row->steps > 0;
    c->rows[slot_of(e, node, row->pos)] = seen;
}

/* ---- weighing ---- */

/* The replay went through a norm or an addition to the stream: through more than attention, or than the FFN. */
static bool through_a_part(const fd_evidence *e, int32_t node) {
    const fd_node *nodes = e->graph->nodes;
    for (int k = 0; k < FD_MAX_INPUTS; k++) {
        int32_t in = nodes[node].input[k];
        if (in < 0) continue;
        if (fd_trace_has_data(e->trace, nodes[in].name)) continue;
        bool boundary = nodes[in].op == FD_OP_ADD || (nodes[in].op == FD_OP_RMS_NORM && nodes[in].n_dim == 1);
        if (boundary || through_a_part(e, in)) return true;
    }
    return false;
}

/* Values that all have a 16-bit form in an engine of 32-bit tensors: this op rounds its result, which the class does
 * not say unless its sums live in 16 bits, or it reads them from such a table. */
static bool rounds_its_result(const fd_evidence *e, const fd_numerics_class *c, const fd_node *node) {
    bool narrow = !e->wide[2 * node->id] || !e->wide[2 * node->id + 1];
    if (node->op == FD_OP_GELU && fd_gelu_is_table(c, node)) return false;
    return c->u_out <= 0x1p-24 && !fd_class_sums_in_16_bits(c) && e->stored[node->id] && !is_copy(node) && narrow;
}

typedef struct tally {
    int32_t rounded, needed, spared;
} tally;

/* Rows where the class rounds much more than the finest, those of them that the finest does not explain, and those
 * whose errors are far smaller than the class's. */
static tally count_rows(const fd_class_case *c, int32_t node) {
    const fd_evidence *e = c->evidence;
    tally t = {0};
    bool sums = e->graph->nodes[node].op == FD_OP_ATTN_MIX &&
                fd_class_sums_in_16_bits(c->numerics); /* not of one row of V, at position 0 */
    for (int32_t p = sums ? 1 : 0; p < e->n_slot; p++) {
        int64_t at = (int64_t)node * e->n_slot + p;
        if (c->rows[at].z < 0 || e->finest[at].z < 0 || !(c->rows[at].tau > MUCH_MORE * e->finest[at].tau)) continue;
        t.rounded++;
        t.needed += !(e->finest[at].z <= 1);
        t.spared += e->finest[at].z <= 1 && c->rows[at].z < FAR_SMALLER;
    }
    return t;
}

/* A class that repeats its roundings is as tight as the finest: where the finest leaves rows beyond, it brings them
 * within, or it does not. */
static tally count_repeated(const fd_class_case *c, int32_t node) {
    const fd_evidence *e = c->evidence;
    tally t = {0};
    for (int32_t p = 0; p < e->n_slot; p++) {
        int64_t at = (int64_t)node * e->n_slot + p;
        if (c->rows[at].z < 0 || e->finest[at].z < 0 || e->finest[at].z <= 1) continue;
        t.rounded++;
        /* through unrecorded tensors the bounds have room for anything, but nothing is left of what is repeated */
        t.needed += c->rows[at].z <= 1 && (!c->rows[at].through || c->rows[at].left <= 1);
    }
    return t;
}

static bool is_product(fd_op op) {
    return op == FD_OP_MATMUL || op == FD_OP_EXPERT_MATMUL || op == FD_OP_HEAD_MATMUL;
}

static bool of_attention(fd_op op) {
    return op == FD_OP_ATTN_SCORES || op == FD_OP_ATTN_MIX;
}

static void weigh_need(const fd_node *node, fd_class_case *c, tally kinds[2]) {
    const fd_evidence *e = c->evidence;
    /* an engine may round rows of the cache where it reads them, and fast sin and exp may happen to be right */
    bool copies = node->op == FD_OP_KV_WRITE && c->numerics->u_attn > 0;
    bool product = is_product(node->op);
    bool other = !product && !of_attention(node->op) && node->op != FD_OP_KV_WRITE;
    bool repeats = c->numerics->replays_inputs || (node->op == FD_OP_KV_WRITE && fd_class_repeats_cache(c->numerics));
    if (!repeats && (copies || (other && c->numerics->u_out <= 0x1p-24))) return;
    tally rows = repeats ? count_repeated(c, node->id) : count_rows(c, node->id);
    if (rows.rounded == 0) return;
    bool needed = 2 * rows.needed >= rows.rounded && rows.spared == 0 && !rounds_its_result(e, c->numerics, node);
    c->n_rounded++;
    c->n_needed += needed;
    c->n_seen += needed && (repeats || !through_a_part(e, node->id));
    if (other) return;
    kinds[!product].rounded++;
    kinds[!product].needed += needed;
}

/* By the class's own roundings, not by binary32's. */
static bool rounds_more(const fd_class_case *c, int32_t node, int32_t slot) {
    const int64_t at = (int64_t)node * c->evidence->n_slot + slot;
    return c->evidence->finest && c->rows[at].tau > MUCH_MORE * c->evidence->finest[at].tau;
}

/* Not what an engine of the class gives: beyond the bounds, or most rows with errors as large as the bounds. */
static bool outside(const fd_class_case *c, int32_t node) {
    int32_t n = 0, n_large = 0, n_slot = c->evidence->n_slot;
    for (int32_t p = 0; p < n_slot; p++) {
        const fd_evidence_row *row = &c->rows[(int64_t)node * n_slot + p];
        if (row->z < 0) continue;
        if (!(row->z <= 1)) return true;
        n++;
        bool large = row->through && row->long_span && !(row->error <= LARGE_FOR_ROUNDING * row->tau);
        bool large_nearby = row->through && rounds_more(c, node, p) && !(row->error <= LARGE_ON_A_SHORT_WAY * row->tau);
        n_large += large || large_nearby;
    }
    return 2 * n_large > n;
}

/* What is left of most rows of a node that was reached through unrecorded ones; -1: it was not. */
static double left_of(const fd_class_case *c, int32_t node, double *remains) {
    int32_t n_slot = c->evidence->n_slot;
    float left[MOST_SLOTS], size[MOST_SLOTS];
    for (int32_t p = 0; p < n_slot; p++) {
        const fd_evidence_row *row = &c->rows[(int64_t)node * n_slot + p];
        bool through = row->z >= 0 && row->through;
        left[p] = through ? row->left : -1;
        size[p] = through ? row->remains : -1;
    }
    *remains = fd_residual_median(size, n_slot);
    return fd_residual_median(left, n_slot);
}

void fd_evidence_weigh(fd_class_case *c) {
    fd_evidence *e = c->evidence;
    tally kinds[2] = {{0}};
    for (int32_t i = 0; i < e->graph->n_node; i++) {
        const fd_node *node = &e->graph->nodes[i];
        float z = -1;
        bool vague = false,
             narrow = rounds_its_result(e, c->numerics, node); /* rows of it may be right by that alone */
        for (int32_t p = 0; p < e->n_slot; p++) {
            const fd_evidence_row *row = &c->rows[(int64_t)i * e->n_slot + p];
            if (!(row->z <= z)) z = row->z;
            c->n_rows_left += row->z >= 0 && row->through && !narrow && !(row->left <= 1);
            vague |= row->z >= 0 && row->vague;
        }
        if (z == -1) continue;
        double remains, left = left_of(c, i, &remains);
        c->n_through += left >= 0;
        c->n_left += left > 1;
        if (left >= 0) c->remains += log(remains > TINIEST_LEFT ? remains : TINIEST_LEFT);
        c->n_direct += left < 0;
        c->n_failed += left < 0 && !(z <= 1);
        bool beyond = vague || !(z <= (float)COMFORTABLE_Z);
        c->n_judged++;
        c->n_beyond += beyond;
        c->n_outside += outside(c, i);
        if (beyond && c->first < 0) c->first = i;
        if (e->finest) weigh_need(node, c, kinds);
    }
    if (c->n_through > 0) c->remains /= c->n_through;
    c->rounds_products = kinds[0].rounded > 0;
    c->products = 2 * kinds[0].needed >= kinds[0].rounded;
    c->attention = 2 * kinds[1].needed >= kinds[1].rounded;
    if (!e->finest) {
        e->finest = c->rows;
        e->finest_remains = c->remains;
    }
    c->finest_remains = e->finest_remains;
}

static tally need_of(const fd_evidence *e, const fd_class_case *wide, const fd_class_case *tight, int32_t node) {
    tally t = {0};
    for (int32_t p = 0; p < e->n_slot; p++) {
        int64_t at = (int64_t)node * e->n_slot + p;
        const fd_evidence_row *w = &wide->rows[at], *own = &tight->rows[at];
        if (w->z < 0 || own->z < 0 || e->graph->nodes[node].op == FD_OP_TOP_K) continue;
        if (!own->through && !(w->tau > MUCH_MORE * own->tau)) continue;
        t.rounded++;
        t.needed += !(own->left <= 1);
    }
    return t;
}

/* What a kernel of attention does in its own way: the cache that it reads, too. */
static bool in_attention(const fd_node *node) {
    return node->over_kv || of_attention(node->op) || node->op == FD_OP_KV_WRITE;
}

fd_class_need fd_evidence_need(const fd_evidence *e, const fd_class_case *wide, const fd_class_case *tight) {
    const fd_node *nodes = e->graph->nodes;
    fd_class_need need = {0};
    for (int32_t i = 0; i < e->graph->n_node; i++) {
        int32_t rounded = 0, needed = 0;
        if (!fd_fault_begins_kind(e->graph, i)) continue;
        for (int32_t k = i; k < e->graph->n_node; k++) {
            if (!fd_fault_same_kind(&nodes[k], &nodes[i])) continue;
            tally t = need_of(e, wide, tight, k);
            rounded += t.rounded > 0;
            needed += t.rounded > 0 && 2 * t.needed >= t.rounded;
        }
        bool departs = needed > 0 && 2 * needed >= rounded, attention = in_attention(&nodes[i]);
        need.n_rounded += rounded;
        need.n_needed += needed;
        need.n_products += rounded > 0 && is_product(nodes[i].op);
        need.n_products_depart += departs && is_product(nodes[i].op);
        need.n_attention_depart += departs && attention;
        need.n_depart += departs;
    }
    return need;
}

/* Beyond the class's bounds at any of its rows; *n: it was judged. */
static bool is_beyond(const fd_class_case *c, int32_t node, int32_t *n) {
    const fd_evidence_row *rows = c->rows + (int64_t)node * c->evidence->n_slot;
    bool beyond = false, judged = false;
    for (int32_t p = 0; p < c->evidence->n_slot; p++) {
        judged |= rows[p].z >= 0;
        beyond |= rows[p].z >= 0 && !(rows[p].z <= 1);
    }
    *n += judged;
    return beyond;
}

bool fd_evidence_other_kernel(const fd_evidence *e, const fd_class_case *c, const fd_class_case *best) {
    const fd_node *nodes = e->graph->nodes;
    for (int32_t i = 0; i < e->graph->n_node; i++) {
        int32_t n = 0, n_depart = 0, unused = 0;
        if (!fd_fault_begins_kind(e->graph, i)) continue;
        for (int32_t k = i; k < e->graph->n_node; k++)
            if (fd_fault_same_kind(&nodes[k], &nodes[i]))
                n_depart += is_beyond(c, k, &n) && !is_beyond(best, k, &unused);
        int32_t fewest = best->numerics->replays_inputs ? 1 : 2;
        if (n_depart >= fewest && 2 * n_depart >= n) return true;
    }
    return false;
}

fd_storage fd_evidence_storage(const fd_evidence *e, const fd_numerics_class *numerics) {
    bool bf16 = numerics->u_out > 0x1p-11;
    fd_storage s = {.digits = bf16 ? BF16_DIGITS : F16_DIGITS};
    for (int32_t i = 0; i < e->graph->n_node; i++) {
        if (!e->stored[i] || is_copy(&e->graph->nodes[i])) continue;
        s.n_stored++;
        s.n_wide += e->wide[2 * i + bf16];
    }
    if (numerics->u_out <= 0x1p-24) s.n_wide = 0;
    return s;
}

bool fd_evidence_cache_speaks_against(const fd_evidence *e, const fd_class_case *c) {
    int32_t n = 0, n_wide = 0, bf16 = c->numerics->u_kv > 0x1p-11;
    for (int32_t i = 0; i < e->graph->n_node; i++) {
        if (!e->stored[i] || e->graph->nodes[i].op != FD_OP_KV_WRITE) continue;
        n++;
        n_wide += e->wide[2 * i + bf16];
    }
    const bool of_binary32 = c->numerics->u_out <= 0x1p-24; /* else its values show it */
    if (n == 0 && (!of_binary32 || fd_class_rounds_to_steps(c->numerics))) return false;
    return c->numerics->u_kv > 0x1p-24 && !c->rounds_products && (n == 0 || 2 * n_wide > n);
}

bool fd_evidence_refutes_table(const fd_evidence *e, const fd_numerics_class *numerics) {
    for (int32_t i = 0; i < e->graph->n_node; i++) {
        const fd_node *node = &e->graph->nodes[i];
        if (node->op == FD_OP_GELU && fd_gelu_is_table(numerics, node) && e->stored[i] && e->wide[2 * i]) return true;
    }
    return false;
}

bool fd_storage_refutes(const fd_storage *storage) {
    return 2 * storage->n_wide > storage->n_stored;
}

bool fd_case_refuted(const fd_class_case *c) {
    return 2 * c->n_needed < c->n_rounded;
}

bool fd_case_leaves_nothing(const fd_class_case *c) {
    bool few_fail = FEW_OF * c->n_failed <= c->n_direct;
    bool repeats = !c->loses_to_steps || c->remains < c->finest_remains - HALF_OF_THE_FINEST;
    return fd_class_leaves_nothing(c->numerics) && c->n_through > 0 && 2 * c->n_left <= c->n_through && few_fail &&
           repeats;
}

bool fd_case_shown(const fd_class_case *c) {
    bool of_16_bits = c->numerics->u_out > 0x1p-24; /* its values show it, where they do not refute it */
    return c->products && (of_16_bits || (c->attention && c->n_seen > 0 && 2 * c->n_seen >= c->n_needed));
}
