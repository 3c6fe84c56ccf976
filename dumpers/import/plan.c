/* Which tensor becomes which node: rules against names, positions against shapes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/import.h"

typedef struct planner {
    fd_import_plan *plan;
    const fd_import_options *options;
    fd_import_match *all; /* every match of every rule */
    size_t n, room;
    bool *touched; /* [n tensors] some rule names it */
    int32_t last;  /* last layer that a {layer} found; -1 */
    fd_error *err;
} planner;

/* ---- names ---- */

static bool occurrence_fits(const fd_map_source *source, const fd_source_tensor *tensor) {
    if (source->occurrence == 0) return true; /* judged when it is chosen */
    return tensor->occurrence == (source->occurrence < 0 ? tensor->n_same : source->occurrence);
}

static fd_code add_match(planner *p, size_t tensor, size_t rule, size_t choice, const fd_map_capture *capture) {
    if (p->n == p->room) {
        size_t room = p->room ? 2 * p->room : 1024;
        fd_import_match *all = realloc(p->all, room * sizeof *all);
        if (!all) return fd_fail(p->err, FD_ERR_MEMORY, "import: out of memory");
        p->all = all;
        p->room = room;
    }
    fd_import_match *match = &p->all[p->n];
    const fd_source_tensor *t = fd_source_at(p->plan->source, tensor);
    *match = (fd_import_match){.tensor = tensor, .rule = rule, .choice = choice, .step = t->step < 0 ? 0 : t->step, .axis = -1};
    if (!fd_map_node(&p->plan->map->rules[rule], capture, match->node, sizeof match->node))
        return fd_fail(p->err, FD_ERR_INPUT, "%s:%d: the node's name for \"%s\" is longer than 63 bytes", p->plan->map->name,
                       p->plan->map->rules[rule].line, t->name);
    p->touched[tensor] = true;
    p->n++;
    return FD_OK;
}

typedef struct ranked {
    size_t tensor;
    fd_map_capture capture;
} ranked;

static int by_number(const void *a, const void *b) {
    return ((const ranked *)a)->capture.rank - ((const ranked *)b)->capture.rank;
}

/* The {rank} names of one step: their places are the layers, if there are as many as layers, or one more behind (an
 * unnamed product for the logits). Any other count says that the names mean something else. */
static fd_code add_ranked(planner *p, ranked *found, size_t n, size_t rule, size_t choice) {
    size_t n_layer = (size_t)(p->last + 1);
    if (n_layer == 0 || (n != n_layer && n != n_layer + 1)) return FD_OK;
    qsort(found, n, sizeof *found, by_number);
    for (size_t i = 0; i < n_layer; i++) {
        found[i].capture.rank = (int32_t)i;
        FD_TRY(add_match(p, found[i].tensor, rule, choice, &found[i].capture));
    }
    return FD_OK;
}

static fd_code match_source(planner *p, size_t rule, size_t choice, bool with_rank) {
    const fd_source *source = p->plan->source;
    const fd_map_source *pattern = &p->plan->map->rules[rule].sources[choice];
    size_t count = fd_source_count(source), n = 0;
    ranked *found = malloc((count + 1) * sizeof *found);
    if (!found) return fd_fail(p->err, FD_ERR_MEMORY, "import: out of memory");
    fd_code code = FD_OK;
    for (size_t i = 0; code == FD_OK && i < count; i++) {
        const fd_source_tensor *tensor = fd_source_at(source, i);
        fd_map_capture capture;
        if (n > 0 && tensor->step != fd_source_at(source, found[n - 1].tensor)->step) {
            code = add_ranked(p, found, n, rule, choice);
            n = 0;
        }
        if (code != FD_OK || !fd_map_matches(pattern->pattern, tensor->name, &capture) || !occurrence_fits(pattern, tensor)) continue;
        capture.last = p->last;
        if (with_rank)
            found[n++] = (ranked){i, capture};
        else if (capture.layer > p->last)
            p->last = capture.layer;
        if (!with_rank) code = add_match(p, i, rule, choice, &capture);
    }
    if (code == FD_OK && n > 0) code = add_ranked(p, found, n, rule, choice);
    free(found);
    return code;
}

/* Rules whose node takes its number from all names together come second. */
static bool is_second(const fd_map_rule *rule) {
    return strstr(rule->node, "{rank}") || strstr(rule->node, "{last}");
}

