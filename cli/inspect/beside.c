/* firstdiff inspect --with: two traces side by side, tensor by tensor. It measures and judges nothing. */
#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>

#include "cli/inspect/gather.h"
#include "cli/output.h"
#include "compare/measure/measures.h"

typedef struct distance {
    fd_node_measure sums;
    double largest; /* |a − b| */
    int32_t pos;    /* there */
} distance;

static fd_code add_position(const fd_trace *const traces[2], const int32_t nodes[2], int32_t pos, distance *d,
                            fd_error *err) {
    double *rows[2] = {NULL, NULL};
    int64_t n[2];
    fd_code code = fd_inspect_read(traces[0], nodes[0], pos, &rows[0], &n[0], err);
    if (code == FD_OK) code = fd_inspect_read(traces[1], nodes[1], pos, &rows[1], &n[1], err);
    if (code == FD_OK && n[0] == n[1]) d->sums.n_pos++;
    for (int64_t i = 0; code == FD_OK && n[0] == n[1] && i < n[0]; i++) {
        double r = rows[0][i], c = rows[1][i], apart = fabs(c - r);
        d->sums.error2 += (c - r) * (c - r);
        d->sums.reference2 += r * r;
        d->sums.candidate2 += c * c;
        d->sums.product += c * r;
        if (apart <= d->largest) continue;
        d->largest = isnan(apart) ? INFINITY : apart;
        d->pos = pos;
    }
    free(rows[0]);
    free(rows[1]);
    return code == FD_ERR_INCOMPLETE ? FD_OK : code;
}

static void print_distance(const char *name, const distance *d, json_t *list) {
    double nmse = fd_measure_nmse(&d->sums), cosine = fd_measure_cosine(&d->sums);
    if (list)
        json_array_append_new(list,
                              json_pack("{s:s, s:i, s:o, s:o, s:o, s:i}", "name", name, "positions", d->sums.n_pos,
                                        "nmse", fd_inspect_number(nmse), "cosine", fd_inspect_number(cosine), "largest",
                                        fd_inspect_number(d->largest), "position", d->pos));
    else
        printf("  %-28s %9d %12.4g %12.4g %12.6g %9d\n", name, d->sums.n_pos, nmse, 1 - cosine, d->largest, d->pos);
}

fd_code fd_inspect_beside(const fd_trace *trace, const fd_trace *other, const char *glob, bool json, fd_error *err) {
    const fd_trace *const traces[2] = {trace, other};
    int32_t n_pos = fd_trace_n_pos(trace), n_shown = 0;
    json_t *list = json ? json_array() : NULL;
    if (fd_trace_n_pos(other) < n_pos) n_pos = fd_trace_n_pos(other);
    if (!json)
        printf("%-30s %9s %12s %12s %12s %9s\n", "tensor", "positions", "NMSE", "1 - cosine", "largest |Δ|", "there");
    for (int32_t i = 0; i < fd_trace_n_node(trace); i++) {
        const char *name = fd_trace_node_at(trace, i)->name;
        const int32_t nodes[2] = {i, fd_trace_find(other, name)};
        distance d = {.largest = -1};
        if (nodes[1] < 0 || (glob && fnmatch(glob, name, 0) != 0)) continue;
        for (int32_t pos = 0; pos < n_pos; pos++) {
            fd_code code = add_position(traces, nodes, pos, &d, err);
            if (code != FD_OK) {
                json_decref(list);
                return code;
            }
        }
        if (!d.sums.n_pos) continue;
        print_distance(name, &d, list);
        n_shown++;
    }
    if (n_shown == 0) {
        json_decref(list);
        return fd_fail(err, FD_ERR_INCOMPLETE, "%s and %s hold no elements of one tensor%s%s", fd_trace_path(trace),
                       fd_trace_path(other), glob ? " of " : "", glob ? glob : "");
    }
    return list ? fd_cli_print_json(json_pack("{s:o}", "tensors", list), err) : FD_OK;
}
