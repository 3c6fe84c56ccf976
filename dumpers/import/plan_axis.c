/* Which axis of an array runs over the positions of its step. */
#include <stdio.h>
#include <string.h>

#include "dumpers/import/plan_internal.h"

int fd_plan_rule_axis(const fd_name_map_rule *rule, int rank, const int64_t *shape) {
    if (rule->axis < 0) return rule->axis + rank;
    int first = 0;
    while (first + 1 < rank && shape[first] == 1) first++;
    return rank ? first : -1;
}

int fd_plan_rows_axis(const fd_graph *graph, const fd_name_map_rule *rule, const char *node, int rank,
                      const int64_t *shape) {
    const int axis = fd_plan_rule_axis(rule, rank, shape);
    const int32_t id = graph && rule->axis < 0 && rule->n_shape == 0 && rank >= 3 ? fd_graph_find(graph, node) : -1;
    if (id < 0 || fd_import_over_kv(node) || graph->nodes[id].n_dim != 2) return axis;
    const int64_t heads = graph->nodes[id].shape[0];
    const int before = rank - 3, behind = rank - 2;
    if (shape[rank - 1] != graph->nodes[id].shape[1] || (shape[before] == heads) == (shape[behind] == heads))
        return axis;
    return shape[before] == heads ? behind : before;
}

bool fd_plan_keeps_window(const fd_graph *graph, const fd_import_step *step, int64_t n_row) {
    if (n_row >= step->pos0 + step->n_pos) return false; /* all positions */
    for (int32_t i = 0; graph && i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        if (node->op == FD_OP_ATTN_SCORES && !node->chunked && node->window == n_row + 1) return true;
    }
    return false;
}

/* Could an axis of this length be the rule's positions? */
static bool is_long_enough(const fd_import_plan *plan, const fd_name_map_rule *rule, const fd_import_step *step,
                           int64_t length) {
    if (rule->rows == FD_NAME_MAP_ROWS_CACHE)
        return length >= step->pos0 + step->n_pos || fd_plan_keeps_window(plan->graph, step, length);
    if (rule->rows == FD_NAME_MAP_ROWS_LAST) return length >= 1 && length <= step->n_pos;
    return length == step->n_pos;
}

static int64_t elements(const fd_import_match *m) {
    int64_t n = 1;
    for (int i = 0; i < m->rank; i++) n *= m->shape[i];
    return n;
}

/* Of one position, by the model; 0: not known. */
static int64_t node_elements(const fd_import_plan *plan, const char *node) {
    int32_t id = plan->graph && !fd_import_over_kv(node) ? fd_graph_find(plan->graph, node) : -1;
    return id < 0 ? 0 : fd_node_elements(&plan->graph->nodes[id], 1);
}

/* What the map has to say for this array, as ": write …"; "" when that is not to be guessed. */
static const char *cure(const fd_import_plan *plan, const fd_import_match *m, char *out, size_t size) {
    const fd_import_step *step = &plan->steps[m->step];
    const int64_t n = elements(m), width = node_elements(plan, m->node);
    const bool flat = m->rank > 0 && m->shape[m->rank - 1] == n;
    size_t at = 0;
    out[0] = '\0';
    if (fd_import_over_kv(m->node))
        snprintf(out, size, "%s", flat ? ": write shape=n_tok,n_head,-1 axis=-3, or in the array's own order" : "");
    else if (width == 0)
        snprintf(out, size,
                 " (a flat array: write shape=n_tok,-1; the last token alone: rows=last; a whole cache: rows=cache)");
    else if (n == width)
        snprintf(out, size, ": write rows=last, if it is the last token's");
    else if (flat && n == width * step->n_pos)
        snprintf(out, size, ": write shape=n_tok,-1 axis=-2");
    else if (n % width == 0 && n / width >= step->pos0 + step->n_pos) { /* a whole cache */
        for (int i = 0; i < m->rank; i++)
            if (m->shape[i] * width == n)
                at += (size_t)snprintf(out + at, size - at, "%s axis=%d rows=cache", at ? ", or" : ": write",
                                       i - m->rank);
        if (at == 0) snprintf(out, size, ": write shape=-1,%lld axis=-2 rows=cache", (long long)width);
    }
    return out;
}

/* A flat array whose rule says that the first axis is the positions': a row each. */
static void split_flat(const fd_import_plan *plan, const fd_name_map_rule *rule, fd_import_match *m) {
    const fd_import_step *step = &plan->steps[m->step];
    const int64_t n = elements(m), width = node_elements(plan, m->node);
    int64_t rows = rule->rows == FD_NAME_MAP_ROWS_ALL ? step->n_pos : 1;
    if (width) rows = n / width;
    if (m->rank != 1 || rule->axis != 0 || rows <= 1 || n == rows || n % rows != 0 || (width && n % width != 0) ||
        !is_long_enough(plan, rule, step, rows))
        return;
    m->rank = 2;
    m->shape[0] = rows;
    m->shape[1] = n / rows;
}

/* The rule names the axis. */
static fd_code place_given(const fd_import_plan *plan, const fd_name_map_rule *rule, fd_import_match *m,
                           fd_error *err) {
    const fd_import_step *step = &plan->steps[m->step];
    char shape[128], text[256];
    bool alone = rule->axis == 0 && rule->rows == FD_NAME_MAP_ROWS_LAST && m->shape[m->axis] != step->n_pos;
    if (alone) return m->axis = -1, FD_OK; /* the first axis longer than 1 is the last row's own */
    if (is_long_enough(plan, rule, step, m->shape[m->axis])) return FD_OK;
    return fd_fail(err, FD_ERR_INPUT, "%s:%d: \"%s\": shape %s, expected %d tokens (step %d) along axis %d%s",
                   plan->map->name, rule->line, fd_source_at(plan->source, m->tensor)->name,
                   fd_array_shape_text(m->rank, m->shape, shape), step->n_pos, m->step, m->axis - m->rank,
                   cure(plan, m, text, sizeof text));
}

