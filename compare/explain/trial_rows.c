#include "compare/explain/trial_rows.h"

#include <math.h>

#include "numerics/contract.h"

fd_code fd_trial_rows_open(const fd_explain_request *request, fd_trial_rows *rows, fd_error *err) {
    rows->request = request;
    FD_TRY(fd_workbench_open(request, &rows->bench, err));
    return fd_evaluate(rows->bench, &fd_no_hypothesis, request->args.node->id, true, &rows->plain, err);
}

void fd_trial_rows_close(fd_trial_rows *rows) {
    fd_variant_free(&rows->plain);
    fd_workbench_close(rows->bench);
}

double fd_root_mean_square(const float *x, int64_t n) {
    double sum = 0;
    int64_t n_finite = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) continue;
        sum += (double)x[i] * (double)x[i];
        n_finite++;
    }
    return n_finite ? sqrt(sum / (double)n_finite) : 0;
}

/* In bounds of the op as it should be, or of the variant where that hides a key, whose -Inf has none; of an exact candidate, which has
 * none, in `rounding`. */
static double residual_at(const fd_trial_rows *rows, const fd_variant *v, double rounding, int64_t i) {
    const fd_explain_request *r = rows->request;
    const fd_node *node = r->args.node;
    float c = r->output[i], x = v->rows[i];
    int64_t stride = fd_node_row_stride(node, r->args.n_kv);
    if (node->over_kv && i % r->args.n_kv > r->args.pos0 + i / stride) return 0;
    /* zeros of either sign are equal: engines round small numbers to both */
    if (c == x || (isnan(c) && isnan(x)) || (rows->plain.tau && !isfinite(c) && !isfinite(x))) return 0;
    double tau = rows->plain.tau ? rows->plain.tau[i] : rounding;
    if (rows->plain.tau && v->tau && !isfinite(rows->plain.rows[i])) tau = v->tau[i];
    return isfinite(c) && isfinite(x) && tau > 0 ? fabs((double)c - (double)x) / tau : INFINITY;
}

void fd_trial_residuals(const fd_trial_rows *rows, const fd_variant *v, double *largest, double *mean) {
    const fd_explain_request *r = rows->request;
    int64_t stride = fd_node_row_stride(r->args.node, r->args.n_kv), n = 0;
    double sum = 0, rounding = 0x1p-22 * fd_root_mean_square(r->output, r->args.n_pos * stride);
    *largest = 0;
    for (int64_t i = r->n_unjudged * stride; i < r->args.n_pos * stride; i++) {
        double z = residual_at(rows, v, rounding, i);
        n += !r->args.node->over_kv || i % r->args.n_kv <= r->args.pos0 + i / stride;
        if (!(z <= *largest)) *largest = z;
        sum += z * z;
    }
    *mean = n ? sqrt(sum / (double)n) : 0;
}

double fd_trial_left(const fd_trial_rows *rows, const fd_variant *v) {
    double largest, mean;
    fd_trial_residuals(rows, v, &largest, &mean);
    return mean;
}

double fd_trial_left_of_row(const fd_trial_rows *rows, const fd_variant *v, int32_t row) {
    const fd_explain_request *r = rows->request;
    int64_t stride = fd_node_row_stride(r->args.node, r->args.n_kv);
    double sum = 0;
    for (int64_t i = row * stride; i < (row + 1) * stride; i++) {
        double z = residual_at(rows, v, 0, i);
        sum += z * z;
    }
    return sqrt(sum / (double)stride);
}

double fd_trial_change_of_row(const fd_trial_rows *rows, const float *of, int32_t row) {
    const fd_op_args *args = &rows->request->args;
    int64_t stride = fd_node_row_stride(args->node, args->n_kv);
    double change = 0;
    for (int64_t i = row * stride; i < (row + 1) * stride; i++) {
        double d = (double)of[i] - (double)rows->plain.rows[i];
        change += isfinite(d) ? d * d : 0;
    }
    return sqrt(change);
}

/* √Σ(c − v)² / √Σv² of a row; +Inf where a value is not finite. */
static double left_of_size(const fd_trial_rows *rows, const fd_variant *v, int32_t row) {
    const int64_t stride = fd_node_row_stride(rows->request->args.node, rows->request->args.n_kv), first = row * stride;
    double left = 0, size = 0;
    for (int64_t i = first; i < first + stride; i++) {
        const double x = (double)v->rows[i], off = (double)rows->request->output[i] - x;
        left += off * off;
        size += x * x;
    }
    return left < INFINITY && size > 0 ? sqrt(left / size) : INFINITY;
}

int32_t fd_trial_repeated_rows(const fd_trial_rows *rows, const fd_variant *v) {
    int32_t n = 0;
    for (int32_t p = rows->request->n_unjudged; p < rows->request->args.n_pos; p++)
        n += left_of_size(rows, v, p) <= FD_LAST_BITS &&
             left_of_size(rows, &rows->plain, p) >= FD_FAR_FROM_LAST_BITS * FD_LAST_BITS;
    return n;
}

/* Rows from the first that departs on, one after another, that are not the op's as it should be. */
int32_t fd_trial_departing_rows(const fd_trial_rows *rows) {
    const fd_explain_request *r = rows->request;
    const fd_variant *plain = &rows->plain;
    int64_t stride = fd_node_row_stride(r->args.node, r->args.n_kv);
    int32_t n = 0;
    for (int32_t p = r->n_unjudged; p < r->args.n_pos; p++) {
        int64_t visible = r->args.node->over_kv ? r->args.pos0 + p + 1 : r->args.n_kv;
        bool departs = false;
        for (int64_t i = p * stride; i < (p + 1) * stride && !departs; i++) {
            double c = (double)r->output[i], y = (double)plain->rows[i];
            bool same = fd_canonical32(r->output[i]) == fd_canonical32(plain->rows[i]);
            departs = i % r->args.n_kv < visible && !same && !(fabs(c - y) <= (plain->tau ? plain->tau[i] : 0));
        }
        if (n > 0 && !departs) break;
        n += departs;
    }
    return n;
}

/* The heads in which the node departs, where these are some of them; 0. */
uint64_t fd_trial_departing_heads(const fd_trial_rows *rows) {
    const fd_explain_request *r = rows->request;
    const fd_node *node = r->args.node;
    const fd_variant *plain = &rows->plain;
    const int64_t stride = fd_node_row_stride(node, r->args.n_kv), n_head = node->shape[0];
    uint64_t heads = 0;
    if (!(node->over_kv || node->n_dim == 2) || n_head < 2 || n_head > 64) return 0;
    for (int64_t i = r->n_unjudged * stride; i < r->args.n_pos * stride; i++) {
        const double c = (double)r->output[i], y = (double)plain->rows[i];
        const bool seen = !node->over_kv || i % r->args.n_kv <= r->args.pos0 + i / stride;
        const bool same = fd_canonical32(r->output[i]) == fd_canonical32(plain->rows[i]);
        if (seen && !same && !(fabs(c - y) <= (plain->tau ? plain->tau[i] : 0)))
            heads |= 1ull << (i % stride / (stride / n_head));
    }
    const uint64_t all = n_head == 64 ? ~0ull : (1ull << n_head) - 1;
    return heads == all ? 0 : heads;
}

bool fd_trial_rounds_little(const fd_trial_rows *rows) {
    const fd_numerics_class *c = rows->request->numerics;
    return !c || c->exact || fmax(fmax(c->u_in, c->u_attn), fmax(c->u_kv, c->u_out)) <= 0x1p-24;
}
