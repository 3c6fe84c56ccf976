#include "cli/check/embedding_stage.h"

#include <stdio.h>
#include <string.h>

#include "cli/check/first_rows.h"

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
    fd_cli_row_sums of;
    *has = false;
    FD_TRY(fd_cli_sum_first_rows(plan, match, ref, node, &of, err));
    *has = of.yy > 0 && of.xx - 2 * of.xy + of.yy < NEAR * NEAR * of.yy;
    return FD_OK;
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
