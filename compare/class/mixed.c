#include "compare/class/mixed.h"

#include <math.h>
#include <stdlib.h>

#include "compare/bounds/dot_inputs.h"
#include "compare/class/undirected.h"
#include "compare/diagnose/asked_rows.h"
#include "compare/diagnose/suspects.h"
#include "compare/hypothesis/round_type.h"
#include "faults/faults.h"

/* Ops whose results engines keep in a type of their own. A norm or softmax in 16 bits amid binary32 is a bug as a rule, and so is attention's
 * result, but beside K and V of 16 bits: kernels that take these give their result so. */
static bool may_be_kept_so(const fd_numerics_class *c, fd_op op) {
    return op == FD_OP_MATMUL || op == FD_OP_EXPERT_MATMUL || op == FD_OP_KV_WRITE || op == FD_OP_EMBED ||
           (op == FD_OP_ATTN_MIX && c->u_kv > 0);
}

/* ggml's CPU kernels did so for years. */
static bool may_be_a_table(fd_op op) {
    return op == FD_OP_SILU_MUL || op == FD_OP_GELU_MUL;
}

static void count_of_kind(const fd_graph *graph, const fd_attribution *of, int32_t node, int32_t *n_depart,
                          int32_t *n_within) {
    *n_depart = *n_within = 0;
    for (int32_t i = 0; i < graph->n_node; i++) {
        if (!(of->z[i] >= 0) || !fd_fault_same_kind(&graph->nodes[i], &graph->nodes[node])) continue;
        *n_depart += of->introduced[i].finding != FD_FOUND_NOTHING;
        *n_within += of->introduced[i].finding == FD_FOUND_NOTHING;
    }
}

bool fd_departs_in_all_layers(const fd_graph *graph, const fd_attribution *of, const fd_node_finding *finding) {
    int32_t n_depart, n_within;
    count_of_kind(graph, of, finding->node, &n_depart, &n_within);
    if (finding->span_first == finding->node) return n_within == 0;
    return n_within <= n_depart || finding->z <= FD_LITTLE_BEYOND;
}

bool fd_departs_in_most_layers(const fd_graph *graph, const fd_attribution *of, int32_t node) {
    int32_t n_depart, n_within;
    count_of_kind(graph, of, node, &n_depart, &n_within);
    return n_depart > n_within;
}

bool fd_reads_cache_in_first_step(const fd_graph *graph, const fd_trace *trace, const fd_node_finding *f) {
    bool reads = false;
    if (f->finding == FD_FOUND_NOTHING || fd_trace_step_of(trace, f->pos) > 0) return false;
    for (int32_t k = f->span_first; k <= f->node; k++) reads |= fd_reads_kv_cache(&graph->nodes[k]);
    return reads;
}

bool fd_reads_earlier_steps(const fd_graph *graph, const fd_node_finding *f) {
    return f->step > 0 && f->span_first == f->node && fd_reads_kv_cache(&graph->nodes[f->node]);
}

bool fd_may_be_mixed_class(const fd_graph *graph, const fd_attribution *of) {
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node_finding *f = &of->introduced[i];
        const fd_op op = graph->nodes[i].op;
        bool may = may_be_kept_so(of->numerics, op) || may_be_a_table(op) ||
                   f->span_first != f->node || /* then it may lie in between */
                   fd_reads_earlier_steps(graph, f);
        if (f->finding != FD_FOUND_NOTHING && !(may && fd_departs_in_all_layers(graph, of, f))) return false;
    }
    return of->found;
}

static bool rounds_what_may_be(const fd_diagnose_options *ask, const fd_hypothesis *h) {
    const fd_node *nodes = ask->graph->nodes;
    if (h->guess != FD_GUESS_ROUNDED) return false;
    if (h->which == FD_ROUNDED_TABLE) return h->other == FD_F16;
    return h->which == FD_ROUNDED_RESULT &&
           may_be_kept_so(ask->numerics, h->node >= 0 ? nodes[h->node].op : (fd_op)(h->ops - 1));
}

