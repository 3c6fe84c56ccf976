/* Which tensor becomes which node: rules against names. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/plan_internal.h"

static bool occurrence_fits(const fd_name_map_source *source, const fd_source_tensor *tensor) {
    if (source->occurrence == 0) return true; /* judged when it is chosen */
    return tensor->occurrence == (source->occurrence < 0 ? tensor->n_same : source->occurrence);
}

/* "blk.3.attn_q" → "attn_q" */
static const char *suffix_of(const char *node) {
    const char *dot = strncmp(node, "blk.", 4) == 0 ? strchr(node + 4, '.') : NULL;
    return dot ? dot + 1 : node;
}

/* {name} stands for the names of the model's nodes alone. */
static bool is_no_node(const fd_planner *p, const fd_name_map_rule *rule, const char *node) {
    const fd_graph *graph = p->options->graph;
    return strstr(rule->node, "{name}") && (!graph || fd_graph_find(graph, node) < 0);
}

/* A built-in map's line for other architectures: this layer of the model has no such node. A layer that the model has
 * not says that it is another model. */
static bool is_of_others(const fd_planner *p, const char *node) {
    const fd_graph *graph = p->options->graph;
    if (!p->plan->map->builtin || !graph) return false;
    if (strncmp(node, "blk.", 4) == 0 && atoi(node + 4) < graph->hparams.n_layer) return fd_graph_find(graph, node) < 0;
    for (int32_t i = 0; i < graph->n_node; i++)
        if (strcmp(suffix_of(graph->nodes[i].name), suffix_of(node)) == 0) return false;
    return true;
}

/* The axis of a file's array that runs over positions, where the rule says which; -1: the step's tokens are not known
 * yet. */
static int64_t n_pos_of(const fd_graph *graph, const fd_source_tensor *t, const fd_name_map_rule *rule,
                        const char *node) {
    const bool said = rule->has_axis && rule->axis < 0 && rule->n_shape == 0 && t->rank + rule->axis >= 0;
    return said ? t->shape[fd_plan_rows_axis(graph, rule, node, t->rank, t->shape)] : -1;
}

/* The names of a built-in map stand for other nodes in other architectures: an array that cannot be the node by its size
 * is left to a later line. */
static bool has_size_of(const fd_planner *p, const fd_source_tensor *t, const fd_name_map_rule *rule,
                        const char *node) {
    const fd_graph *graph = p->options->graph;
    int32_t id = p->plan->map->builtin && graph ? fd_graph_find(graph, node) : -1;
    const fd_fused_part *part = fd_name_map_part(rule);
    const fd_name_map_values values = fd_import_values_for(p->plan, rule, node);
    fd_fused_place place;
    if (part && p->plan->map->builtin)
        return fd_fused_part_place(part, &values, &place) && t->rank > 0 &&
               (t->rank == 1 ? t->shape[0] % place.width == 0 : t->shape[t->rank - 1] == place.width);
    if (id < 0 || fd_import_over_kv(node)) return true;
    const int64_t expected = fd_node_elements(&graph->nodes[id], 1);
    int64_t n = t->rank > 0 ? fd_name_map_sliced(rule, &p->plan->values, t->shape[t->rank - 1]) : 1;
    for (int i = t->step < 0; i + 1 < t->rank; i++) n *= t->shape[i];
    const int64_t n_pos = t->step < 0 ? 1 : n_pos_of(graph, t, rule, node);
    if (t->rank > 0 && fd_import_is_padded(graph, node, t->shape[t->rank - 1])) return true;
    return n_pos > 0 ? n == n_pos * expected : n % expected == 0;
}

/* bias=no, factor=no: what the model does to a product, or to expert weights, before that is the node. A dump with gaps may
 * hold the stage before alone. */
static bool is_earlier_stage(const fd_planner *p, const fd_name_map_rule *rule, const char *node) {
    const fd_graph *graph = p->options->graph;
    const int32_t id = graph ? fd_graph_find(graph, node) : -1;
    if (id < 0 || (!rule->unbiased && !rule->unscaled)) return false;
    const fd_node *n = &graph->nodes[id];
    if (n->op == FD_OP_EXPERT_WEIGHTS) return n->scale != 1.0f || (rule->unbiased && n->gating != FD_GATING_GATHER);
    if (n->op == FD_OP_ATTN_SCORES) return n->softcap != 0.0f;
    return n->weight[1] >= 0;
}

static fd_code append(fd_planner *p, fd_import_match **list, size_t *n, size_t *room, const fd_import_match *match) {
    if (*n == *room) {
        size_t more = *room ? 2 * *room : 1024;
        fd_import_match *all = realloc(*list, more * sizeof *all);
        if (!all) return fd_fail(p->err, FD_ERR_MEMORY, "import: out of memory");
        *list = all;
        *room = more;
    }
    (*list)[(*n)++] = *match;
    return FD_OK;
}

