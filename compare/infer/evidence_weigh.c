/* What the rows that were added to a case say of its class. */
#include <math.h>

#include "compare/attribute/residuals.h"
#include "compare/attribute/typical.h"
#include "compare/bounds/dot_inputs.h"
#include "compare/infer/evidence_internal.h"

/* In its own class a node's largest z is about a half (one rounding of the output, half of the ulp allowed for it), and
 * 0.6 was the most that the emulated engines showed; a class that is four times too strict can just stay below 1. */
#define COMFORTABLE_Z 0.7

/* Of errors that round off a τ by six or more standard deviations, eight are all below a hundredth of it once in
 * 10^10 times. A bug spares rows: RoPE is the identity at position 0, where a token attends to itself alone too. */
#define FAR_SMALLER 0.01f

/* Too large, for a class that repeats its roundings: τ is four standard deviations or more of each rounding that it does not
 * repeat, and these partly cancel on the way. Of sound runs from logits alone a hundredth was left, three at most; of a
 * bug in one layer a tenth. */
#define LARGE_FOR_REPEATED 0.05f

/* Less than binary32 leaves, for a logarithm. */
#define TINIEST_LEFT 0x1p-30

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

/* Sums of binary16 leave its values, which those of bfloat16 are not as a rule. */
static bool may_leave_narrow(const fd_evidence *e, const fd_numerics_class *c, const fd_node *node) {
    /* through others, only that it was rounded is sure */
    if (e->n_way[node->id] > 0 && fd_class_sums_in_16_bits(c)) return true;
    double u = fd_dot_is_product(node->op) ? fmax(c->u_acc, c->u_acc_f16) : node->op == FD_OP_ATTN_MIX ? c->u_mix : 0;
    bool of_sum = fmax(u, of_attention(node->op) ? c->u_acc : 0) > 0x1p-24 && e->wide[2 * node->id + 1];
    return c->u_out > 0x1p-24 || c->u_shown > 0 || of_sum || (node->op == FD_OP_GELU && fd_gelu_is_table(c, node));
}

/* Logits may be rounded at the end, which says nothing of products. */
static bool is_only_product(const fd_evidence *e, const fd_node *node) {
    for (int32_t i = 0; i < e->graph->n_node && node->layer < 0; i++)
        if (e->seen[i] && fd_dot_is_product(e->graph->nodes[i].op) && i != node->id) return false;
    return node->layer < 0;
}

/* Values that all have a 16-bit form in an engine of 32-bit tensors: this op rounds its result, which the class does
 * not say unless its sums live in 16 bits, or it reads them from such a table. */
static bool rounds_its_result(const fd_evidence *e, const fd_numerics_class *c, const fd_node *node) {
    bool narrow = !e->wide[2 * node->id] || !e->wide[2 * node->id + 1];
    return e->stored[node->id] && !is_copy(node) && narrow && !is_only_product(e, node) &&
           !may_leave_narrow(e, c, node);
}

/* A position that was a step by itself: where a product rounds by its shape, one row is not rounded. */
static bool is_step_alone(const fd_evidence *e, int32_t slot) {
    const int32_t pos = slot < MOST_SLOTS / 2 ? slot : slot + e->n_pos - e->n_slot;
    return fd_trace_n_step(e->trace) > 0 && fd_trace_rows_of_call(e->trace, pos) == 1;
}

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
        if (c->numerics->either && e->finest[at].z <= 1 && is_step_alone(e, p)) continue;
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
        if (c->rows[at].through && c->numerics->u_shown > 0) continue; /* bounds that have room say nothing */
        if (c->rows[at].error == e->finest[at].error) continue;        /* nor a row that it computes in the same way */
        t.rounded++;
        /* through unrecorded tensors the bounds have room for anything, but nothing is left of what is repeated; of what is
         * lost to the other side of steps, less than the finest leaves */
        bool repeats =
            c->rows[at].left <= 1 && (!c->loses_to_steps || 2 * c->rows[at].remains <= e->finest[at].remains);
        t.needed += c->rows[at].z <= 1 && (!c->rows[at].through || repeats);
    }
    return t;
}

/* How large the roundings of factors are is known to a fifth, where thousands of them are added: a class that would leave four times as
 * much, or more, in most rows of products is another. (Of sums in 16 bits it is not: their order decides.) */