fd_code fd_rounds_as_well(const fd_diagnose_options *ask, const fd_attribution *of, const fd_explanation *e, bool *yes,
                          fd_error *err) {
    const fd_explain_fit *best = &e->remaining[0];
    *yes = !e->named && e->n_remaining > 0 && best->z <= 1.0 && rounds_what_may_be(ask, &best->hypothesis);
    if (!*yes) return FD_OK;
    double *errors = calloc((size_t)ask->graph->n_node + 1, sizeof *errors);
    fd_code code =
        errors ? fd_ask_all_undirected(ask, of, errors, err) : fd_fail(err, FD_ERR_MEMORY, "class: out of memory");
    for (int32_t i = 0; i < ask->graph->n_node && code == FD_OK; i++) *yes &= !fd_is_apart(ask->graph, errors, i);
    free(errors);
    return code;
}

bool fd_most_products_depart(const fd_graph *graph, const fd_attribution *of) {
    int32_t n = 0, n_depart = 0;
    for (int32_t i = 0; i < graph->n_node; i++) {
        bool judged = false, departs = false;
        if (graph->nodes[i].op != FD_OP_MATMUL || !fd_fault_begins_kind(graph, i)) continue;
        for (int32_t k = i; k < graph->n_node; k++) {
            if (!fd_fault_same_kind(&graph->nodes[k], &graph->nodes[i])) continue;
            judged |= of->z[k] >= 0;
            departs |= of->introduced[k].finding != FD_FOUND_NOTHING;
        }
        n += judged;
        n_depart += departs;
    }
    return 2 * n_depart > n;
}

/* Factors of products: of one kind alone that is a bug, of most it is how the engine multiplies. */
static bool rounds_factors(const fd_graph *graph, const fd_attribution *of, const fd_hypothesis *h) {
    if (h->guess != FD_GUESS_ROUNDED || h->which != FD_ROUNDED_INPUT || h->node < 0) return false;
    return graph->nodes[h->node].op == FD_OP_MATMUL && fd_most_products_depart(graph, of);
}

/* Is every tensor that departs what `h` makes of it? `h` with a node: that of its kind in each layer. */
static fd_code fits_all(const fd_diagnose_options *ask, const fd_attribution *of, const fd_hypothesis *hypothesis,
                        bool *yes, fd_error *err) {
    fd_hypothesis h = *hypothesis;
    const bool factors = h.which == FD_ROUNDED_INPUT;
    *yes = true;
    for (int32_t i = 0; i < ask->graph->n_node && *yes; i++) {
        fd_diagnose_options there = *ask;
        there.finding = &of->introduced[i];
        if (factors) h.ops = (ask->graph->nodes[i].op == FD_OP_EXPERT_MATMUL ? FD_OP_EXPERT_MATMUL : FD_OP_MATMUL) + 1;
        if (h.node >= 0 && of->first.span_first == of->first.node) h.node = i;
        if (of->introduced[i].finding != FD_FOUND_NOTHING) FD_TRY(fd_diagnose_fits(&there, &h, yes, err));
    }
    return FD_OK;
}

/* The first tensor that departs otherwise than `h` has it, where most that depart are as `h` has them. */
static fd_code find_other(const fd_diagnose_options *ask, const fd_attribution *of, const fd_hypothesis *h,
                          int32_t *other, fd_error *err) {
    int32_t n_as_said = 0, n_other = 0;
    *other = -1;
    for (int32_t i = 0; i < ask->graph->n_node; i++) {
        fd_diagnose_options there = *ask;
        bool fits = false;
        there.finding = &of->introduced[i];
        if (there.finding->finding == FD_FOUND_NOTHING) continue;
        FD_TRY(fd_diagnose_fits(&there, h, &fits, err));
        n_as_said += fits;
        n_other += !fits;
        if (!fits && *other < 0) *other = i;
    }
    if (n_as_said < 2 || n_other >= n_as_said) *other = -1;
    return FD_OK;
}

