/* The plan: every tensor's node, positions and shape, checked before anything is written. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "dumpers/import/plan_internal.h"
#include "dumpers/import/propose/propose.h"

static void learn(fd_name_map_values *values, const char *node, int rank, const int64_t *shape) {
    const char *dot = strrchr(node, '.');
    const char *tail = dot ? dot + 1 : node;
    bool q = strncmp(tail, "attn_q", 6) == 0, k = strncmp(tail, "attn_k", 6) == 0 || strcmp(tail, "attn_v") == 0;
    bool scores = fd_import_over_kv(node);
    if ((q || k) && rank == 2 && !values->of[FD_NAME_MAP_HEAD_DIM]) values->of[FD_NAME_MAP_HEAD_DIM] = shape[1];
    if ((q || scores) && rank == 2 && !values->of[FD_NAME_MAP_N_HEAD]) values->of[FD_NAME_MAP_N_HEAD] = shape[0];
    if (k && rank == 2 && !values->of[FD_NAME_MAP_N_HEAD_KV]) values->of[FD_NAME_MAP_N_HEAD_KV] = shape[0];
    bool wide = strcmp(tail, "token_embd") == 0 || strcmp(tail, "attn_norm") == 0 || strcmp(tail, "l_out") == 0;
    if (wide && rank == 1 && !values->of[FD_NAME_MAP_N_EMBD]) values->of[FD_NAME_MAP_N_EMBD] = shape[0];
}

static double attn_scale_of(const fd_graph *graph) {
    for (int32_t i = 0; i < graph->n_node; i++)
        if (graph->nodes[i].op == FD_OP_ATTN_SCORES) return (double)graph->nodes[i].scale;
    return 0;
}

static fd_name_map_values values_of_model(const fd_graph *graph, bool rows_kept) {
    if (!graph) return (fd_name_map_values){.rope_neighbours = -1};
    const fd_hparams *h = &graph->hparams;
    return (fd_name_map_values){.of = {[FD_NAME_MAP_HEAD_DIM] = h->head_dim,
                                       [FD_NAME_MAP_N_HEAD] = h->n_head,
                                       [FD_NAME_MAP_N_HEAD_KV] = h->n_head_kv,
                                       [FD_NAME_MAP_N_EMBD] = h->n_embd,
                                       [FD_NAME_MAP_N_FF] = h->n_ff,
                                       [FD_NAME_MAP_N_EXPERT_USED] = h->n_expert_used},
                                .attn_scale = attn_scale_of(graph),
                                .rope_neighbours =
                                    h->rope.pairing == FD_ROPE_INTERLEAVED && !h->rope_rows_kept && !rows_kept};
}

/* Without a model: what the shapes say that need no help themselves. */
static void find_values(fd_planner *p) {
    fd_import_plan *plan = p->plan;
    fd_name_map_values *v = &plan->values;
    fd_error ignored;
    for (size_t i = 0; i < plan->n_match; i++) {
        const fd_import_match *m = &plan->matches[i];
        const fd_name_map_rule *rule = &plan->map->rules[m->rule];
        int rank;
        int64_t shape[FD_ARRAY_MAX_RANK];
        fd_import_row_shape(m, &rank, shape);
        if (!fd_name_map_needs_values(rule) || fd_import_over_kv(m->node)) {
            bool fits = fd_name_map_needs_values(rule) ||
                        fd_name_map_apply(plan->map, rule, v, &rank, shape, NULL, NULL, &ignored) == FD_OK;
            if (fits) learn(v, m->node, rank, shape);
        }
    }
    if (!v->of[FD_NAME_MAP_HEAD_DIM] && v->of[FD_NAME_MAP_N_HEAD] &&
        v->of[FD_NAME_MAP_N_EMBD] % v->of[FD_NAME_MAP_N_HEAD] == 0)
        v->of[FD_NAME_MAP_HEAD_DIM] = v->of[FD_NAME_MAP_N_EMBD] / v->of[FD_NAME_MAP_N_HEAD];
    if (v->of[FD_NAME_MAP_HEAD_DIM])
        v->attn_scale = 1 / sqrt((double)v->of[FD_NAME_MAP_HEAD_DIM]); /* as most have it */
}

