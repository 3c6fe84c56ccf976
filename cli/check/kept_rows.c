#include "cli/check/kept_rows.h"

#include <math.h>
#include <string.h>

#include "cli/check/first_rows.h"

/* Of two orders one has a cosine of nearly 1, also beside a bug, and the other is as good as another tensor. */
#define CLEARLY 0.25

bool fd_cli_may_turn_rows(const fd_graph *graph) {
    return graph->hparams.rope.pairing == FD_ROPE_INTERLEAVED && !graph->hparams.rope_rows_kept;
}

bool fd_cli_turns_rows(const fd_name_map *map) {
    bool halves = false;
    for (size_t i = 0; i < map->n_rule; i++)
        for (int k = 0; k < map->rules[i].n_op; k++) halves |= map->rules[i].ops[k].kind == FD_NAME_MAP_ROPE_HALVES;
    return halves;
}

static bool is_q_or_k(const char *node) {
    const char *dot = strrchr(node, '.');
    return dot && (strcmp(dot, ".attn_q") == 0 || strcmp(dot, ".attn_k") == 0);
}

/* The cosine of a few rows with the reference's; 0: not known. */
static fd_code cosine_of(const fd_import_plan *plan, const fd_import_match *match, const fd_trace *ref, double *cosine,
                         fd_error *err) {
    const int32_t at = fd_trace_find(ref, match->node);
    fd_cli_row_sums of;
    *cosine = 0;
    if (at < 0) return FD_OK;
    FD_TRY(fd_cli_sum_first_rows(plan, match, ref, at, &of, err));
    if (of.xx > 0 && of.yy > 0) *cosine = of.xy / sqrt(of.xx * of.yy);
    return FD_OK;
}

fd_code fd_cli_count_kept_rows(const fd_source *source, const fd_import_options *how, const fd_trace *ref,
                               int32_t *balance, fd_error *err) {
    fd_import_plan plan;
    *balance = 0;
    FD_TRY(fd_import_make_plan(source, how, &plan, err));
    fd_code code = FD_OK;
    for (size_t i = 0; i < plan.n_match && code == FD_OK; i++) {
        double turned, kept = 0;
        if (!is_q_or_k(plan.matches[i].node)) continue;
        code = cosine_of(&plan, &plan.matches[i], ref, &turned, err);
        plan.values.rope_neighbours = 0;
        if (code == FD_OK) code = cosine_of(&plan, &plan.matches[i], ref, &kept, err);
        plan.values.rope_neighbours = 1;
        *balance += (kept > turned + CLEARLY) - (turned > kept + CLEARLY);
    }
    fd_import_plan_free(&plan);
    return code;
}

void fd_cli_drop_halves(char *map) {
    static const char word[] = " rope=halves";
    for (char *at = map; (at = strstr(at, word)) != NULL;) memset(at, ' ', strlen(word));
}