static fd_code match_names(planner *p) {
    const fd_map *map = p->plan->map;
    for (int second = 0; second < 2; second++) {
        if (second && p->options->graph) p->last = p->options->graph->hparams.n_layer - 1;
        for (size_t r = 0; r < map->n_rule; r++)
            for (size_t c = 0; c < map->rules[r].n_source; c++)
                if (is_second(&map->rules[r]) == (second == 1) && !(second && p->last < 0))
                    FD_TRY(match_source(p, r, c, strstr(map->rules[r].node, "{rank}") != NULL));
    }
    return FD_OK;
}

static int by_node(const void *a, const void *b) {
    const fd_import_match *x = a, *y = b;
    int names = strcmp(x->node, y->node);
    if (names) return names;
    if (x->step != y->step) return x->step < y->step ? -1 : 1;
    if (x->rule != y->rule) return x->rule < y->rule ? -1 : 1;
    if (x->choice != y->choice) return x->choice < y->choice ? -1 : 1;
    return x->tensor < y->tensor ? -1 : x->tensor > y->tensor;
}

/* Keeps the best match of every node and step. */
static fd_code choose(planner *p) {
    fd_import_plan *plan = p->plan;
    plan->matches = malloc((p->n + 1) * sizeof *plan->matches);
    if (!plan->matches) return fd_fail(p->err, FD_ERR_MEMORY, "import: out of memory");
    if (p->n) qsort(p->all, p->n, sizeof *p->all, by_node);
    for (size_t i = 0; i < p->n; i++) {
        const fd_import_match *m = &p->all[i], *last = plan->n_match ? &plan->matches[plan->n_match - 1] : NULL;
        const fd_map_rule *rule = &plan->map->rules[m->rule];
        const fd_source_tensor *tensor = fd_source_at(plan->source, m->tensor);
        bool same_node = last && strcmp(last->node, m->node) == 0;
        if (same_node && last->step == m->step && (last->rule != m->rule || last->choice != m->choice)) continue;
        bool repeated = rule->sources[m->choice].occurrence == 0 && tensor->n_same > 1;
        if (repeated)
            return fd_fail(p->err, FD_ERR_INPUT, "%s:%d: \"%s\" occurs %d times in step %d: say which, #1 to #%d or #last",
                           plan->map->name, rule->line, tensor->name, tensor->n_same, m->step, tensor->n_same);
        if (same_node && last->step == m->step)
            return fd_fail(p->err, FD_ERR_INPUT, "%s:%d: %s: two tensors fit in step %d: \"%s\" and \"%s\"", plan->map->name,
                           rule->line, m->node, m->step, fd_source_at(plan->source, last->tensor)->name, tensor->name);
        plan->n_node += !same_node;
        plan->matches[plan->n_match++] = *m;
    }
    return FD_OK;
}

static bool is_tokens(const char *name) {
    return strcmp(name, "tokens") == 0 || strcmp(name, "input_ids") == 0 || strncmp(name, "inp_tokens", 10) == 0;
}

static fd_code sort_out_rest(planner *p) {
    fd_import_plan *plan = p->plan;
    size_t count = fd_source_count(plan->source);
    plan->unmatched = malloc((count + 1) * sizeof *plan->unmatched);
    plan->allowed = malloc((count + 1) * sizeof *plan->allowed);
    if (!plan->unmatched || !plan->allowed) return fd_fail(p->err, FD_ERR_MEMORY, "import: out of memory");
    for (size_t i = 0; i < count; i++) {
        const char *name = fd_source_at(plan->source, i)->name;
        if (p->touched[i]) continue;
        if (fd_map_listed(&plan->map->skip, name) || is_tokens(name))
            plan->n_skipped++;
        else if (fd_map_listed(&plan->map->allow, name) || (p->options->allow && fd_map_listed(p->options->allow, name)))
            plan->allowed[plan->n_allowed++] = i;
        else
            plan->unmatched[plan->n_unmatched++] = i;
    }
    return FD_OK;
}

/* ---- positions ---- */

/* Where the rule's axis lies; negative when the tensor has too few. */
static int axis_of(const fd_map_rule *rule, const fd_source_tensor *tensor) {
    if (rule->axis < 0) return rule->axis + tensor->rank;
    int first = 0;
    while (first + 1 < tensor->rank && tensor->shape[first] == 1) first++;
    return tensor->rank ? first : -1;
}