static fd_code check_shape(fd_planner *p, const fd_import_match *m) {
    const fd_import_plan *plan = p->plan;
    const fd_name_map_rule *rule = &plan->map->rules[m->rule];
    const fd_source_tensor *t = fd_source_at(plan->source, m->tensor);
    int rank;
    int64_t shape[FD_ARRAY_MAX_RANK], n = 1;
    char text[128], wanted[128];
    fd_import_row_shape(m, &rank, shape);
    for (int i = 0; i < rank; i++)
        if (shape[i] < 1 || shape[i] > INT32_MAX || (n *= shape[i]) > FD_NAME_MAP_MAX_ELEMENTS)
            return fd_fail(p->err, FD_ERR_INPUT, "\"%s\": shape %s a position, expected 1 to 2^31 - 1 elements",
                           t->name, fd_array_shape_text(rank, shape, text));
    if (t->type == FD_ARRAY_U16 && fd_import_match_words(plan, m) == FD_NAME_MAP_WORDS_AS_FILE &&
        !strstr(t->name, "bf16"))
        return fd_fail(p->err, FD_ERR_INPUT, "%s:%d: \"%s\" holds 16-bit words: write as=bf16 or as=f16",
                       plan->map->name, rule->line, t->name);
    FD_TRY(fd_import_apply(plan, m, &rank, shape, NULL, NULL, p->err));
    fd_array_shape_text(rank, shape, text);
    bool over_kv = fd_import_over_kv(m->node);
    int64_t n_kv = over_kv ? shape[rank - 1] : 1, found = 1;
    for (int i = 0; i < rank - over_kv; i++) found *= shape[i];
    const fd_import_step *step = &plan->steps[m->step];
    int64_t reach = t->step < 0 ? plan->n_token : step->pos0 + step->n_pos;
    if (over_kv && !t->over_kv && n_kv + (t->step < 0 ? 0 : fd_import_keys_before(plan, m, n_kv)) < reach)
        return fd_fail(p->err, FD_ERR_INPUT,
                       "%s:%d: %s from \"%s\": shape %s a position, expected [n_head, n_kv] with n_kv at least %lld",
                       plan->map->name, rule->line, m->node, t->name, text, (long long)reach);
    if (rank > (over_kv ? 2 : 4) && !over_kv)
        return fd_fail(p->err, FD_ERR_INPUT, "%s:%d: %s from \"%s\": shape %s a position, expected at most 4 axes",
                       plan->map->name, rule->line, m->node, t->name, text);
    if (!plan->graph) return FD_OK;
    int32_t id = fd_graph_find(plan->graph, m->node);
    if (id < 0)
        return fd_fail(p->err, FD_ERR_INPUT,
                       "%s:%d: \"%s\" is mapped to %s, which the model's graph does not have (another model?)",
                       plan->map->name, rule->line, t->name, m->node);
    const fd_node *node = &plan->graph->nodes[id];
    int64_t expected = over_kv ? node->shape[0] : fd_node_elements(node, 1);
    if (found == expected) return FD_OK;
    fd_array_shape_text(node->n_dim, (int64_t[]){node->shape[0], node->n_dim > 1 ? node->shape[1] : 0}, wanted);
    return fd_fail(p->err, FD_ERR_INPUT,
                   "%s:%d: %s from \"%s\": shape %s a position, the model has %s (another model?)", plan->map->name,
                   rule->line, m->node, t->name, text, wanted);
}

/* Every pattern is tried on every name. */
static fd_code check_tries(const fd_planner *p) {
    const fd_name_map *map = p->plan->map;
    size_t n = map->skip.n + map->allow.n + map->absent.n, names = fd_source_count(p->plan->source);
    for (size_t i = 0; i < map->n_rule; i++) n += map->rules[i].n_source;
    if (n == 0 || names <= (size_t)fd_limit_of(FD_LIMIT_TRIES) / n) return FD_OK;
    return fd_limit_exceeded(p->err, FD_LIMIT_TRIES, "%s: %zu patterns for %zu tensors", map->name, n, names);
}

static fd_code make(fd_planner *p) {
    fd_import_plan *plan = p->plan;
    FD_TRY(check_tries(p));
    FD_TRY(fd_plan_names(p));
    FD_TRY(fd_plan_steps(p));
    for (size_t i = 0; i < plan->n_match; i++) FD_TRY(fd_import_place(plan, &plan->matches[i], p->err));
    if (!plan->graph) find_values(p);
    for (size_t i = 0; i < plan->n_match; i++) FD_TRY(check_shape(p, &plan->matches[i]));
    if (plan->n_match > 0) return FD_OK;
    return fd_fail(p->err, FD_ERR_INCOMPLETE, "%s: none of its %zu tensors is named by the map %s; the first is \"%s\"",
                   fd_source_path(plan->source), fd_source_count(plan->source), plan->map->name,
                   fd_source_at(plan->source, 0)->name);
}

fd_code fd_import_make_plan(const fd_source *source, const fd_import_options *options, fd_import_plan *out,
                            fd_error *err) {
    *out = (fd_import_plan){.source = source,
                            .map = options->map,
                            .graph = options->graph,
                            .cache_type = options->cache_type,
                            .values = values_of_model(options->graph, options->rows_kept)};
    fd_planner p = {.plan = out, .options = options, .last = -1, .err = err};
    p.touched = calloc(fd_source_count(source) + 1, sizeof *p.touched);
    p.claimed = calloc(fd_source_count(source) + 1, sizeof *p.claimed);
    fd_code code = p.touched && p.claimed ? make(&p) : fd_fail(err, FD_ERR_MEMORY, "import: out of memory");
    free(p.all);
    free(p.misfits);
    free(p.touched);
    free(p.claimed);
    if (code != FD_OK) fd_import_plan_free(out);
    return code;
}

fd_code fd_import_begin_plan(const fd_source *source, const fd_import_options *options, fd_import_plan *out,
                             fd_error *err) {
    *out = (fd_import_plan){.source = source,
                            .graph = options->graph,
                            .cache_type = options->cache_type,
                            .values = values_of_model(options->graph, options->rows_kept)};
    fd_planner p = {.plan = out, .options = options, .last = -1, .err = err};
    fd_code code = fd_plan_steps(&p);
    if (code != FD_OK) fd_import_plan_free(out);
    return code;
}

void fd_import_plan_free(fd_import_plan *plan) {
    free(plan->tokens);
    free(plan->steps);
    free(plan->matches);
    free(plan->unmatched);
    free(plan->weights);
    free(plan->unmatched_weights);
    free(plan->allowed);
    *plan = (fd_import_plan){0};
}
