/* One position of one foreign tensor, as the map makes it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "dumpers/store/place.h"
#include "dumpers/import/import.h"
#include "dumpers/import/plan_internal.h"

bool fd_import_over_kv(const char *node) {
    const char *dot = strrchr(node, '.');
    return dot &&
           (strcmp(dot, ".attn_scores") == 0 || strcmp(dot, ".attn_alibi") == 0 || strcmp(dot, ".attn_weights") == 0);
}

void fd_import_row_shape(const fd_import_match *match, int *rank, int64_t *shape) {
    *rank = 0;
    for (int i = 0; i < match->rank; i++)
        if (i != match->axis && (match->shape[i] != 1 || *rank > 0)) shape[(*rank)++] = match->shape[i];
    const bool column = *rank == 2 && match->axis < 0 && shape[1] == 1 && !fd_import_over_kv(match->node);
    if (column) *rank = 1; /* the last token's row of an engine that has its tokens in columns */
    if (*rank == 0) shape[(*rank)++] = 1;
}

int64_t fd_import_keys_before(const fd_import_plan *plan, const fd_import_match *match, int64_t n_kv) {
    const fd_import_step *step = &plan->steps[match->step];
    const int64_t before = step->pos0 + step->n_pos - n_kv;
    int32_t id = plan->graph ? fd_graph_find(plan->graph, match->node) : -1;
    if (before <= 0 || id < 0) return 0;
    const fd_node *node = &plan->graph->nodes[id];
    const fd_node *scores = node->op == FD_OP_ATTN_SCORES ? node : &plan->graph->nodes[node->input[0]];
    return scores->op == FD_OP_ATTN_SCORES && before <= fd_node_first_seen(scores, step->pos0) ? before : 0;
}

static int64_t row_elements(const fd_import_match *match) {
    int64_t n = 1;
    for (int i = 0; i < match->rank; i++)
        if (i != match->axis) n *= match->shape[i];
    return n;
}

/* Which positions a file's rows are. */
static void place_rows(fd_import_rows *rows) {
    const fd_import_step *step = &rows->plan->steps[rows->match->step];
    int64_t length = rows->match->axis < 0 ? 1 : rows->match->shape[rows->match->axis];
    bool cache = rows->plan->map->rules[rows->match->rule].rows == FD_NAME_MAP_ROWS_CACHE;
    const bool window = cache && fd_plan_keeps_window(rows->plan->graph, step, length);
    rows->n = (cache && !window) || length > step->n_pos ? step->n_pos : (int32_t)length;
    rows->first = step->pos0 + step->n_pos - rows->n;
    rows->offset = window ? (int32_t)length - rows->n : cache ? rows->first : 0;
}

fd_array_type fd_import_words(fd_name_map_words words, const char *name, fd_array_type type) {
    bool halves = type == FD_ARRAY_U16 || type == FD_ARRAY_I16 || type == FD_ARRAY_BF16;
    if (halves && words != FD_NAME_MAP_WORDS_AS_FILE)
        return words == FD_NAME_MAP_WORDS_F16 ? FD_ARRAY_F16 : FD_ARRAY_BF16;
    return type == FD_ARRAY_U16 && strstr(name, "bf16") ? FD_ARRAY_BF16 : type;
}

fd_name_map_words fd_import_match_words(const fd_import_plan *plan, const fd_import_match *match) {
    const fd_name_map_words words = plan->map->rules[match->rule].words;
    const char *dot = strrchr(match->node, '.');
    const bool ids = dot && fd_ends_with(dot, "_topk"), said = words != FD_NAME_MAP_WORDS_AS_FILE;
    const bool words_of_16 = fd_source_at(plan->source, match->tensor)->type == FD_ARRAY_U16;
    return plan->map->builtin && words_of_16 && !said && !ids ? FD_NAME_MAP_WORDS_BF16 : words;
}

fd_code fd_import_rows_open(const fd_import_plan *plan, const fd_import_match *match, fd_import_rows *out,
                            fd_error *err) {
    const fd_source_tensor *tensor = fd_source_at(plan->source, match->tensor);
    *out = (fd_import_rows){.plan = plan, .match = match};
    size_t elements = (size_t)row_elements(match);
    out->data = malloc(sizeof(double) * (elements + 1));
    out->scratch = malloc(sizeof(double) * (elements + 1));
    fd_code code = out->data && out->scratch
                       ? FD_OK
                       : fd_fail(err, FD_ERR_MEMORY, "%s: no memory for a row of %zu elements", tensor->name, elements);
    if (code == FD_OK && tensor->step < 0) {
        out->first = tensor->first;
        out->n = (int32_t)tensor->shape[0] - tensor->first;
    } else if (code == FD_OK) {
        code = fd_source_view_open(plan->source, match->tensor, &out->view, err);
        out->view.array.type = fd_import_words(fd_import_match_words(plan, match), tensor->name, tensor->type);
        if (code == FD_OK && !fd_array_reshape(&out->view.array, match->rank, match->shape) &&
            plan->map->rules[match->rule].n_shape > 0)
            code = fd_fail(err, FD_ERR_INPUT, "%s:%d: \"%s\": shape= needs an array in row-major order",
                           plan->map->name, plan->map->rules[match->rule].line, tensor->name);
        place_rows(out);
    }
    if (code != FD_OK) fd_import_rows_close(out);
    return code;
}