/* How many tokens each step has: given, or what the tensors with an axis of their own agree on, or a prefill and single tokens. */
static fd_code find_steps(planner *p) {
    fd_import_plan *plan = p->plan;
    const fd_import_options *o = p->options;
    int32_t n = plan->n_step;
    if (o->step_sizes && o->n_step_size != n)
        return fd_fail(p->err, FD_ERR_INPUT, "%s: %d steps, the sizes of %d were given", fd_source_path(plan->source), n, o->n_step_size);
    int64_t total = 0;
    for (int32_t s = 0; s < n; s++) {
        int64_t size = o->step_sizes ? o->step_sizes[s] : n == 1 ? plan->n_token : 0;
        const char *by = NULL;
        for (size_t i = 0; !o->step_sizes && n > 1 && i < plan->n_match; i++) {
            const fd_import_match *m = &plan->matches[i];
            const fd_map_rule *rule = &plan->map->rules[m->rule];
            const fd_source_tensor *tensor = fd_source_at(plan->source, m->tensor);
            if (m->step != s || !rule->has_axis || rule->axis >= 0 || rule->rows != FD_MAP_ROWS_ALL || axis_of(rule, tensor) < 0) continue;
            int64_t found = tensor->shape[axis_of(rule, tensor)];
            if (by && found != size)
                return fd_fail(p->err, FD_ERR_INPUT, "%s: step %d has %lld tokens by \"%s\" and %lld by \"%s\"",
                               fd_source_path(plan->source), s, (long long)size, by, (long long)found, tensor->name);
            size = found;
            by = tensor->name;
        }
        if (size == 0) size = s == 0 ? (int64_t)plan->n_token - (n - 1) : 1;
        if (size < 1 || size > INT32_MAX || total + size > plan->n_token)
            return fd_fail(p->err, FD_ERR_INPUT, "%s: step %d has %lld tokens after %lld, of %d tokens in all (give --steps or other --tokens)",
                           fd_source_path(plan->source), s, (long long)size, (long long)total, plan->n_token);
        plan->steps[s] = (fd_import_step){(int32_t)total, (int32_t)size, s > 0 && size == 1 ? FD_STEP_DECODE : FD_STEP_PREFILL};
        total += size;
    }
    if (total == plan->n_token) return FD_OK;
    return fd_fail(p->err, FD_ERR_INPUT, "%s: the steps have %lld positions, but %d tokens were given", fd_source_path(plan->source),
                   (long long)total, plan->n_token);
}

static fd_code copy_steps(planner *p) {
    const fd_trace *trace = fd_source_trace(p->plan->source);
    for (int32_t s = 0; s < p->plan->n_step; s++) {
        const fd_trace_step *step = &fd_trace_steps(trace)[s];
        p->plan->steps[s] = (fd_import_step){step->pos0, step->n_pos, step->kind};
    }
    return FD_OK;
}

static fd_code take_tokens(planner *p) {
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
        return fd_fail(p->err, FD_ERR_INPUT, "%s: which tokens were fed is not known: give --tokens or --tokens-file, or put tokens.txt there",
                       fd_source_path(plan->source));
    if (trace && plan->n_token != fd_trace_n_pos(trace))
        return fd_fail(p->err, FD_ERR_INPUT, "%s: %d positions, %d tokens were given", fd_source_path(plan->source),
                       fd_trace_n_pos(trace), plan->n_token);
    plan->n_step = fd_source_n_step(plan->source);
    plan->steps = calloc((size_t)plan->n_step + 1, sizeof *plan->steps);
    if (!plan->steps) return fd_fail(p->err, FD_ERR_MEMORY, "import: out of memory");
    return trace ? copy_steps(p) : find_steps(p);
}

/* The array's axis over positions. */
static fd_code find_axis(planner *p, fd_import_match *m) {
    const fd_import_plan *plan = p->plan;
    const fd_map_rule *rule = &plan->map->rules[m->rule];
    const fd_source_tensor *t = fd_source_at(plan->source, m->tensor);
    const fd_import_step *step = &plan->steps[m->step];
    char shape[128];
    fd_array_shape_text(t->rank, t->shape, shape);
    if (t->step < 0) return m->axis = 0, FD_OK;
    int64_t want = step->n_pos, most = rule->rows == FD_MAP_ROWS_CACHE ? INT64_MAX : want;
    if (rule->rows == FD_MAP_ROWS_CACHE) want = step->pos0 + step->n_pos;
    if (rule->rows == FD_MAP_ROWS_LAST) want = 1;
    if (rule->has_axis && axis_of(rule, t) >= 0 && (rule->axis < 0 || step->n_pos > 1)) {
        m->axis = axis_of(rule, t);
        bool alone = rule->axis == 0 && rule->rows == FD_MAP_ROWS_LAST && t->shape[m->axis] != step->n_pos;
        if (alone) return m->axis = -1, FD_OK; /* the first axis longer than 1 is the last row's own */
        if (t->shape[m->axis] >= want && t->shape[m->axis] <= most) return FD_OK;
        return fd_fail(p->err, FD_ERR_INPUT, "%s:%d: \"%s\": shape %s, expected %d tokens (step %d) along axis %d", plan->map->name,
                       rule->line, t->name, shape, step->n_pos, m->step, m->axis - t->rank);
    }
    int n = 0;
    int end = t->rank - fd_import_over_kv(m->node); /* the last axis runs over the keys there */
    for (int i = 0; i < end; i++)
        if (t->shape[i] == step->n_pos && (n == 0 || step->n_pos > 1)) {
            m->axis = i;
            n++;
        }
    if (n == 1) return FD_OK;
    m->axis = -1; /* a single token needs no axis, and the last row alone has none */
    if (n == 0 && (step->n_pos == 1 || rule->rows == FD_MAP_ROWS_LAST)) return FD_OK;
    return fd_fail(p->err, FD_ERR_INPUT, "%s:%d: \"%s\": shape %s, %s axis of %d tokens (step %d)%s", plan->map->name, rule->line,
                   t->name, shape, n ? "more than one" : "no", step->n_pos, m->step, n ? ": write axis=" : "");
}

