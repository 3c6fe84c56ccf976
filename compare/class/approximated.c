#include "compare/class/approximated.h"

#include <math.h>
#include <stdio.h>

#include "compare/class/mixed.h"
#include "compare/explain/trial_rows.h"

/* Of the result. Polynomials of degree three leave 1e-4 of e^x; two Newton steps after the bit trick 4.7e-6 of 1/sqrt; an angle that is turned
 * on with sin and cos in binary32 an ulp a position. */
#define MOST_OF_EXP  0x1p-12
#define MOST_OF_ROOT 0x1p-17
#define MOST_OF_TURN 0x1p-22

typedef enum kind { NONE, EXP, ROOT, TURN } kind;

static kind kind_of(fd_op op) {
    switch (op) {
    case FD_OP_ATTN_SOFTMAX:
    case FD_OP_SILU_MUL:
    case FD_OP_SILU:
    case FD_OP_SIGMOID:
    case FD_OP_GELU_MUL:
    case FD_OP_GELU: return EXP;
    case FD_OP_RMS_NORM: return ROOT;
    case FD_OP_ROPE: return TURN;
    default: return NONE;
    }
}

/* Attention's sum of V and the product of an activation, where softmax and activation were not recorded. */
static kind kind_of_finding(const fd_graph *graph, const fd_node_finding *f) {
    kind found = NONE;
    for (int32_t i = f->span_first; i <= f->node; i++) {
        const kind own = kind_of(graph->nodes[i].op);
        if (own == EXP || found == NONE) found = own != NONE ? own : found;
    }
    return found;
}

bool fd_may_be_approximated(const fd_graph *graph, const fd_attribution *of) {
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node_finding *f = &of->introduced[i];
        if (f->finding == FD_FOUND_NOTHING) continue;
        const kind k = kind_of_finding(graph, f);
        /* a root of two steps is right for some arguments */
        const bool most = k == ROOT && (graph->nodes[i].layer < 0 || fd_departs_in_most_layers(graph, of, i));
        const bool little = k == TURN && f->z <= FD_LITTLE_BEYOND; /* the first positions are within the bounds */
        if (k == NONE || !isfinite(f->z) || !(little || most || fd_departs_in_all_layers(graph, of, f))) return false;
    }
    return of->found;
}

typedef struct errors {
    kind of;
    double largest; /* relative */
    bool small;
} errors;

/* fd_diagnose_look_fn */
static fd_code look_at_errors(void *user, const fd_diagnose_options *options, const fd_explain_request *request,
                              fd_error *err) {
    errors *out = user;
    fd_trial_rows rows;
    const int64_t stride = fd_node_row_stride(request->args.node, request->args.n_kv);
    (void)options;
    fd_code code = fd_trial_rows_open(request, &rows, err);
    out->small = code == FD_OK && rows.plain.state == FD_VARIANT_COMPUTED;
    for (int64_t p = request->n_unjudged; p < request->args.n_pos && out->small; p++) {
        double rr = 0, yy = 0;
        for (int64_t i = 0; i < stride; i++) {
            const double y = (double)rows.plain.rows[p * stride + i], r = (double)request->output[p * stride + i] - y;
            if (!isfinite(y)) continue;
            rr += r * r;
            yy += y * y;
        }
        const double most = out->of == EXP    ? MOST_OF_EXP
                            : out->of == ROOT ? MOST_OF_ROOT
                                              : MOST_OF_TURN * (double)(request->args.pos0 + p + 1);
        const double error = yy > 0 ? sqrt(rr / yy) : 0;
        out->small = error <= most;
        out->largest = fmax(out->largest, error);
    }
    fd_trial_rows_close(&rows);
    return code;
}

/* What only says that a function, or a number that each row has, is another; of one row, that is a factor. */
static bool says_how(const fd_explanation *e) {
    const fd_hypothesis *h = &e->remaining[0].hypothesis;
    const bool own = h->guess == FD_GUESS_OWN && (h->which == FD_OWN_FUNCTION || h->which == FD_OWN_ROW_FACTOR);
    return !e->named || own || (h->guess == FD_GUESS_FACTOR && fabs(h->value - 1) <= MOST_OF_ROOT);
}

fd_code fd_is_approximated(const fd_diagnose_options *ask, const fd_attribution *of, const fd_explanation *e, char *to,
                           size_t size, bool *yes, fd_error *err) {
    static const char *const words[] = {"", "an approximation of the exponential is", "an approximation of 1/sqrt is",
                                        "angles turned on from position to position are"};
    double largest = 0;
    *yes = says_how(e);
    for (int32_t i = 0; i < ask->graph->n_node && *yes; i++) {
        fd_diagnose_options there = *ask;
        there.finding = &of->introduced[i];
        if (there.finding->finding == FD_FOUND_NOTHING) continue;
        errors own = {.of = kind_of_finding(ask->graph, there.finding)};
        FD_TRY(fd_diagnose_look(&there, look_at_errors, &own, err));
        *yes = own.small;
        largest = fmax(largest, own.largest);
    }
    snprintf(to, size, "off by %.1g of it, as %s", largest, words[kind_of_finding(ask->graph, &of->first)]);
    return FD_OK;
}
