/* firstdiff golden check --numerics NAME: numerics that are not exact, logits within a tolerance. */
#include <stdlib.h>

#include "cli/golden/golden.h"
#include "compare/diff/golden_near.h"
#include "compare/diff/golden_run.h"

typedef struct near_results {
    const fd_golden_near *of; /* [n_prompt] */
    double limit;
} near_results;

static bool failure(const void *results, int32_t prompt, char *message, size_t size) {
    const near_results *all = results;
    const fd_golden_near *r = &all->of[prompt];
    if (r->near) return false;
    int at = snprintf(message, size, "logits of position %d: NMSE %.3g, expected at most %.3g", r->pos, r->worst,
                      all->limit);
    if (r->n_flip && at > 0 && (size_t)at < size)
        snprintf(message + at, size - (size_t)at, "; %d greedy token%s differ%s", r->n_flip, r->n_flip == 1 ? "" : "s",
                 r->n_flip == 1 ? "s" : "");
    return true;
}

static fd_code print_json(const fd_golden_args *a, const fd_golden *golden, const fd_golden_near *results,
                          int32_t n_failed, fd_error *err) {
    json_t *list = json_array();
    for (int32_t i = 0; i < golden->n_prompt; i++) {
        const fd_golden_near *r = &results[i];
        json_t *item =
            json_pack("{s:i, s:s?, s:i, s:b, s:i, s:i}", "prompt", i + 1, "text", golden->prompts[i].text, "positions",
                      golden->prompts[i].n_pos, "near", r->near, "position", r->pos, "greedy_differ", r->n_flip);
        /* JSON has no NaN: a distance that is none is left out. */
        if (item && r->worst == r->worst) json_object_set_new(item, "nmse", json_real(r->worst));
        json_array_append_new(list, item);
    }
    json_t *root = json_pack("{s:s, s:s, s:s, s:f, s:i, s:o}", "schema", "firstdiff-golden-near 1", "status",
                             n_failed ? "diverged" : "near", "numerics", a->numerics, "limit", a->limit, "failed",
                             n_failed, "prompts", list);
    return fd_cli_print_json(root, err);
}

static void print_text(const fd_golden_args *a, const fd_golden *golden, const fd_golden_near *results,
                       int32_t n_failed) {
    int64_t n_pos = 0, n_flip = 0;
    double worst = 0;
    for (int32_t i = 0; i < golden->n_prompt; i++) {
        n_pos += golden->prompts[i].n_pos;
        n_flip += results[i].n_flip;
        if (results[i].worst > worst) worst = results[i].worst;
    }
    fd_golden_print_failures(golden, failure, &(near_results){results, a->limit});
    if (!n_failed)
        printf("NEAR        %d prompt%s, %lld positions: logits within NMSE %.3g (limit %.3g), %lld greedy token%s "
               "differ%s\n",
               golden->n_prompt, golden->n_prompt == 1 ? "" : "s", (long long)n_pos, worst, a->limit, (long long)n_flip,
               n_flip == 1 ? "" : "s", n_flip == 1 ? "s" : "");
}

fd_code fd_golden_check_all_near(const fd_golden_args *given, const fd_golden *golden, fd_exec *exec,
                                 int32_t *n_failed, fd_error *err) {
    fd_golden_args args = *given, *a = &args;
    if (!(a->limit >= 0)) a->limit = fd_golden_near_limit(fd_exec_numerics_name(exec));
    fd_golden_near *results = calloc((size_t)golden->n_prompt, sizeof *results);
    if (!results) return fd_fail(err, FD_ERR_MEMORY, "out of memory");
    fd_cli_progress progress = fd_cli_progress_start("prompt", golden->n_prompt);
    fd_code code = FD_OK;
    for (int32_t i = 0; i < golden->n_prompt && code == FD_OK; i++) {
        code = fd_golden_check_near(exec, golden, i, a->limit, &results[i], err);
        *n_failed += !results[i].near;
        fd_cli_progress_to(&progress, i + 1);
    }
    fd_cli_progress_end(&progress);
    if (code == FD_OK && a->report.json) code = print_json(a, golden, results, *n_failed, err);
    if (code == FD_OK && !a->report.json) print_text(a, golden, results, *n_failed);
    if (code == FD_OK && a->report.junit)
        code = fd_golden_write_junit(a->report.junit, golden, failure, &(near_results){results, a->limit}, err);
    free(results);
    return code;
}
