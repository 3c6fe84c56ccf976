#include "compare/class/own_products.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/class/undirected.h"
#include "compare/diagnose/below_bounds_internal.h"
#include "compare/dump/narrow.h"

/* Of the size of the result. e4m3 keeps four bits of a value: two such factors leave a twenty-seventh, e5m2's and one scale a batch more.
 * int8 with one scale a row leaves a hundredth. Rounding the result leaves half a unit roundoff. */
#define MOST_ERROR  0x1p-3
#define LEAST_ERROR 1.0 /* unit roundoffs of the type that holds the result */
/* Of binary32 results: what no factors of 16 bits leave. */
#define LEAST_OF_BINARY32 0x1p-8
enum { FEWEST_PRODUCTS = 4 };

typedef struct product {
    bool seen, own;
    double error; /* relative */
} product;

/* `n_rounded`: results of 16 bits on the way, the product's own among them. Their errors add up in squares. */
static product weigh(const fd_trial_rows *rows, double u_out, int32_t n_rounded) {
    const fd_undirected errors = fd_weigh_undirected(rows);
    const double least = u_out > 0x1p-24 ? LEAST_ERROR * u_out * sqrt((double)n_rounded) : LEAST_OF_BINARY32;
    const bool size = errors.error >= least && errors.error <= MOST_ERROR;
    return (product){true, size && fd_is_undirected_in_rows(&errors), errors.error};
}

/* fd_diagnose_look_fn */
typedef struct question {
    product found;
    int32_t n_rounded;
} question;

static fd_code look(void *user, const fd_diagnose_options *options, const fd_explain_request *request, fd_error *err) {
    const int64_t stride = fd_node_row_stride(request->args.node, request->args.n_kv);
    const int64_t n = (request->args.n_pos - request->n_unjudged) * stride;
    const uint32_t type = fd_narrow_type(request->output + request->n_unjudged * stride, n);
    fd_trial_rows rows;
    question *q = user;
    if (type == FD_F32 && options->numerics->u_out > 0x1p-24) return FD_OK;
    fd_code code = fd_trial_rows_open(request, &rows, err);
    if (code == FD_OK && rows.plain.state == FD_VARIANT_COMPUTED)
        q->found = weigh(&rows, fd_dtype_roundoff(type), q->n_rounded);
    fd_trial_rows_close(&rows);
    return code;
}

static bool is_recorded(const fd_diagnose_options *ask, int32_t i) {
    return fd_trace_has_data(ask->trace, ask->graph->nodes[i].name) && !(ask->ignored && ask->ignored[i]);
}

/* A recorded product of the layers. Routers stay as they are in such engines. */
static bool is_product(const fd_diagnose_options *ask, int32_t i) {
    const fd_node *node = &ask->graph->nodes[i];
    const bool is_router = node->weight[0] >= 0 && strstr(ask->graph->weights[node->weight[0]].name, "ffn_gate_inp");
    const bool multiplies = node->op == FD_OP_MATMUL || node->op == FD_OP_EXPERT_MATMUL;
    return multiplies && node->layer >= 0 && !is_router && is_recorded(ask, i);
}

/* Large biases hide what the factors leave: then the error goes with the rounding of the sum, and says nothing. */
static bool has_bias(const fd_node *node) {
    return node->weight[1] >= 0;
}

/* Is the node computed from what was recorded without any product on the way? Then no products' errors are its own. */
static bool is_free_of_products(const fd_diagnose_options *ask, int32_t i) {
    const fd_node *node = &ask->graph->nodes[i];
    if (node->weight[0] >= 0 && !fd_node_is_norm(node)) return false;
    for (int k = 0; k < FD_MAX_INPUTS; k++) {
        const int32_t from = node->input[k];
        if (from >= 0 && !is_recorded(ask, from) && !is_free_of_products(ask, from)) return false;
    }
    return true;
}

/* Factors round in every row alike: a product that departs does so by about what it is off by elsewhere. */
#define MOST_UNEVEN 8.0

static fd_code departs_evenly(const fd_diagnose_options *ask, const fd_node_finding *f, double error, bool *yes,
                              fd_error *err) {
    fd_diagnose_options there = *ask;
    fd_undirected errors;
    there.finding = f;
    FD_TRY(fd_ask_undirected(&there, &errors, err));
    *yes = !(errors.error > MOST_UNEVEN * error);
    return FD_OK;
}