/* Rows of an embedding that was not recorded, as the node that scales them reads them. */
static bool rounds_embedding(const fd_node *nodes, const fd_hypothesis *h) {
    if (h->guess != FD_GUESS_ROUNDED || h->which != FD_ROUNDED_INPUT || h->node < 0) return false;
    const int32_t read = nodes[h->node].input[0];
    return read >= 0 && nodes[read].op == FD_OP_EMBED;
}

static int32_t count_departing(const fd_graph *graph, const fd_attribution *of) {
    int32_t n = 0;
    for (int32_t i = 0; i < graph->n_node; i++) n += of->introduced[i].finding != FD_FOUND_NOTHING;
    return n;
}

/* Logits and routers have a type of their own in many engines, and classes of coarse factors say nothing of them (dot_inputs.h). Through
 * layers it may be another product of theirs. */
static bool is_of_heads_alone(const fd_graph *graph, const fd_attribution *of, const fd_hypothesis *h) {
    bool yes = fd_is_of_class(h);
    for (int32_t i = 0; i < graph->n_node && yes; i++) {
        const fd_node_finding *f = &of->introduced[i];
        const fd_node *node = &graph->nodes[i];
        if (f->finding == FD_FOUND_NOTHING) continue;
        yes = node->op == FD_OP_MATMUL && fd_dot_is_head_or_router(node, &graph->weights[node->weight[0]]);
        for (int32_t k = f->span_first; k < i && yes; k++) yes = graph->nodes[k].layer < 0;
    }
    return yes;
}

fd_code fd_is_mixed_class(const fd_diagnose_options *ask, const fd_attribution *of, const fd_explanation *e, bool *yes,
                          int32_t *other, fd_error *err) {
    const fd_node *nodes = ask->graph->nodes;
    const fd_hypothesis h = e->remaining[0].hypothesis;
    *yes = false;
    *other = -1;
    if (e->named && rounds_embedding(nodes, &h)) {
        *yes = count_departing(ask->graph, of) == 1;
        return FD_OK;
    }
    if (e->named && is_of_heads_alone(ask->graph, of, &h)) return fits_all(ask, of, &h, yes, err);
    if (!e->named || !(rounds_what_may_be(ask, &h) || rounds_factors(ask->graph, of, &h))) return FD_OK;
    const fd_op op = h.node < 0 ? (fd_op)(h.ops - 1) : nodes[h.node].op;
    fd_hypothesis factors = h; /* of all products, those in spans as well */
    factors.ops = (int32_t)op + 1, factors.node = -1, factors.layer = FD_ANY_LAYER;
    if (h.which == FD_ROUNDED_INPUT) return fits_all(ask, of, &factors, yes, err);
    if (op != FD_OP_KV_WRITE) return fits_all(ask, of, &h, yes, err);
    /* K's and V's are one property as a rule; two rules of Q8_0 may both give the first one's values */
    const fd_hypothesis one = h.node < 0 ? h : fd_hypothesis_everywhere(&h, ask->graph);
    for (int i = 0; i < 4 && !*yes; i++) {
        fd_hypothesis tried = one;
        if (i < 2) tried.kind[0] = '\0';
        if (i % 2 && one.other != FD_Q8_0) continue;
        if (i % 2) tried.other = FD_ROUND_Q8_0_KEPT;
        FD_TRY(fits_all(ask, of, &tried, yes, err));
    }
    fd_hypothesis both = one;
    both.kind[0] = '\0';
    return *yes ? FD_OK : find_other(ask, of, &both, other, err);
}

/* A prompt may be attended to before its K and V are kept (later_cache.h): then what reads them departs in the first step, in every layer. */
static bool may_read_before_cache(const fd_diagnose_options *ask, const fd_attribution *of, int32_t i) {
    return fd_reads_cache_in_first_step(ask->graph, ask->trace, &of->introduced[i]) &&
           fd_departs_in_most_layers(ask->graph, of, i);
}

