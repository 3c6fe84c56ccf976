/* All rows of a name beside those of the node whose values it has. */
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
