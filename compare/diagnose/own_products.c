#include "compare/diagnose/own_products.h"

#include <math.h>
#include <string.h>

#include "compare/diagnose/below_bounds_internal.h"
#include "compare/diagnose/narrow.h"
#include "compare/diagnose/trial_rows.h"

/* Of the size of the result. e4m3 keeps four bits of a value: two such factors leave a twenty-seventh, e5m2's and one scale a batch more.
 * int8 with one scale a row leaves a hundredth. Rounding the result leaves half a unit roundoff. */
#define MOST_ERROR  0x1p-3
#define LEAST_ERROR 1.0 /* unit roundoffs of the type that holds the result */
/* Along the result, of the error, or eight standard errors: a matrix turns errors into few directions, and scales of FP8 weights are off
 * by a part of their last bit. */
#define MOST_ALONG 0.25
/* Of the error in one row (those of a row go with its largest value, and with how much cancels), or in one eighth of the elements. */
#define LEAST_ROW  0.1
#define LEAST_PART 0.25
enum { PARTS = 8, FEWEST_PRODUCTS = 4 };

typedef struct product {
    bool seen, own;
    double error; /* relative */
} product;

static double relative(double rr, double yy) {
    return sqrt(rr / yy);
}

/* Row by row, then all of them. */
static void weigh(const fd_trial_rows *rows, double u_out, product *out) {
    const fd_explain_request *r = rows->request;
    const int64_t stride = fd_node_row_stride(r->args.node, r->args.n_kv), n_row = r->args.n_pos - r->n_unjudged;
    double rr = 0, yy = 0, ry = 0, part[PARTS] = {0}, least = INFINITY;
    for (int64_t p = r->n_unjudged; p < r->args.n_pos; p++) {
        double row_rr = 0, row_yy = 0;
        for (int64_t i = 0; i < stride; i++) {
            const double y = (double)rows->plain.rows[p * stride + i], off = (double)r->output[p * stride + i] - y;
            row_rr += off * off;
            row_yy += y * y;
            ry += off * y;
            part[i * PARTS / stride] += off * off;
        }
        rr += row_rr;
        yy += row_yy;
        least = fmin(least, relative(row_rr, row_yy));
    }
    const double along = fmax(MOST_ALONG, 8 / sqrt((double)(n_row * stride)));
    bool alike = least >= LEAST_ROW * relative(rr, yy);
    for (int i = 0; i < PARTS; i++) alike &= part[i] >= LEAST_PART * LEAST_PART * rr / PARTS;
    out->seen = true;
    out->error = relative(rr, yy);
    out->own = alike && out->error >= LEAST_ERROR * u_out && out->error <= MOST_ERROR &&
               fabs(ry) <= along * sqrt(rr * yy); /* false where something is not finite */
}

/* fd_diagnose_look_fn */
static fd_code look(void *user, const fd_diagnose_options *options, const fd_explain_request *request, fd_error *err) {
    const int64_t stride = fd_node_row_stride(request->args.node, request->args.n_kv);
    const int64_t n = (request->args.n_pos - request->n_unjudged) * stride;
    const uint32_t type = fd_narrow_type(request->output + request->n_unjudged * stride, n);
    fd_trial_rows rows;
    (void)options;
    if (type == FD_F32 || stride < PARTS) return FD_OK;
    fd_code code = fd_trial_rows_open(request, &rows, err);
    if (code == FD_OK && rows.plain.state == FD_VARIANT_COMPUTED) weigh(&rows, fd_dtype_roundoff(type), user);
    fd_trial_rows_close(&rows);
    return code;
}

/* A recorded product of the layers. Routers stay as they are in such engines. */
static bool is_product(const fd_diagnose_options *ask, int32_t i) {
    const fd_node *node = &ask->graph->nodes[i];
    const bool is_router = node->weight[0] >= 0 && strstr(ask->graph->weights[node->weight[0]].name, "ffn_gate_inp");
    return node->op == FD_OP_MATMUL && node->layer >= 0 && !is_router && !(ask->ignored && ask->ignored[i]) &&
           fd_trace_has_data(ask->trace, node->name);
}

/* Large biases hide what the factors leave: then the error goes with the rounding of the sum, and says nothing. */
static bool has_bias(const fd_node *node) {
    return node->weight[1] >= 0;
}

static bool is_before(const fd_attribution *of, int32_t i, int32_t other) {
    return other < 0 || of->introduced[i].step < of->introduced[other].step;
}

fd_code fd_find_own_products(const fd_diagnose_options *ask, const fd_attribution *of, fd_own_products *out,
                             fd_error *err) {
    fd_diagnose_options plain = *ask;
    int32_t n = 0, n_own = 0;
    *out = (fd_own_products){.other = -1};
    plain.numerics = fd_numerics_class_find("hf-bf16"); /* which repeats no rounding of factors */
    for (int32_t i = 0; i < ask->graph->n_node; i++) {
        const fd_node_finding *f = &of->introduced[i];
        const bool departs = f->finding != FD_FOUND_NOTHING && f->span_first == i;
        product p = {0};
        if (is_product(ask, i)) FD_TRY(fd_below_look_with(&plain, i, look, &p, err));
        n += p.own || (p.seen && !has_bias(&ask->graph->nodes[i]));
        n_own += p.own;
        const bool untold = is_product(ask, i) && has_bias(&ask->graph->nodes[i]);
        if (departs && !p.own && !untold && is_before(of, i, out->other)) out->other = i;
        if (p.own) out->error = fmax(out->error, p.error);
    }
    out->are = n >= FEWEST_PRODUCTS && 4 * n_own >= 3 * n;
    return FD_OK;
}