static fd_code add_match(fd_planner *p, size_t tensor, size_t rule, size_t choice, const fd_name_map_capture *capture) {
    const fd_source_tensor *t = fd_source_at(p->plan->source, tensor);
    fd_import_match match = {
        .tensor = tensor, .rule = rule, .choice = choice, .step = t->step < 0 ? 0 : t->step, .axis = -1};
    if (!fd_name_map_node(&p->plan->map->rules[rule], capture, match.node, sizeof match.node))
        return fd_fail(p->err, FD_ERR_INPUT, "%s:%d: the node's name for \"%s\" is longer than 63 bytes",
                       p->plan->map->name, p->plan->map->rules[rule].line, t->name);
    if (is_no_node(p, &p->plan->map->rules[rule], match.node) || is_of_others(p, match.node)) return FD_OK;
    if (is_earlier_stage(p, &p->plan->map->rules[rule], match.node))
        return p->touched[tensor] = true, FD_OK; /* known, and none of the rules with `else` */
    if (!has_size_of(p, t, &p->plan->map->rules[rule], match.node))
        return append(p, &p->misfits, &p->n_misfit, &p->misfit_room, &match);
    p->touched[tensor] = true;
    if (p->plan->map->rules[rule].archs) p->claimed[tensor] = true;
    return append(p, &p->all, &p->n, &p->room, &match);
}

typedef struct ranked {
    size_t tensor;
    fd_name_map_capture capture;
} ranked;

static int by_number(const void *a, const void *b) {
    return ((const ranked *)a)->capture.rank - ((const ranked *)b)->capture.rank;
}

/* The {rank} names of one step: their places are the layers, if there are as many as layers, or one more after them (an
 * unnamed product for the logits). Any other count says that the names mean something else. */
static fd_code add_ranked(fd_planner *p, ranked *found, size_t n, size_t rule, size_t choice) {
    size_t n_layer = (size_t)(p->last + 1);
    if (n_layer == 0 || (n != n_layer && n != n_layer + 1)) return FD_OK;
    qsort(found, n, sizeof *found, by_number);
    for (size_t i = 0; i < n_layer; i++) {
        found[i].capture.rank = (int32_t)i;
        FD_TRY(add_match(p, found[i].tensor, rule, choice, &found[i].capture));
    }
    return FD_OK;
}

/* By a line above that leaves it to no other. */
static bool is_taken(const fd_planner *p, size_t rule, size_t tensor) {
    const fd_name_map_rule *r = &p->plan->map->rules[rule];
    return (r->otherwise && p->touched[tensor]) || (!r->archs && p->claimed[tensor]) ||
           fd_name_map_is_asked(p->plan->map, r, fd_source_at(p->plan->source, tensor)->name);
}

