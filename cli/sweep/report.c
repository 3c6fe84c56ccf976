/* What firstdiff sweep found, as text and as JSON. */
#include <stdlib.h>

#include "cli/output.h"
#include "cli/sweep/sweep.h"
#include "compare/report/report.h"

void fd_sweep_print_text(const fd_sweep *s) {
    const fd_trace_info *info = fd_trace_get_info(s->baseline);
    printf("baseline    %s %s, %s: one batch of %d tokens, %d tensors each\n", info->backend, info->numerics,
           info->device, s->n_pos, s->model.graph->n_node);
    for (int32_t i = 0; i < s->n_configuration; i++) {
        const fd_sweep_configuration *c = &s->configurations[i];
        const fd_sweep_result *r = &c->result;
        const char *what = c->split.unobserved ? "rows of logits" : "tensors";
        printf("%s%-40s %7.3f s  ", r->diverged ? "DIVERGED    " : "IDENTICAL   ", c->name, r->seconds);
        if (r->diverged)
            printf("at %s, step %d, position %d\n", r->node, r->step, r->pos);
        else
            printf("%lld %s\n", (long long)r->n_compared, what);
    }
    if (s->explained && s->verdict.counts.n_compared) {
        printf("%s, recorded again and replayed:\n", s->explained->name);
        fd_report_text(stdout, &s->verdict, fd_cli_colour(stdout));
    }
    if (s->n_diverged)
        printf("%d of %d runs diverged from the baseline, %.2f s\n", s->n_diverged, s->n_configuration, s->seconds);
    else
        printf("every bit of %d runs is the baseline's, %.2f s\n", s->n_configuration, s->seconds);
}

static json_t *configuration_json(const fd_sweep_configuration *c) {
    const fd_sweep_result *r = &c->result;
    json_t *item =
        json_pack("{s:s, s:s, s:b, s:I, s:f}", "name", c->name, "result", r->diverged ? "diverged" : "identical",
                  "observed", !c->split.unobserved, "compared", (json_int_t)r->n_compared, "seconds", r->seconds);
    if (item && r->diverged)
        json_object_update_new(item,
                               json_pack("{s:s, s:i, s:i}", "node", r->node, "step", r->step, "position", r->pos));
    return item;
}

/* The verdict's own JSON, {"way": …, "verdict": …}; null when nothing was replayed. */
static json_t *explained_json(const fd_sweep *s) {
    char *text = NULL;
    size_t size;
    fd_error err = {0};
    if (!s->explained || !s->verdict.counts.n_compared) return json_null();
    FILE *to = open_memstream(&text, &size);
    bool written = to && fd_report_json(to, &s->verdict, &err) == FD_OK;
    if (to) fclose(to);
    json_t *verdict = written ? json_loads(text, 0, NULL) : NULL;
    free(text);
    return json_pack("{s:s, s:o}", "way", s->explained->name, "verdict", verdict);
}

fd_code fd_sweep_print_json(const fd_sweep *s, fd_error *err) {
    json_t *list = json_array();
    const fd_trace_info *info = fd_trace_get_info(s->baseline);
    for (int32_t i = 0; i < s->n_configuration; i++)
        json_array_append_new(list, configuration_json(&s->configurations[i]));
    json_t *root =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s?, s:i, s:i, s:i, s:f, s:o, s:o}", "schema", "firstdiff-sweep 1",
                  "status", s->n_diverged ? "diverged" : "identical", "model_hash", fd_cli_model_hash(&s->model),
                  "backend", info->backend, "numerics", info->numerics, "device", info->device, "fault", s->args->fault,
                  "positions", s->n_pos, "nodes", s->model.graph->n_node, "diverged", s->n_diverged, "seconds",
                  s->seconds, "runs", list, "explained", explained_json(s));
    return fd_cli_print_json(root, err);
}