void fd_import_rows_close(fd_import_rows *rows) {
    fd_source_view_close(&rows->view);
    free(rows->data);
    free(rows->scratch);
    rows->data = rows->scratch = NULL;
}

/* Engines pad a vocabulary to a multiple of their tiles or ranks. */
enum { LEAST_TILE = 8, MOST_PADDING = 1024 };

bool fd_import_is_row(const fd_graph *graph, int64_t n) {
    for (int32_t i = 0; graph && i < graph->n_node; i++)
        if (!graph->nodes[i].over_kv && fd_node_width(&graph->nodes[i]) == n) return true;
    return !graph;
}

bool fd_import_is_padded(const fd_graph *graph, const char *node, int64_t width) {
    const int64_t n_vocab = graph ? graph->hparams.n_vocab : 0;
    if (!graph || strcmp(node, graph->nodes[graph->n_node - 1].name) != 0) return false;
    return width > n_vocab && width < n_vocab + MOST_PADDING && width % LEAST_TILE == 0;
}

/* [first:end] after the name of the file's tensor (fd_build_weight_part). */
static bool rows_of(const fd_weight *w, int *n_name, int64_t *first, int64_t *end) {
    const char *bracket = strchr(w->name, '[');
    long long from, to;
    if (!bracket || sscanf(bracket, "[%lld:%lld]", &from, &to) != 2) return false;
    *n_name = (int)(bracket - w->name), *first = from, *end = to;
    return true;
}

fd_fused_place fd_import_rows_of_weight(const fd_graph *graph, const char *node) {
    const int32_t id = graph ? fd_graph_find(graph, node) : -1, own = id < 0 ? -1 : graph->nodes[id].weight[0];
    fd_fused_place place = {0};
    int n_name, n_other;
    int64_t first, end;
    if (own < 0 || own >= graph->n_weight || !rows_of(&graph->weights[own], &n_name, &place.first, &end)) return place;
    place.n = end - place.first;
    for (int32_t i = 0; i < graph->n_weight; i++) { /* the last of them ends where the matrix does */
        const fd_weight *w = &graph->weights[i];
        if (strncmp(w->name, graph->weights[own].name, (size_t)n_name + 1) != 0) continue; /* up to the bracket */
        if (rows_of(w, &n_other, &first, &end) && end > place.width) place.width = end;
    }
    return place;
}

fd_name_map_values fd_import_values_for(const fd_import_plan *plan, const fd_name_map_rule *rule, const char *node) {
    const fd_fused_part *part = fd_name_map_part(rule);
    fd_name_map_values values = plan->values;
    if (part && part->is == 'r') values.rows = fd_import_rows_of_weight(plan->graph, node);
    return values;
}

fd_code fd_import_apply(const fd_import_plan *plan, const fd_import_match *match, int *rank, int64_t *shape,
                        double **data, double **scratch, fd_error *err) {
    const fd_name_map_rule *rule = &plan->map->rules[match->rule];
    const fd_name_map_values values = fd_import_values_for(plan, rule, match->node);
    FD_TRY(fd_name_map_apply(plan->map, rule, &values, rank, shape, data, scratch, err));
    bool flat = *rank > 0;
    for (int i = 0; i + 1 < *rank; i++) flat &= shape[i] == 1;
    if (flat && fd_import_is_padded(plan->graph, match->node, shape[*rank - 1]))
        shape[*rank - 1] = plan->graph->hparams.n_vocab;
    return FD_OK;
}

bool fd_import_rows_has(const fd_import_rows *rows, int32_t pos) {
    const fd_trace *trace = fd_source_trace(rows->plan->source);
    const int32_t node = (int32_t)fd_source_at(rows->plan->source, rows->match->tensor)->file;
    return !trace || fd_trace_node_at(trace, node)->last_rows == 0 || fd_trace_holds(trace, node, pos);
}

fd_code fd_import_rows_read(fd_import_rows *rows, int32_t pos, int *rank, int64_t *shape, const double **data,
                            fd_error *err) {
    const fd_import_plan *plan = rows->plan;
    const fd_source_tensor *tensor = fd_source_at(plan->source, rows->match->tensor);
    fd_import_row_shape(rows->match, rank, shape);
    if (tensor->step < 0) {
        FD_TRY(fd_trace_read(fd_source_trace(plan->source), (int32_t)tensor->file, pos, NULL, rows->data, err));
        if (tensor->over_kv) shape[*rank - 1] = pos + 1; /* a row of a trace ends at its own position */
    } else if (rows->match->axis < 0) {
        fd_array_fetch(&rows->view.array, rows->data);
    } else {
        fd_array row = fd_array_at(&rows->view.array, rows->match->axis, rows->offset + pos - rows->first);
        fd_array_fetch(&row, rows->data);
    }
    FD_TRY(fd_import_apply(plan, rows->match, rank, shape, &rows->data, &rows->scratch, err));
    *data = rows->data;
    return FD_OK;
}