static fd_code match_source(fd_planner *p, size_t rule, size_t choice, bool with_rank) {
    const fd_source *source = p->plan->source;
    const fd_name_map_source *pattern = &p->plan->map->rules[rule].sources[choice];
    size_t count = fd_source_count(source), n = 0;
    ranked *found = malloc((count + 1) * sizeof *found);
    if (!found) return fd_fail(p->err, FD_ERR_MEMORY, "import: out of memory");
    fd_code code = FD_OK;
    for (size_t i = 0; code == FD_OK && i < count; i++) {
        const fd_source_tensor *tensor = fd_source_at(source, i);
        fd_name_map_capture capture;
        if (n > 0 && tensor->step != fd_source_at(source, found[n - 1].tensor)->step) {
            code = add_ranked(p, found, n, rule, choice);
            n = 0;
        }
        if (code != FD_OK || !fd_name_map_matches(pattern->pattern, tensor->name, &capture) ||
            !occurrence_fits(pattern, tensor) || is_taken(p, rule, i))
            continue;
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
static bool is_second(const fd_name_map_rule *rule) {
    return strstr(rule->node, "{rank}") || strstr(rule->node, "{last}");
}

static fd_code match_names(fd_planner *p) {
    const fd_name_map *map = p->plan->map;
    const char *arch = p->options->graph ? p->options->graph->hparams.arch : NULL;
    for (int second = 0; second < 2; second++) {
        if (second && p->options->graph) p->last = p->options->graph->hparams.n_layer - 1;
        for (size_t r = 0; r < map->n_rule; r++) {
            const fd_name_map_rule *rule = &map->rules[r];
            if (fd_source_is_weight(rule->node) || is_second(rule) != (second == 1) || (second && p->last < 0) ||
                !fd_name_map_is_for(rule, arch))
                continue;
            for (size_t c = 0; c < rule->n_source; c++)
                FD_TRY(match_source(p, r, c, strstr(rule->node, "{rank}") != NULL));
        }
    }
    return FD_OK;
}

/* An array that no line fits is refused as the first line has it. */
static fd_code add_misfits(fd_planner *p) {
    for (size_t i = 0; i < p->n_misfit; i++) {
        const fd_import_match *m = &p->misfits[i];
        if (p->touched[m->tensor] || fd_name_map_part(&p->plan->map->rules[m->rule])) continue;
        if (p->options->leave_misfits) continue; /* among those that no line names */
        p->touched[m->tensor] = true;
        FD_TRY(append(p, &p->all, &p->n, &p->room, m));
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

/* Two tensors of one pattern fit the node, and nothing says which: a bug gave a name twice, or an unnamed node another
 * number in another call. */
static bool has_rival(const fd_planner *p, size_t i) {
    const fd_import_match *m = &p->all[i];
    for (size_t k = i > 0 ? i - 1 : 0; k <= i + 1 && k < p->n; k++) {
        const fd_import_match *other = &p->all[k];
        if (k != i && other->step == m->step && other->rule == m->rule && other->choice == m->choice &&
            strcmp(other->node, m->node) == 0)
            return true;
    }
    return false;
}

/* Keeps the best match of every node and step. */
static fd_code choose(fd_planner *p) {
    fd_import_plan *plan = p->plan;
    plan->matches = malloc((p->n + 1) * sizeof *plan->matches);
    if (!plan->matches) return fd_fail(p->err, FD_ERR_MEMORY, "import: out of memory");
    if (p->n) qsort(p->all, p->n, sizeof *p->all, by_node);
    for (size_t i = 0; i < p->n; i++) {
        const fd_import_match *m = &p->all[i], *last = plan->n_match ? &plan->matches[plan->n_match - 1] : NULL;
        const fd_name_map_rule *rule = &plan->map->rules[m->rule];
        const fd_source_tensor *tensor = fd_source_at(plan->source, m->tensor);
        bool same_node = last && strcmp(last->node, m->node) == 0;
        if (same_node && last->step == m->step && (last->rule != m->rule || last->choice != m->choice)) continue;
        bool repeated = rule->sources[m->choice].occurrence == 0 && tensor->n_same > 1;
        if (plan->map->builtin && (repeated || has_rival(p, i))) { /* it is listed, and all else is compared */
            p->touched[m->tensor] = false;
            continue;
        }
        if (repeated)
            return fd_fail(p->err, FD_ERR_INPUT,
                           "%s:%d: \"%s\" occurs %d times in step %d: say which, #1 to #%d or #last", plan->map->name,
                           rule->line, tensor->name, tensor->n_same, m->step, tensor->n_same);
        if (same_node && last->step == m->step)
            return fd_fail(p->err, FD_ERR_INPUT, "%s:%d: %s: two tensors fit in step %d: \"%s\" and \"%s\"",
                           plan->map->name, rule->line, m->node, m->step,
                           fd_source_at(plan->source, last->tensor)->name, tensor->name);
        plan->n_node += !same_node;
        plan->matches[plan->n_match++] = *m;
    }
    return FD_OK;
}

static bool may_stay(const fd_planner *p, const char *name) {
    return fd_name_map_listed(&p->plan->map->allow, name) ||
           (p->options->allow && fd_name_map_listed(p->options->allow, name));
}

bool fd_plan_is_allowed(const fd_planner *p, const char *name) {
    return fd_name_map_listed(&p->plan->map->skip, name) || may_stay(p, name);
}

static fd_code sort_out_rest(fd_planner *p) {
    fd_import_plan *plan = p->plan;
    size_t count = fd_source_count(plan->source);
    plan->unmatched = malloc((count + 1) * sizeof *plan->unmatched);
    plan->allowed = malloc((count + 1) * sizeof *plan->allowed);
    if (!plan->unmatched || !plan->allowed) return fd_fail(p->err, FD_ERR_MEMORY, "import: out of memory");
    for (size_t i = 0; i < count; i++) {
        const char *name = fd_source_at(plan->source, i)->name;
        if (p->touched[i]) continue;
        if (fd_name_map_listed(&plan->map->skip, name) || fd_source_is_tokens(fd_source_at(plan->source, i)))
            plan->n_skipped++;
        else if (may_stay(p, name))
            plan->allowed[plan->n_allowed++] = i;
        else
            plan->unmatched[plan->n_unmatched++] = i;
    }
    return FD_OK;
}

fd_code fd_plan_names(fd_planner *p) {
    FD_TRY(match_names(p));
    FD_TRY(add_misfits(p));
    FD_TRY(choose(p));
    FD_TRY(fd_plan_weights(p));
    return sort_out_rest(p);
}
