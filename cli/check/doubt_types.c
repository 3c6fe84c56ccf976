/* Raw numbers that are read in another type than they were written in: all arrays are half or twice as long as the model's. */
#include "cli/check/doubt_dump.h"

enum { FEWEST = 3 };

static bool has_width(const fd_graph *graph, int64_t n, int32_t n_pos) {
    for (int32_t i = 0; i < graph->n_node; i++) {
        const int64_t width = graph->nodes[i].over_kv ? 0 : fd_node_elements(&graph->nodes[i], 1);
        if (width > 0 && (n == width || n == width * n_pos)) return true;
    }
    return false;
}

fd_code fd_cli_doubt_types(const fd_import_plan *plan, const fd_graph *graph, fd_error *err) {
    const fd_source *source = plan->source;
    const int32_t n_pos = plan->steps[0].n_pos;
    size_t n = 0, fit = 0, fit_half = 0, fit_twice = 0;
    for (size_t i = 0; i < fd_source_count(source); i++) {
        const fd_source_tensor *t = fd_source_at(source, i);
        if (t->step != 0 || fd_source_is_tokens(t) || fd_source_is_weight(t->name)) continue;
        if (t->rank != 1 || !fd_array_is_float(t->type)) return FD_OK;
        n++;
        fit += has_width(graph, t->shape[0], n_pos);
        fit_half += has_width(graph, 2 * t->shape[0], n_pos);
        fit_twice += t->shape[0] % 2 == 0 && has_width(graph, t->shape[0] / 2, n_pos);
    }
    const bool half = fit_half == n, twice = fit_twice == n;
    if (n < FEWEST || fit == n || half == twice) return FD_OK;
    return fd_fail(
        err, FD_ERR_INPUT,
        "%s: its arrays, read as %s, are %s as long as the model's: of another type? Raw numbers are named .f32 "
        "(or .bin), .f16, .bf16 or .f64",
        fd_source_path(source), fd_array_type_name(fd_source_at(source, 0)->type), half ? "half" : "twice");
}