/* ---- shapes ---- */

static void learn(fd_map_values *values, const char *node, int rank, const int64_t *shape) {
    const char *dot = strrchr(node, '.');
    const char *tail = dot ? dot + 1 : node;
    bool q = strncmp(tail, "attn_q", 6) == 0, k = strncmp(tail, "attn_k", 6) == 0 || strcmp(tail, "attn_v") == 0;
    bool scores = fd_import_over_kv(node);
    if ((q || k) && rank == 2 && !values->of[FD_MAP_HEAD_DIM]) values->of[FD_MAP_HEAD_DIM] = shape[1];
    if ((q || scores) && rank == 2 && !values->of[FD_MAP_N_HEAD]) values->of[FD_MAP_N_HEAD] = shape[0];
    if (k && rank == 2 && !values->of[FD_MAP_N_HEAD_KV]) values->of[FD_MAP_N_HEAD_KV] = shape[0];
    bool wide = strcmp(tail, "token_embd") == 0 || strcmp(tail, "attn_norm") == 0 || strcmp(tail, "l_out") == 0;
    if (wide && rank == 1 && !values->of[FD_MAP_N_EMBD]) values->of[FD_MAP_N_EMBD] = shape[0];
}

/* What the model says; without one, what the shapes say that need no help themselves. */
static void find_values(planner *p) {
    fd_import_plan *plan = p->plan;
    fd_map_values *v = &plan->values;
    v->rope_neighbours = -1;
    const fd_graph *graph = p->options->graph;
    if (graph) {
        const fd_hparams *h = &graph->hparams;
        v->of[FD_MAP_HEAD_DIM] = h->head_dim;
        v->of[FD_MAP_N_HEAD] = h->n_head;
        v->of[FD_MAP_N_HEAD_KV] = h->n_head_kv;
        v->of[FD_MAP_N_EMBD] = h->n_embd;
        v->rope_neighbours = h->rope.pairing == FD_ROPE_INTERLEAVED;
        return;
    }
    fd_error ignored;
    for (size_t i = 0; i < plan->n_match; i++) {
        const fd_import_match *m = &plan->matches[i];
        const fd_map_rule *rule = &plan->map->rules[m->rule];
        int rank;
        int64_t shape[FD_ARRAY_MAX_RANK];
        fd_import_row_shape(fd_source_at(plan->source, m->tensor), m->axis, &rank, shape);
        if (!fd_map_needs_values(rule) || fd_import_over_kv(m->node)) {
            bool fits = fd_map_needs_values(rule) || fd_map_apply(plan->map, rule, v, &rank, shape, NULL, NULL, &ignored) == FD_OK;
            if (fits) learn(v, m->node, rank, shape);
        }
    }
    if (!v->of[FD_MAP_HEAD_DIM] && v->of[FD_MAP_N_HEAD] && v->of[FD_MAP_N_EMBD] % v->of[FD_MAP_N_HEAD] == 0)
        v->of[FD_MAP_HEAD_DIM] = v->of[FD_MAP_N_EMBD] / v->of[FD_MAP_N_HEAD];
}