/* The node, and unrecorded ones that it is computed through and that were not counted yet. */
static int32_t count_way(const fd_diagnose_options *ask, int32_t i, bool *counted) {
    const fd_node *node = &ask->graph->nodes[i];
    int32_t n = !counted[i];
    counted[i] = true;
    for (int k = 0; k < FD_MAX_INPUTS; k++) {
        const int32_t from = node->input[k];
        if (from >= 0 && !counted[from] && !is_recorded(ask, from)) n += count_way(ask, from, counted);
    }
    return n;
}

static bool is_before(const fd_attribution *of, int32_t i, int32_t other) {
    return other < 0 || of->introduced[i].step < of->introduced[other].step;
}

/* What every recorded product leaves. */
static fd_code weigh_all(const fd_diagnose_options *ask, const fd_attribution *of, product *products, double *errors,
                         fd_error *err) {
    fd_diagnose_options plain = *ask;
    const size_t n_node = (size_t)ask->graph->n_node;
    bool *counted = malloc(n_node + 1);
    if (!counted) return fd_fail(err, FD_ERR_MEMORY, "products: out of memory");
    fd_code code = FD_OK;
    /* which repeat no rounding of factors */
    plain.numerics = fd_numerics_class_find(ask->numerics->u_out > 0x1p-24 ? "hf-bf16" : "f32");
    for (int32_t i = 0; i < ask->graph->n_node && code == FD_OK; i++) {
        const fd_node_finding *f = &of->introduced[i];
        if (!is_product(ask, i)) continue;
        memset(counted, 0, n_node);
        question q = {.n_rounded = count_way(ask, i, counted)};
        code = fd_below_look_with(&plain, i, look, &q, err);
        products[i] = q.found;
        errors[i] = q.found.seen ? q.found.error : 0;
        if (code == FD_OK && q.found.own && f->finding != FD_FOUND_NOTHING)
            code = departs_evenly(&plain, f, q.found.error, &products[i].own, err);
    }
    free(counted);
    return code;
}

/* Not as factors of 8 bits leave it: by its own inputs, or by far more than in any other layer. */
static bool is_other(const fd_diagnose_options *ask, const fd_attribution *of, const product *products,
                     const double *errors, int32_t i) {
    const bool alone = of->introduced[i].span_first == i || is_free_of_products(ask, i);
    if (of->introduced[i].finding == FD_FOUND_NOTHING || products[i].own) return false;
    if (fd_is_apart(ask->graph, errors, i)) return true;
    return alone && !(is_product(ask, i) && has_bias(&ask->graph->nodes[i]));
}

/* Factors of 8 bits are not the class's own. */
static bool has_whole_factors(const fd_numerics_class *c) {
    return c->u_out > 0x1p-24 || (fd_class_leaves_nothing(c) && !c->replays_inputs);
}

fd_code fd_find_own_products(const fd_diagnose_options *ask, const fd_attribution *of, fd_own_products *out,
                             fd_error *err) {
    *out = (fd_own_products){.other = -1};
    if (!has_whole_factors(ask->numerics)) return FD_OK;
    const size_t n_node = (size_t)ask->graph->n_node;
    product *products = calloc(n_node + 1, sizeof *products);
    double *errors = calloc(n_node + 1, sizeof *errors);
    int32_t n = 0, n_own = 0;
    fd_code code = products && errors ? weigh_all(ask, of, products, errors, err)
                                      : fd_fail(err, FD_ERR_MEMORY, "products: out of memory");
    for (int32_t i = 0; i < ask->graph->n_node && code == FD_OK; i++) {
        n += products[i].own || (products[i].seen && !has_bias(&ask->graph->nodes[i]));
        n_own += products[i].own;
        if (is_other(ask, of, products, errors, i) && is_before(of, i, out->other)) out->other = i;
        if (products[i].own) out->error = fmax(out->error, products[i].error);
    }
    out->are = code == FD_OK && n >= FEWEST_PRODUCTS && 4 * n_own >= 3 * n;
    free(products);
    free(errors);
    return code;
}
