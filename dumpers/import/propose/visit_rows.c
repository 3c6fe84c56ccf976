/* All rows of a name beside those of the node whose values it has. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/propose/internal.h"

static fd_code visit(const fd_proposer *p, const fd_import_plan *plan, size_t tensor, int32_t node, float *ref,
                     fd_propose_row_fn visit_row, void *user) {
    const fd_source_tensor *t = fd_source_at(p->source, tensor);
    fd_import_match match = {.tensor = tensor, .step = t->step < 0 ? 0 : t->step};
    fd_import_rows rows;
    FD_TRY(fd_import_place(plan, &match, p->err));
    FD_TRY(fd_import_rows_open(plan, &match, &rows, p->err));
    fd_code code = FD_OK;
    for (int32_t pos = rows.first; code == FD_OK && pos < rows.first + rows.n; pos++) {
        int rank;
        int64_t shape[FD_ARRAY_MAX_RANK], n = 1;
        const double *x;
        code = fd_import_rows_read(&rows, pos, &rank, shape, &x, p->err);
        for (int i = 0; code == FD_OK && i < rank; i++) n *= shape[i];
        if (code != FD_OK || n != fd_trace_elements(fd_trace_node_at(p->ref, node), pos)) continue;
        code = fd_trace_read(p->ref, node, pos, ref, NULL, p->err);
        if (code == FD_OK) visit_row(user, x, ref, n);
    }
    fd_import_rows_close(&rows);
    return code;
}

fd_code fd_propose_visit_rows(const fd_proposer *p, const fd_proposed *item, fd_propose_row_fn visit_row, void *user) {
    const int32_t node = item->best[0].node;
    fd_import_plan plan = p->plan;
    fd_name_map *map = NULL;
    char rule[FD_PROPOSE_MAX_OPS + 32];
    fd_error unread;
    snprintf(rule, sizeof rule, "x -> y %s", item->best[0].ops);
    /* attention's rows are as long as the positions before them: the last one is the longest */
    const int32_t last = fd_trace_n_pos(p->ref) - 1;
    float *ref = malloc(sizeof *ref * (size_t)fd_trace_elements(fd_trace_node_at(p->ref, node), last));
    fd_code code = ref ? fd_name_map_parse("auto", rule, strlen(rule), &map, &unread) : FD_ERR_MEMORY;
    plan.map = map;
    for (size_t i = 0; code == FD_OK && i < item->n; i++)
        code = visit(p, &plan, item->tensors[i], node, ref, visit_row, user);
    fd_name_map_free(map);
    free(ref);
    return code;
}

/* ---- the last rows of several calls ---- */

static double cosine(const double *x, const float *y, int64_t n) {
    double xy = 0, xx = 0, yy = 0;
    for (int64_t i = 0; i < n; i++) {
        xy += x[i] * (double)y[i];
        xx += x[i] * x[i];
        yy += (double)y[i] * (double)y[i];
    }
    return xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : 0;
}

/* Is the first of the rows nearer to an earlier position than to its own? Calls of several tokens left out those between. */
static fd_code begins_earlier(const fd_proposer *p, const fd_import_rows *rows, int32_t node, bool *yes) {
    int rank;
    int64_t shape[FD_ARRAY_MAX_RANK];
    const double *x;
    const int64_t n = fd_trace_elements(fd_trace_node_at(p->ref, node), 0);
    float *ref = malloc(sizeof *ref * (size_t)n);
    double own = 0, before = 0;
    fd_code code = ref ? fd_import_rows_read((fd_import_rows *)rows, rows->first, &rank, shape, &x, p->err)
                       : fd_fail(p->err, FD_ERR_MEMORY, "map auto: out of memory");
    for (int32_t q = rows->first; code == FD_OK && q >= 0; q--) {
        code = fd_trace_read(p->ref, node, q, ref, NULL, p->err);
        const double here = code == FD_OK ? cosine(x, ref, n) : 0;
        if (q == rows->first) own = here;
        if (q < rows->first) before = fmax(before, here);
    }
    *yes = before > own;
    free(ref);
    return code;
}

static fd_code look_at_first(const fd_proposer *p, fd_proposed *item) {
    fd_import_plan plan = p->plan;
    fd_import_match match = {.tensor = item->tensors[0], .step = fd_source_at(p->source, item->tensors[0])->step};
    fd_import_rows rows;
    char rule[FD_PROPOSE_MAX_OPS + 32];
    fd_name_map *map = NULL;
    bool earlier = false;
    snprintf(rule, sizeof rule, "x -> y %s", item->best[0].ops);
    FD_TRY(fd_name_map_parse("auto", rule, strlen(rule), &map, p->err));
    plan.map = map;
    fd_code code = fd_import_place(&plan, &match, p->err);
    if (code == FD_OK) code = fd_import_rows_open(&plan, &match, &rows, p->err);
    if (code == FD_OK) {
        if (rows.n > 1) code = begins_earlier(p, &rows, item->best[0].node, &earlier);
        fd_import_rows_close(&rows);
    }
    if (earlier) item->matched = item->clear = false;
    fd_name_map_free(map);
    return code;
}

fd_code fd_propose_drop_other_rows(fd_proposer *p) {
    for (size_t i = 0; i < p->n; i++) {
        fd_proposed *item = &p->items[i];
        const fd_source_tensor *t = fd_source_at(p->source, item->tensors[0]);
        if (item->matched && t->step >= 0 && strstr(item->best[0].ops, "axis=-2 rows=last"))
            FD_TRY(look_at_first(p, item));
    }
    return FD_OK;
}