/* Through unrecorded nodes it reads a cache that was not recorded: what that leaves is the node's, too. */
static bool reads_unrecorded_cache(const fd_diagnose_options *ask, int32_t node) {
    const fd_node *nodes = ask->graph->nodes;
    for (int k = 0; k < FD_MAX_INPUTS; k++) {
        const int32_t from = nodes[node].input[k];
        if (from < 0 || fd_asked_is_recorded(ask, &nodes[from])) continue;
        if (nodes[from].op == FD_OP_KV_WRITE || reads_unrecorded_cache(ask, from)) return true;
    }
    return false;
}

fd_code fd_find_beside_cache(const fd_diagnose_options *ask, const fd_attribution *of, const fd_explanation *e,
                             int32_t *other, fd_error *err) {
    const fd_node *nodes = ask->graph->nodes;
    fd_hypothesis h = e->remaining[0].hypothesis;
    *other = -1;
    if (!e->named || nodes[of->first.node].op != FD_OP_KV_WRITE || !rounds_what_may_be(ask, &h) ||
        !fd_departs_in_all_layers(ask->graph, of, &of->first))
        return FD_OK;
    if (h.node >= 0) h = fd_hypothesis_everywhere(&h, ask->graph);
    h.kind[0] = '\0'; /* K's and V's are one property */
    for (int32_t i = 0; i < ask->graph->n_node; i++) {
        fd_diagnose_options there = *ask;
        bool cached = false;
        there.finding = &of->introduced[i];
        if (there.finding->finding == FD_FOUND_NOTHING || reads_unrecorded_cache(ask, i) ||
            may_read_before_cache(ask, of, i))
            continue;
        if (nodes[i].op == FD_OP_KV_WRITE) FD_TRY(fd_diagnose_fits(&there, &h, &cached, err));
        if (!cached && (*other < 0 || there.finding->step < of->introduced[*other].step)) *other = i;
    }
    return FD_OK;
}

/* ---- products that are computed in another way ---- */

/* Of the size of the result: int8 activations leave a hundredth of it, through several products or with one scale a batch more. */
#define MOST_ERROR         0x1p-5
#define MOST_ERROR_OF_SPAN 0x1p-3

/* Single rows are another kernel's than a prompt's. */
static bool is_decode_alone(const fd_diagnose_options *ask, const fd_attribution *of) {
    const fd_trace_step *steps = fd_trace_steps(ask->trace);
    bool alone = of->found;
    for (int32_t i = 0; i < ask->graph->n_node && alone; i++) {
        const fd_node_finding *f = &of->introduced[i];
        if (f->finding == FD_FOUND_NOTHING) continue;
        const int32_t step = fd_trace_step_of(ask->trace, f->pos);
        alone = step > 0 && steps[step].n_pos == 1 && fd_departs_in_all_layers(ask->graph, of, f);
    }
    return alone;
}

fd_code fd_is_own_way(const fd_diagnose_options *ask, const fd_attribution *of, double *error, bool *yes,
                      fd_error *err) {
    const fd_node *nodes = ask->graph->nodes;
    const bool of_16_bits = ask->numerics->u_out > 0x1p-24;
    const bool no_room = fd_class_leaves_nothing(ask->numerics);
    *yes = false;
    *error = 0;
    if (nodes[of->first.node].layer < 0 || (no_room && !is_decode_alone(ask, of))) return FD_OK;
    if (!of_16_bits && !fd_most_products_depart(ask->graph, of)) return FD_OK;
    for (int32_t i = 0; i < ask->graph->n_node; i++) {
        const fd_node_finding *f = &of->introduced[i];
        const bool through = f->span_first != f->node;
        fd_undirected errors;
        if (f->finding == FD_FOUND_NOTHING) continue;
        if (nodes[i].op != FD_OP_MATMUL || (through && of_16_bits) || !isfinite(f->z)) return FD_OK;
        fd_diagnose_options there = *ask;
        there.finding = f;
        FD_TRY(fd_ask_undirected(&there, &errors, err));
        const bool small = errors.error <= (through ? MOST_ERROR_OF_SPAN : MOST_ERROR);
        if (!small || !fd_is_undirected_in_rows(&errors)) return FD_OK;
        *error = fmax(*error, errors.error);
    }
    *yes = true;
    return FD_OK;
}