static fd_code check_shape(planner *p, const fd_import_match *m) {
    const fd_import_plan *plan = p->plan;
    const fd_map_rule *rule = &plan->map->rules[m->rule];
    const fd_source_tensor *t = fd_source_at(plan->source, m->tensor);
    int rank;
    int64_t shape[FD_ARRAY_MAX_RANK], n = 1;
    char text[128], wanted[128];
    fd_import_row_shape(t, m->axis, &rank, shape);
    for (int i = 0; i < rank; i++)
        if (shape[i] < 1 || shape[i] > INT32_MAX || (n *= shape[i]) > FD_MAP_MAX_ELEMENTS)
            return fd_fail(p->err, FD_ERR_INPUT, "\"%s\": shape %s a position, expected 1 to 2^31 - 1 elements", t->name, fd_array_shape_text(rank, shape, text));
    if (t->type == FD_ARRAY_U16 && rule->words == FD_MAP_WORDS_AS_FILE && !strstr(t->name, "bf16"))
        return fd_fail(p->err, FD_ERR_INPUT, "%s:%d: \"%s\" holds 16-bit words: write as=bf16 or as=f16", plan->map->name, rule->line, t->name);
    FD_TRY(fd_map_apply(plan->map, rule, &plan->values, &rank, shape, NULL, NULL, p->err));
    fd_array_shape_text(rank, shape, text);
    bool over_kv = fd_import_over_kv(m->node);
    int64_t n_kv = over_kv ? shape[rank - 1] : 1, found = 1;
    for (int i = 0; i < rank - over_kv; i++) found *= shape[i];
    const fd_import_step *step = &plan->steps[m->step];
    int64_t reach = t->step < 0 ? plan->n_token : step->pos0 + step->n_pos;
    if (over_kv && !t->over_kv && n_kv < reach)
        return fd_fail(p->err, FD_ERR_INPUT, "%s:%d: %s from \"%s\": shape %s a position, expected [n_head, n_kv] with n_kv at least %lld",
                       plan->map->name, rule->line, m->node, t->name, text, (long long)reach);
    if (rank > (over_kv ? 2 : 4) && !over_kv)
        return fd_fail(p->err, FD_ERR_INPUT, "%s:%d: %s from \"%s\": shape %s a position, expected at most 4 axes", plan->map->name,
                       rule->line, m->node, t->name, text);
    if (!plan->graph) return FD_OK;
    int32_t id = fd_graph_find(plan->graph, m->node);
    if (id < 0)
        return fd_fail(p->err, FD_ERR_INPUT, "%s:%d: \"%s\" is mapped to %s, which the model's graph does not have (another model?)",
                       plan->map->name, rule->line, t->name, m->node);
    const fd_node *node = &plan->graph->nodes[id];
    int64_t expected = over_kv ? node->shape[0] : fd_node_elements(node, 1);
    if (found == expected) return FD_OK;
    fd_array_shape_text(node->n_dim, (int64_t[]){node->shape[0], node->n_dim > 1 ? node->shape[1] : 0}, wanted);
    return fd_fail(p->err, FD_ERR_INPUT, "%s:%d: %s from \"%s\": shape %s a position, the model has %s (another model?)", plan->map->name,
                   rule->line, m->node, t->name, text, wanted);
}

static fd_code make(planner *p) {
    fd_import_plan *plan = p->plan;
    FD_TRY(match_names(p));
    FD_TRY(choose(p));
    FD_TRY(sort_out_rest(p));
    FD_TRY(take_tokens(p));
    for (size_t i = 0; i < plan->n_match; i++) FD_TRY(find_axis(p, &plan->matches[i]));
    find_values(p);
    for (size_t i = 0; i < plan->n_match; i++) FD_TRY(check_shape(p, &plan->matches[i]));
    if (plan->n_match > 0) return FD_OK;
    return fd_fail(p->err, FD_ERR_INCOMPLETE, "%s: none of its %zu tensors is named by the map %s; the first is \"%s\"",
                   fd_source_path(plan->source), fd_source_count(plan->source), plan->map->name,
                   fd_source_at(plan->source, 0)->name);
}

fd_code fd_import_make_plan(const fd_source *source, const fd_import_options *options, fd_import_plan *out, fd_error *err) {
    *out = (fd_import_plan){.source = source, .map = options->map, .graph = options->graph};
    planner p = {.plan = out, .options = options, .last = -1, .err = err};
    p.touched = calloc(fd_source_count(source) + 1, sizeof *p.touched);
    fd_code code = p.touched ? make(&p) : fd_fail(err, FD_ERR_MEMORY, "import: out of memory");
    free(p.all);
    free(p.touched);
    if (code != FD_OK) fd_import_plan_free(out);
    return code;
}

void fd_import_plan_free(fd_import_plan *plan) {
    free(plan->tokens);
    free(plan->steps);
    free(plan->matches);
    free(plan->unmatched);
    free(plan->allowed);
    *plan = (fd_import_plan){0};
}