/* Do both lie alike? The same name in every step, and Q, K and V, which have heads of one length. */
static bool lies_alike(const fd_import_plan *plan, const fd_import_match *a, const fd_import_match *b) {
    if (strcmp(a->node, b->node) == 0) return a->rule == b->rule;
    const int32_t x = plan->graph ? fd_graph_find(plan->graph, a->node) : -1,
                  y = plan->graph ? fd_graph_find(plan->graph, b->node) : -1;
    if (x < 0 || y < 0 || fd_import_over_kv(a->node) || fd_import_over_kv(b->node)) return false;
    const fd_node *of = &plan->graph->nodes[x], *to = &plan->graph->nodes[y];
    return of->n_dim == 2 && to->n_dim == 2 && of->shape[1] == to->shape[1] &&
           plan->map->rules[a->rule].axis == plan->map->rules[b->rule].axis;
}

/* The axis of an array that lies alike, where one alone is as long as its step; -1. A cache's positions are more than the step's, and its heads
 * may be as wide as the step is long. */
static int axis_of_others(const fd_import_plan *plan, const fd_import_match *m, int end) {
    for (size_t i = 0; i < plan->n_match; i++) {
        const fd_import_match *other = &plan->matches[i];
        const fd_source_tensor *t = fd_source_at(plan->source, other->tensor);
        int n = 0, axis = -1;
        if (t->rank != m->rank || t->step < 0 || !lies_alike(plan, m, other)) continue;
        if (plan->map->rules[other->rule].rows == FD_NAME_MAP_ROWS_CACHE) continue;
        for (int k = 0; k < end; k++)
            if (t->shape[k] == plan->steps[other->step].n_pos) n++, axis = k;
        if (n == 1 && m->shape[axis] == plan->steps[m->step].n_pos) return axis;
    }
    return -1;
}

/* The rule's axis. Where that is not as long as the step, heads stand apart on the other side of the tokens than the rule's: the one axis that is
 * so long. Where several are (as many heads as tokens), other arrays say which. */
static int axis_of_rows(const fd_import_plan *plan, const fd_name_map_rule *rule, const fd_import_match *m) {
    const int32_t n_pos = plan->steps[m->step].n_pos;
    int n = 0, axis = m->axis, other;
    if (m->axis < 0 || rule->rows != FD_NAME_MAP_ROWS_ALL || node_elements(plan, m->node) * n_pos != elements(m))
        return axis;
    for (int i = 0; i < m->rank; i++)
        if (m->shape[i] == n_pos) n++, axis = i;
    if (n == 1 || (n > 1 && n_pos == 1 && m->shape[m->axis] != 1)) return axis;
    if (n > 1 && n_pos > 1 && rule->n_shape == 0 && (other = axis_of_others(plan, m, m->rank)) >= 0) return other;
    return m->axis;
}

fd_code fd_import_place(const fd_import_plan *plan, fd_import_match *m, fd_error *err) {
    const fd_name_map_rule *rule = &plan->map->rules[m->rule];
    const fd_source_tensor *t = fd_source_at(plan->source, m->tensor);
    const fd_import_step *step = &plan->steps[m->step];
    const bool cache = rule->rows == FD_NAME_MAP_ROWS_CACHE;
    m->rank = t->rank;
    memcpy(m->shape, t->shape, sizeof m->shape);
    if (t->step < 0) return m->axis = 0, FD_OK;
    if (fd_plan_place_saved(plan, m)) return FD_OK;
    if (fd_name_map_reshape(plan->map, rule, &plan->values, step->n_pos, &m->rank, m->shape, err) != FD_OK)
        return fd_error_prefix(err, "\"%s\" (step %d)", t->name, m->step);
    if (rule->has_axis) split_flat(plan, rule, m);
    m->axis = rule->has_axis ? fd_plan_rule_axis(rule, m->rank, m->shape) : -1;
    if (rule->has_axis) m->axis = axis_of_rows(plan, rule, m);
    if (m->axis >= 0 && (rule->axis < 0 || step->n_pos > 1 || cache)) return place_given(plan, rule, m, err);
    int n = 0, axis = -1;
    int end = m->rank - fd_import_over_kv(m->node); /* the last axis runs over the keys there */
    const int64_t width = cache ? node_elements(plan, m->node) : 0;
    for (int i = 0; i < end; i++) {
        bool fits =
            cache ? is_long_enough(plan, rule, step, m->shape[i]) && (!width || m->shape[i] * width == elements(m))
                  : m->shape[i] == step->n_pos;
        if (!fits || (n > 0 && step->n_pos == 1 && !cache)) continue;
        axis = i;
        n++;
    }
    if (n > 1 && !cache && rule->n_shape == 0 && (axis = axis_of_others(plan, m, end)) >= 0) n = 1;
    m->axis = n == 1 ? axis : -1; /* a single token needs no axis, and the last row alone has none */
    if (n == 1 || (n == 0 && !cache && (step->n_pos == 1 || rule->rows == FD_NAME_MAP_ROWS_LAST))) return FD_OK;
    char shape[128], text[256];
    return fd_fail(err, FD_ERR_INPUT, "%s:%d: \"%s\": shape %s, %s axis of %s%d tokens (step %d)%s", plan->map->name,
                   rule->line, t->name, fd_array_shape_text(m->rank, m->shape, shape), n ? "more than one" : "no",
                   cache ? "at least " : "", cache ? step->pos0 + step->n_pos : step->n_pos, m->step,
                   n && !width ? ": write axis=" : cure(plan, m, text, sizeof text));
}
