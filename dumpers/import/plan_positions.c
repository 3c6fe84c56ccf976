/* Tokens and steps. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/plan_internal.h"

/* How many tokens each step has: given, or what the tensors with an axis of their own agree on, or what most shapes say
 * (`by_shape`; NULL: nothing), or a prefill and single tokens. */
static fd_code find_steps(fd_planner *p, const int32_t *by_shape) {
    fd_import_plan *plan = p->plan;
    const fd_import_options *o = p->options;
    int32_t n = plan->n_step;
    if (o->step_sizes && o->n_step_size != n)
        return fd_fail(p->err, FD_ERR_INPUT, "%s: %d steps, the sizes of %d were given", fd_source_path(plan->source),
                       n, o->n_step_size);
    int64_t total = 0;
    for (int32_t s = 0; s < n; s++) {
        int64_t size = o->step_sizes ? o->step_sizes[s] : n == 1 ? plan->n_token : 0;
        const char *by = NULL;
        for (size_t i = 0; !o->step_sizes && n > 1 && i < plan->n_match; i++) {
            const fd_import_match *m = &plan->matches[i];
            const fd_name_map_rule *rule = &plan->map->rules[m->rule];
            const fd_source_tensor *tensor = fd_source_at(plan->source, m->tensor);
            int axis = fd_plan_rule_axis(rule, tensor->rank, tensor->shape);
            if (m->step != s || !rule->has_axis || rule->axis >= 0 || rule->n_shape > 0 ||
                rule->rows != FD_NAME_MAP_ROWS_ALL || axis < 0)
                continue;
            int64_t found = tensor->shape[axis];
            if (by && found != size)
                return fd_fail(p->err, FD_ERR_INPUT, "%s: step %d has %lld tokens by \"%s\" and %lld by \"%s\"",
                               fd_source_path(plan->source), s, (long long)size, by, (long long)found, tensor->name);
            size = found;
            by = tensor->name;
        }
        if (size == 0 && by_shape) size = by_shape[s];
        plan->guessed_steps |= size == 0 && n < plan->n_token;
        if (size == 0) size = s == 0 ? (int64_t)plan->n_token - (n - 1) : 1;
        if (size < 1 || size > INT32_MAX || total + size > plan->n_token)
            return fd_fail(p->err, FD_ERR_INPUT,
                           "%s: step %d has %lld tokens%s%s%s after %lld, of %d tokens in all (give --steps or other "
                           "--tokens%s)",
                           fd_source_path(plan->source), s, (long long)size, by ? " by \"" : "", by ? by : "",
                           by ? "\"" : "", (long long)total, plan->n_token, by ? "; rows=cache for a whole cache" : "");
        plan->steps[s] =
            (fd_import_step){(int32_t)total, (int32_t)size, s > 0 && size == 1 ? FD_STEP_DECODE : FD_STEP_PREFILL};
        total += size;
    }
    if (total == plan->n_token) return FD_OK;
    return fd_fail(p->err, FD_ERR_INPUT, "%s: the steps have %lld positions, but %d tokens were given",
                   fd_source_path(plan->source), (long long)total, plan->n_token);
}

static fd_code copy_steps(fd_planner *p) {
    const fd_trace *trace = fd_source_trace(p->plan->source);
    for (int32_t s = 0; s < p->plan->n_step; s++) {
        const fd_trace_step *step = &fd_trace_steps(trace)[s];
        p->plan->steps[s] = (fd_import_step){step->pos0, step->n_pos, step->kind};
    }
    return FD_OK;
}

fd_code fd_plan_steps(fd_planner *p) {
    fd_import_plan *plan = p->plan;
    const fd_import_options *o = p->options;
    if (!o->tokens) FD_TRY(fd_source_tokens(plan->source, &plan->tokens, &plan->n_token, p->err));
    if (o->tokens && o->n_token > 0) {
        plan->tokens = malloc(sizeof(int32_t) * (size_t)o->n_token);
        if (!plan->tokens) return fd_fail(p->err, FD_ERR_MEMORY, "import: out of memory");
        memcpy(plan->tokens, o->tokens, sizeof(int32_t) * (size_t)o->n_token);
        plan->n_token = o->n_token;
    }
    const fd_trace *trace = fd_source_trace(plan->source);
    if (plan->n_token == 0)
        return fd_fail(
            p->err, FD_ERR_INPUT,
            "%s: which tokens were fed is not known: give --tokens or --tokens-file, or put tokens.txt there",
            fd_source_path(plan->source));
    if (trace && plan->n_token != fd_trace_n_pos(trace))
        return fd_fail(p->err, FD_ERR_INPUT, "%s: %d positions, %d tokens were given", fd_source_path(plan->source),
                       fd_trace_n_pos(trace), plan->n_token);
    plan->n_step = fd_source_n_step(plan->source);
    plan->steps = calloc((size_t)plan->n_step + 1, sizeof *plan->steps);
    if (!plan->steps) return fd_fail(p->err, FD_ERR_MEMORY, "import: out of memory");
    if (trace) return copy_steps(p);
    if (plan->n_step < 2 || plan->n_step > plan->n_token) return find_steps(p, NULL);
    int32_t *by_shape = malloc(sizeof *by_shape * ((size_t)plan->n_step + 1));
    if (!by_shape) return fd_fail(p->err, FD_ERR_MEMORY, "import: out of memory");
    fd_code code = fd_plan_sizes(p, by_shape, p->err);
    if (code == FD_OK) code = find_steps(p, by_shape);
    free(by_shape);
    return code;
}