#define FAR_BELOW_TYPICAL 0.25f

static void count_sizes(fd_class_case *c, int32_t node) {
    const fd_evidence *e = c->evidence;
    for (int32_t p = 0; p < e->n_slot; p++) {
        const int64_t at = (int64_t)node * e->n_slot + p;
        if (c->rows[at].z < 0 || e->finest[at].z < 0 || !(c->rows[at].tau > MUCH_MORE * e->finest[at].tau)) continue;
        if (c->rows[at].unknown || !isfinite(c->rows[at].typical)) continue;
        if (c->numerics->q8_activations && c->numerics->u_in > 0 && !is_step_alone(e, p))
            continue; /* int8, or 16 bits */
        c->n_sized++;
        c->n_small += c->rows[at].error < FAR_BELOW_TYPICAL * c->rows[at].typical;
    }
}

/* Or what is made of one, element by element, that was not recorded: logits that are scaled or capped. */
static bool is_of_product(const fd_evidence *e, const fd_node *node) {
    const fd_node *in = node->layer < 0 && node->input[0] >= 0 ? &e->graph->nodes[node->input[0]] : NULL;
    const bool made = in && node->input[1] < 0 && fd_dot_is_product(in->op) && fd_node_width(in) == fd_node_width(node);
    return fd_dot_is_product(node->op) || (made && !fd_trace_has_data(e->trace, in->name));
}

static bool through_product(const fd_evidence *e, int32_t node) {
    const fd_node *nodes = e->graph->nodes;
    for (int k = 0; k < FD_MAX_INPUTS; k++) {
        const int32_t in = nodes[node].input[k];
        if (in < 0 || fd_trace_has_data(e->trace, nodes[in].name)) continue;
        if (fd_dot_is_product(nodes[in].op) || through_product(e, in)) return true;
    }
    return false;
}

static bool is_needed(const fd_class_case *c, const fd_node *node, tally rows) {
    return 2 * rows.needed >= rows.rounded && rows.spared == 0 && !rounds_its_result(c->evidence, c->numerics, node);
}

/* A layer's output is as far off as its products: a bug in one layer, or from a position on, leaves the others as they are. */
static void weigh_span(const fd_node *node, fd_class_case *c) {
    if (c->evidence->n_way[node->id] == 0 || !through_product(c->evidence, node->id)) return;
    const tally rows = count_rows(c, node->id);
    c->n_spans += rows.rounded > 0;
    c->n_spans_needed += rows.rounded > 0 && is_needed(c, node, rows);
}

static void weigh_need(const fd_node *node, fd_class_case *c, tally kinds[2]) {
    const fd_evidence *e = c->evidence;
    /* an engine may round rows of the cache where it reads them, and fast sin and exp may happen to be right */
    bool copies = node->op == FD_OP_KV_WRITE && c->numerics->u_attn > 0;
    bool product = is_of_product(e, node);
    bool other = !product && !of_attention(node->op) && node->op != FD_OP_KV_WRITE;
    const bool asked = c->numerics->either && node->op == FD_OP_MATMUL && e->n_way[node->id] == 0; /* factors.h */
    if (c->numerics->either && of_attention(node->op)) return; /* its small products stay in binary32 as a rule */
    bool repeats =
        asked || c->numerics->replays_inputs || (node->op == FD_OP_KV_WRITE && fd_class_repeats_cache(c->numerics));
    if (!repeats && other && c->numerics->u_out <= 0x1p-24) weigh_span(node, c);
    if (!repeats && (copies || (other && c->numerics->u_out <= 0x1p-24))) return;
    tally rows = repeats ? count_repeated(c, node->id) : count_rows(c, node->id);
    if (rows.rounded == 0) return;
    const bool needed = is_needed(c, node, rows);
    c->n_rounded++;
    c->n_needed += needed;
    c->n_seen += needed && (repeats || !through_a_part(e, node->id));
    if (other) return;
    c->rounds_products |= product && !e->through_attention[node->id];
    kinds[!product].rounded++;
    kinds[!product].needed += needed;
    if (!product || e->n_way[node->id] > 0) return;
    c->n_plain++;
    c->n_plain_needed += needed;
    count_sizes(c, node->id);
}

