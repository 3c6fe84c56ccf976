/* Tokens and steps. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/plan_internal.h"

/* Which steps have tensors, and how many: of a run of which some steps alone were recorded, the others have none. */
static bool *recorded_steps(const fd_import_plan *plan, int32_t *n) {
    bool *recorded = calloc((size_t)plan->n_step + 1, sizeof *recorded);
    *n = 0;
    for (size_t i = 0; recorded && i < fd_source_count(plan->source); i++) {
        const fd_source_tensor *t = fd_source_at(plan->source, i);
        if (t->step < 0 || recorded[t->step] || fd_source_is_tokens(t) || fd_source_is_weight(t->name)) continue;
        recorded[t->step] = true;
        ++*n;
    }
    return recorded;
}

/* The sizes given are of all steps, or of those that were recorded. */
static fd_code take_given(fd_planner *p, const bool *recorded, int32_t n_recorded) {
    const fd_import_options *o = p->options;
    fd_import_plan *plan = p->plan;
    const bool gaps = n_recorded < plan->n_step, all = o->n_step_size == plan->n_step;
    if (gaps && o->n_step_size > plan->n_step) { /* the last were not recorded either */
        fd_import_step *steps = realloc(plan->steps, ((size_t)o->n_step_size + 1) * sizeof *steps);
        if (!steps) return fd_fail(p->err, FD_ERR_MEMORY, "import: out of memory");
        plan->steps = steps;
        plan->n_step = o->n_step_size;
    } else if (!all && !(gaps && o->n_step_size == n_recorded)) {
        return fd_fail(p->err, FD_ERR_INPUT, "%s: %d steps%s, the sizes of %d were given", fd_source_path(plan->source),
                       plan->n_step, gaps ? ", some of them not recorded" : "", o->n_step_size);
    }
    for (int32_t s = 0, k = 0; s < plan->n_step; s++)
        plan->steps[s].n_pos = o->n_step_size == plan->n_step ? o->step_sizes[s] : recorded[s] ? o->step_sizes[k++] : 0;
    return FD_OK;
}

/* What the tensors of the step with an axis of their own agree on; 0: there are none. */
static fd_code size_by_rules(fd_planner *p, int32_t s, int64_t *size, const char **by) {
    fd_import_plan *plan = p->plan;
    for (size_t i = 0; i < plan->n_match; i++) {
        const fd_import_match *m = &plan->matches[i];
        const fd_name_map_rule *rule = &plan->map->rules[m->rule];
        const fd_source_tensor *tensor = fd_source_at(plan->source, m->tensor);
        int axis = fd_plan_rows_axis(plan->graph, rule, m->node, tensor->rank, tensor->shape);
        if (m->step != s || !rule->has_axis || rule->axis >= 0 || rule->n_shape > 0 ||
            rule->rows != FD_NAME_MAP_ROWS_ALL || axis < 0)
            continue;
        int64_t found = tensor->shape[axis];
        if (*by && found != *size)
            return fd_fail(p->err, FD_ERR_INPUT, "%s: step %d has %lld tokens by \"%s\" and %lld by \"%s\"",
                           fd_source_path(plan->source), s, (long long)*size, *by, (long long)found, tensor->name);
        *size = found;
        *by = tensor->name;
    }
    return FD_OK;
}

/* Of more tokens than steps, of which every step has one row by the rules: the last token's rows alone, which do not say it. */
static fd_code are_last_rows(fd_planner *p, bool *out) {
    *out = p->plan->n_step < p->plan->n_token;
    for (int32_t s = 0; s < p->plan->n_step && *out; s++) {
        int64_t size = 1;
        const char *by = NULL;
        FD_TRY(size_by_rules(p, s, &size, &by));
        *out = size == 1;
    }
    return FD_OK;
}

/* How many tokens each step has: given, or what the tensors with an axis of their own agree on, or what most shapes say
 * (`by_shape`; NULL: nothing), or a prefill and single tokens. */
static fd_code find_steps(fd_planner *p, const bool *recorded, int32_t n_recorded, const int32_t *by_shape) {
    fd_import_plan *plan = p->plan;
    const bool given = p->options->step_sizes != NULL, gaps = n_recorded > 0 && n_recorded < plan->n_step;
    const int32_t n_source = plan->n_step;
    bool last_rows = false;
    if (!given && n_source > 1) FD_TRY(are_last_rows(p, &last_rows));
    if (given) FD_TRY(take_given(p, recorded, n_recorded));
    const int32_t n = plan->n_step;
    int64_t total = 0;
    for (int32_t s = 0; s < n; s++) {
        int64_t size = given ? plan->steps[s].n_pos : n == 1 ? plan->n_token : 0;
        const char *by = NULL;
        if (!given && n > 1 && !last_rows) FD_TRY(size_by_rules(p, s, &size, &by));
        const bool known = given || size != 0 || (by_shape && by_shape[s] >= 0);
        if (!given && size == 0 && known) size = by_shape[s];
        if (!known && gaps)
            return fd_fail(p->err, FD_ERR_INPUT,
                           "%s: %d of %d steps were recorded, and how many tokens those between were fed is not known: "
                           "give --steps, the tokens of each",
                           fd_source_path(plan->source), n_recorded, n);
        plan->guessed_steps |= !known && n < plan->n_token;
        if (!known && n > plan->n_token)
            return fd_fail(
                p->err, FD_ERR_INPUT,
                "%s: %d steps, and %d token%s given: give the ids of all that it was fed, one or more a step",
                fd_source_path(plan->source), n, plan->n_token, plan->n_token == 1 ? " was" : "s were");
        if (!known) size = s == 0 ? (int64_t)plan->n_token - (n - 1) : 1;
        if (size < !gaps || size > INT32_MAX || total + size > plan->n_token)
            return fd_fail(p->err, FD_ERR_INPUT,
                           "%s: step %d has %lld tokens%s%s%s after %lld, of %d tokens in all (give --steps or other "
                           "--tokens%s)",
                           fd_source_path(plan->source), s, (long long)size, by ? " by \"" : "", by ? by : "",
                           by ? "\"" : "", (long long)total, plan->n_token, by ? "; rows=cache for a whole cache" : "");
        plan->steps[s] =
            (fd_import_step){(int32_t)total, (int32_t)size, s > 0 && size == 1 ? FD_STEP_DECODE : FD_STEP_PREFILL,
                             !gaps || (s < n_source && recorded[s])};
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
        p->plan->steps[s] = (fd_import_step){step->pos0, step->n_pos, step->kind, true};
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
    int32_t n_recorded, *by_shape = malloc(sizeof *by_shape * ((size_t)plan->n_step + 1));
    bool *recorded = recorded_steps(plan, &n_recorded);
    const bool several = plan->n_step > 1 && n_recorded > 0 && n_recorded <= plan->n_token;
    fd_code code = by_shape && recorded ? FD_OK : fd_fail(p->err, FD_ERR_MEMORY, "import: out of memory");
    if (code == FD_OK && several) code = fd_plan_sizes(p, n_recorded, by_shape, p->err);
    if (code == FD_OK) code = find_steps(p, recorded, n_recorded, several ? by_shape : NULL);
    free(by_shape);
    free(recorded);
    return code;
}
