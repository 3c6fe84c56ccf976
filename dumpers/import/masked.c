#include "dumpers/import/masked.h"

int64_t fd_import_first_key(const fd_import_plan *plan, const char *node, int32_t pos) {
    const int32_t id = plan->graph ? fd_graph_find(plan->graph, node) : -1;
    const bool scores = id >= 0 && plan->graph->nodes[id].op == FD_OP_ATTN_SCORES;
    return scores ? fd_node_first_seen(&plan->graph->nodes[id], pos) : 0;
}

/* Of one array: keys before the window, or after the row's own position (those of its call: behind them are rows that nobody wrote). An engine
 * that has one mask for both and forgets the window hides the latter alone. */
static fd_code look(fd_import_rows *rows, bool *masked, fd_error *err) {
    const int32_t end = rows->first + rows->n;
    for (int32_t pos = rows->first; pos < end && !*masked; pos++) {
        const int64_t window = fd_import_first_key(rows->plan, rows->match->node, pos);
        int rank;
        int64_t shape[FD_ARRAY_MAX_RANK], n_line = 1;
        const double *data;
        if (!fd_import_rows_has(rows, pos)) continue;
        FD_TRY(fd_import_rows_read(rows, pos, &rank, shape, &data, err));
        const int64_t width = shape[rank - 1];
        const bool of_trace = fd_source_at(rows->plan->source, rows->match->tensor)->step < 0;
        const int64_t before = of_trace ? 0 : fd_import_keys_before(rows->plan, rows->match, width);
        for (int k = 0; k < rank - 1; k++) n_line *= shape[k];
        for (int64_t i = 0; i < n_line * width && !*masked; i++) {
            const int64_t key = i % width + before;
            *masked = (key < window || (key > pos && key < end)) && fd_score_is_hidden(data[i]);
        }
    }
    return FD_OK;
}

fd_code fd_import_find_mask(const fd_import_plan *plan, const fd_import_match *matches, size_t n, bool *masked,
                            fd_error *err) {
    *masked = false;
    if (fd_import_first_key(plan, matches[0].node, plan->n_token - 1) == 0) return FD_OK;
    for (size_t i = 0; i < n && !*masked; i++) {
        fd_import_rows rows;
        fd_code code = fd_import_rows_open(plan, &matches[i], &rows, err);
        if (code == FD_OK) code = look(&rows, masked, err);
        fd_import_rows_close(&rows);
        if (code != FD_OK) return code;
    }
    return FD_OK;
}