/* Larger than the class's roundings make them, though its bounds have room. *known: they are smaller than the row. */
static bool is_large(const fd_class_case *c, const fd_evidence_row *row, bool *known) {
    *known = !row->unknown;
    float most = row->long_span ? FD_MOST_ERROR_LONG_SPAN : FD_MOST_ERROR;
    if (!fd_class_leaves_nothing(c->numerics)) return !(row->error <= most * row->typical);
    return row->through && row->long_span && !(row->error <= LARGE_FOR_REPEATED * row->tau);
}

/* Roundings are in all rows alike, a bug may be in decode alone: a few of these are enough. One of several may be
 * an accident. */
enum { FEW_ROWS_OF = 4, FEWEST_ROWS = 2 };

/* Not what an engine of the class gives: beyond the bounds, or rows with errors too large for roundings. */
static bool outside(const fd_class_case *c, int32_t node) {
    int32_t n = 0, n_large = 0, n_slot = c->evidence->n_slot;
    int32_t few = fd_class_leaves_nothing(c->numerics) ? 2 : FEW_ROWS_OF;
    for (int32_t p = 0; p < n_slot; p++) {
        const fd_evidence_row *row = &c->rows[(int64_t)node * n_slot + p];
        bool known;
        if (row->z < 0) continue;
        if (!(row->z <= 1)) return true;
        n_large += is_large(c, row, &known) && known;
        n += known;
    }
    return n_large >= (n > 1 ? FEWEST_ROWS : 1) && few * n_large >= n;
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

static bool is_repeated(const fd_evidence_row *row, const fd_evidence_row *finest) {
    const bool judged = row->z >= 0 && finest->z >= 0 && row->through;
    return judged && row->remains <= FD_LAST_BITS && finest->remains >= FD_FAR_FROM_LAST_BITS * FD_LAST_BITS;
}

void fd_evidence_weigh(fd_class_case *c) {
    fd_evidence *e = c->evidence;
    tally kinds[2] = {{0}};
    *c = (fd_class_case){.evidence = e,
                         .numerics = c->numerics,
                         .first = -1,
                         .rows = c->rows,
                         .loses_to_steps = c->loses_to_steps,
                         .n_table = c->n_table,
                         .n_not_of_table = c->n_not_of_table,
                         .values_alone = c->values_alone};
    for (int32_t i = 0; i < e->graph->n_node; i++) {
        const fd_node *node = &e->graph->nodes[i];
        float z = -1;
        bool vague = false,
             narrow = rounds_its_result(e, c->numerics, node); /* rows of it may be right by that alone */
        for (int32_t p = 0; p < e->n_slot; p++) {
            const fd_evidence_row *row = &c->rows[(int64_t)i * e->n_slot + p];
            if (!(row->z <= z)) z = row->z;
            c->n_rows_left += row->z >= 0 && row->through && !narrow && !(row->left <= 1);
            c->n_rows_repeated += e->finest && is_repeated(row, &e->finest[(int64_t)i * e->n_slot + p]);
            vague |= row->z >= 0 && row->vague;
            if (row->z < 0 || !is_step_alone(e, p)) continue;
            c->n_alone++;
            c->n_alone_left += row->through ? !(row->left <= 1) : !(row->z <= 1);
        }
        if (z == -1) continue;
        double remains, left = left_of(c, i, &remains);
        c->n_through += left >= 0;
        c->n_left += left > 1;
        if (left >= 0) c->remains += log(remains > TINIEST_LEFT ? remains : TINIEST_LEFT);
        c->n_direct += left < 0;
        c->n_failed += left < 0 && !(z <= 1);
        bool other_errors = outside(c, i);
        bool too_large = other_errors && !fd_class_leaves_nothing(c->numerics);
        bool beyond = vague || too_large || !(z <= (float)COMFORTABLE_Z) || (c->numerics->sums_in_turn && left > 1);
        c->n_judged++;
        c->n_beyond += beyond;
        c->n_outside += other_errors;
        if (beyond && c->first < 0) c->first = i;
        if (e->finest) weigh_need(node, c, kinds);
    }
    if (c->n_through > 0) c->remains /= c->n_through;
    c->products = 2 * kinds[0].needed >= kinds[0].rounded;
    c->attention = 2 * kinds[1].needed >= kinds[1].rounded;
    if (!e->finest) {
        e->finest = c->rows;
        e->finest_remains = c->remains;
    }
    c->finest_remains = e->finest_remains;
}
