/* Arrays that a built-in map knows by name, saved otherwise than its engine has them: without dimensions, as fwrite of the floats and
 * reshape(-1) leave them, or the last token's row alone. How many elements there are says so. */
#include <string.h>

#include "dumpers/import/plan_internal.h"

static int64_t product(int rank, const int64_t *shape) {
    int64_t n = 1;
    for (int i = 0; i < rank; i++) n *= shape[i];
    return n;
}

static bool has_op(const fd_name_map_rule *rule, fd_name_map_op_kind kind) {
    for (int i = 0; i < rule->n_op; i++)
        if (rule->ops[i].kind == kind) return true;
    return false;
}

/* Is what the match has for a position a row of the node? */
static bool is_row(const fd_import_plan *plan, const fd_node *node, const fd_import_match *m) {
    int rank;
    int64_t shape[FD_ARRAY_MAX_RANK];
    fd_error ignored;
    fd_import_row_shape(m, &rank, shape);
    if (fd_import_apply(plan, m, &rank, shape, NULL, NULL, &ignored) != FD_OK) return false;
    return product(rank, shape) == fd_node_elements(node, 1);
}

/* All tokens' rows: logits of a small vocabulary are then no more elements than one row may have with its padding. */
static bool has_all_rows(const fd_node *node, const fd_import_match *m, int32_t n_pos) {
    return product(m->rank, m->shape) == fd_node_elements(node, 1) * n_pos;
}

static void lie(fd_import_match *m, int axis, int rank, const int64_t *shape) {
    m->axis = axis;
    m->rank = rank;
    memcpy(m->shape, shape, sizeof *shape * (size_t)rank);
}

/* Scores or weights of `rows` positions, one array after another of the axes that the rule counts. */
static bool lie_over_keys(const fd_import_plan *plan, const fd_node *node, const fd_name_map_rule *rule, int64_t rows,
                          fd_import_match *m) {
    const fd_import_step *step = &plan->steps[m->step];
    const int64_t heads = node->shape[0], keys = step->pos0 + step->n_pos;
    if (m->shape[0] != rows * heads * keys || rule->axis < -3) return false;
    if (rule->axis == -2)
        lie(m, 1, 3, (int64_t[]){heads, rows, keys});
    else
        lie(m, 0, 3, (int64_t[]){rows, heads, keys});
    return true;
}

/* Without heads= an array whose positions are the last axis but one has its heads before them. */
static bool lie_flat(const fd_import_plan *plan, const fd_node *node, const fd_name_map_rule *rule, int64_t rows,
                     fd_import_match *m) {
    const int64_t n = m->shape[0];
    const bool split = has_op(rule, FD_NAME_MAP_HEADS) || has_op(rule, FD_NAME_MAP_PART);
    if (node->over_kv) return lie_over_keys(plan, node, rule, rows, m);
    if (n % rows != 0) return false;
    if (rule->axis == -2 && !split && node->n_dim == 2 && node->shape[0] > 1)
        lie(m, 1, 3, (int64_t[]){node->shape[0], rows, n / rows / node->shape[0]});
    else
        lie(m, 0, 2, (int64_t[]){rows, n / rows});
    return is_row(plan, node, m);
}

bool fd_plan_place_saved(const fd_import_plan *plan, fd_import_match *m) {
    const fd_name_map_rule *rule = &plan->map->rules[m->rule];
    const int32_t id = plan->graph ? fd_graph_find(plan->graph, m->node) : -1, n_pos = plan->steps[m->step].n_pos;
    const bool known = plan->map->builtin && id >= 0 && rule->has_axis && rule->rows != FD_NAME_MAP_ROWS_CACHE;
    const fd_node *node = known ? &plan->graph->nodes[id] : NULL;
    const fd_import_match as_it_is = *m;
    const int axis = m->rank + rule->axis;
    if (!known || rule->axis >= 0 || m->rank == 0) return false;
    if (axis >= 0 && rule->n_shape == 0) {
        m->axis = axis;
        if (n_pos > 1 && m->shape[axis] == 1 && (node->over_kv || is_row(plan, node, m))) return true;
    } else if (n_pos > 1 && !node->over_kv &&
               !has_op(rule, FD_NAME_MAP_SLICE) && /* any array is as long as its slice */
               !has_all_rows(node, m, n_pos)) {
        m->axis = -1;
        if (is_row(plan, node, m)) return true;
    }
    if (as_it_is.rank == 1 && axis < 0 && rule->n_shape == 0)
        for (int64_t rows = n_pos;; rows = 1) {
            *m = as_it_is;
            if (lie_flat(plan, node, rule, rows, m)) return true;
            if (rows == 1) break;
        }
    *m = as_it_is;
    return false;
}
