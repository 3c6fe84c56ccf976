#include "compare/class/undirected.h"

#include <math.h>

#include "faults/faults.h"

/* Of the error, along the result, or eight standard errors: a factor has all of it there. A matrix turns errors into few directions, and
 * scales of FP8 weights are off by a part of their last bit: products of a sound bfloat16 engine with FP8 factors had up to 0.2, and K,
 * with its few large elements, 0.3. */
#define MOST_ALONG 0.4
/* Values so many times as large as most are left aside there: a stream has a few that outweigh all others. */
#define OUTSTANDING 4.0
/* Of the error in one row (those of a row go with its largest value, and with how much cancels), or in one eighth of the elements. */
#define LEAST_ROW  0.1
#define LEAST_PART 0.25
enum { PARTS = 8 };

/* Between layers. FP8 and int8 products of one kind were seen to differ by 2. */
#define MOST_OF_OTHERS 4.0

static double size_of_plain(const fd_trial_rows *rows, int64_t first, int64_t end) {
    double squares = 0;
    int64_t n = 0;
    for (int64_t i = first; i < end; i++) {
        const double y = (double)rows->plain.rows[i];
        if (!isfinite(y)) continue;
        squares += y * y;
        n++;
    }
    return sqrt(squares / (double)n);
}

fd_undirected fd_weigh_undirected(const fd_trial_rows *rows) {
    const fd_explain_request *r = rows->request;
    const int64_t stride = fd_node_row_stride(r->args.node, r->args.n_kv), first = r->n_unjudged * stride,
                  end = r->args.n_pos * stride;
    const double large = OUTSTANDING * size_of_plain(rows, first, end);
    double rr = 0, yy = 0, part[PARTS] = {0}, rr_of_most = 0, yy_of_most = 0, ry_of_most = 0, least = INFINITY;
    fd_undirected out = {.parts_alike = stride >= PARTS};
    for (int64_t p = r->n_unjudged; p < r->args.n_pos; p++) {
        double row_rr = 0, row_yy = 0;
        for (int64_t i = 0; i < stride; i++) {
            const double y = (double)rows->plain.rows[p * stride + i], c = (double)r->output[p * stride + i],
                         off = c - y;
            if (!isfinite(y) && !isfinite(c)) continue; /* hidden scores */
            row_rr += off * off;
            row_yy += y * y;
            part[i * PARTS / stride] += off * off;
            if (!(fabs(y) <= large)) continue;
            rr_of_most += off * off;
            yy_of_most += y * y;
            ry_of_most += off * y;
            out.n++;
        }
        rr += row_rr;
        yy += row_yy;
        least = fmin(least, sqrt(row_rr / row_yy));
    }
    out.error = sqrt(rr / yy);
    out.along = fabs(ry_of_most) / sqrt(rr_of_most * yy_of_most);
    out.least_row = least / out.error;
    for (int i = 0; i < PARTS; i++) out.parts_alike &= part[i] >= LEAST_PART * LEAST_PART * rr / PARTS;
    return out;
}

/* fd_diagnose_look_fn */
static fd_code look(void *user, const fd_diagnose_options *options, const fd_explain_request *request, fd_error *err) {
    fd_undirected *out = user;
    fd_trial_rows rows;
    (void)options;
    fd_code code = fd_trial_rows_open(request, &rows, err);
    if (code == FD_OK && rows.plain.state == FD_VARIANT_COMPUTED) *out = fd_weigh_undirected(&rows);
    fd_trial_rows_close(&rows);
    return code;
}

fd_code fd_ask_undirected(const fd_diagnose_options *ask, fd_undirected *out, fd_error *err) {
    *out = (fd_undirected){0};
    return fd_diagnose_look(ask, look, out, err);
}

bool fd_is_undirected(const fd_undirected *e) {
    return e->parts_alike && e->along <= fmax(MOST_ALONG, 8 / sqrt((double)e->n));
}

bool fd_is_undirected_in_rows(const fd_undirected *e) {
    return fd_is_undirected(e) && e->least_row >= LEAST_ROW;
}

fd_code fd_ask_all_undirected(const fd_diagnose_options *ask, const fd_attribution *of, double *error, fd_error *err) {
    for (int32_t i = 0; i < ask->graph->n_node; i++) {
        fd_diagnose_options there = *ask;
        fd_undirected found;
        there.finding = &of->introduced[i];
        if (there.finding->finding == FD_FOUND_NOTHING) continue;
        FD_TRY(fd_ask_undirected(&there, &found, err));
        error[i] = found.error;
    }
    return FD_OK;
}

bool fd_is_apart(const fd_graph *graph, const double *error, int32_t i) {
    double most = 0;
    if (!(error[i] > 0 || isnan(error[i]))) return false;
    for (int32_t k = 0; k < graph->n_node; k++)
        if (k != i && error[k] > most && fd_fault_same_kind(&graph->nodes[k], &graph->nodes[i])) most = error[k];
    return most > 0 && !(error[i] <= MOST_OF_OTHERS * most);
}
