#include "cli/check/embedding_stage.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ROWS = 4 };

static const char scaled[] = "token_embd_scaled", plain[] = "token_embd";

/* Of their norms: 16 bits and blocks of a few bits leave far less between an engine's row and the reference's, and two rows of an
 * embedding have far more. */
#define NEAR 0.1

bool fd_cli_may_scale_later(const fd_graph *graph) {
    return fd_graph_find(graph, scaled) >= 0;
}

/* Are the match's first rows those of the reference's node? */
static fd_code has_rows_of(const fd_import_plan *plan, const fd_import_match *match, const fd_trace *ref, int32_t node,
                           bool *has, fd_error *err) {
    const int64_t width = fd_trace_elements(fd_trace_node_at(ref, node), 0);
    fd_import_rows rows;
    double off = 0, size = 0;
    *has = false;
    FD_TRY(fd_import_rows_open(plan, match, &rows, err));
    double *y = malloc(sizeof *y * (size_t)(width + 1));
    fd_code code = y ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", match->node);
    for (int32_t pos = rows.first; pos < rows.first + rows.n && pos < rows.first + MOST_ROWS && code == FD_OK; pos++) {
        int rank;
        int64_t shape[FD_ARRAY_MAX_RANK], n = 1;
        const double *x;
        if (!fd_import_rows_has(&rows, pos)) continue;
        code = fd_import_rows_read(&rows, pos, &rank, shape, &x, err);
        for (int i = 0; i < rank && code == FD_OK; i++) n *= shape[i];
        if (code == FD_OK && n == width) code = fd_trace_read(ref, node, pos, NULL, y, err);
        for (int64_t i = 0; i < n && n == width && code == FD_OK; i++)
            off += (x[i] - y[i]) * (x[i] - y[i]), size += y[i] * y[i];
    }
    free(y);
    fd_import_rows_close(&rows);
    *has = size > 0 && sqrt(off / size) < NEAR;
    return code;
}

fd_code fd_cli_scales_later(const fd_source *source, const fd_import_options *how, const fd_trace *ref, bool *later,
                            fd_error *err) {
    const int32_t before = fd_trace_find(ref, plain), after = fd_trace_find(ref, scaled);
    fd_import_plan plan;
    *later = false;
    if (before < 0 || after < 0) return FD_OK;
    FD_TRY(fd_import_make_plan(source, how, &plan, err));
    fd_code code = FD_OK;
    for (size_t i = 0; i < plan.n_match && code == FD_OK; i++)
        if (strcmp(plan.matches[i].node, scaled) == 0) {
            bool is_scaled;
            code = has_rows_of(&plan, &plan.matches[i], ref, before, later, err);
            if (code == FD_OK) code = has_rows_of(&plan, &plan.matches[i], ref, after, &is_scaled, err);
            if (code == FD_OK) *later &= !is_scaled; /* a factor near 1 tells nothing */
            break;
        }
    fd_import_plan_free(&plan);
    if (code == FD_OK && *later)
        fprintf(stderr, "%s: the embeddings were saved before they are scaled\n", fd_source_path(source));
    return code;
}

void fd_cli_drop_scaled(char *map) {
    for (char *line = map, *end; line; line = end ? end + 1 : NULL) {
        end = strchr(line, '\n');
        const char *node = strstr(line, "-> token_embd_scaled "), *arch = node ? strstr(node, " arch=") : NULL;
        if (arch && (!end || arch < end)) *line = '#';
    }
}
