/* Weights among foreign arrays: hashes of their rows, so that compare finds a loader's bug first (store/weights.h). */
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/plan_internal.h"
#include "dumpers/hdf5/h5.h"
#include "dumpers/store/weights.h"

/* ---- which array is which weight ---- */

static const fd_weight *find_weight(const fd_graph *graph, const char *name) {
    for (int32_t i = 0; graph && i < graph->n_weight; i++)
        if (strcmp(graph->weights[i].name, name) == 0) return &graph->weights[i];
    return NULL;
}

/* The GGUF's own name, whatever folders stand before it. */
static bool has_own_name(const fd_planner *p, const char *name, fd_import_weight *out) {
    static const char *const outside[] = {"token_embd.weight", "output_norm.weight", "output.weight", "output.bias"};
    const char *slash = strrchr(name, '/'), *own = slash ? slash + 1 : name;
    if (strlen(own) >= sizeof out->name || !fd_source_is_weight(own)) return false;
    bool known = p->plan->graph ? find_weight(p->plan->graph, own) != NULL : strncmp(own, "blk.", 4) == 0;
    for (size_t i = 0; !p->plan->graph && i < sizeof outside / sizeof *outside; i++)
        known = known || strcmp(own, outside[i]) == 0;
    strcpy(out->name, own);
    return known;
}

/* Of several rules for a weight the first that finds an array wins. */
static fd_code add_weight(fd_planner *p, const fd_import_weight *weight) {
    fd_import_plan *plan = p->plan;
    for (size_t i = 0; i < plan->n_weight; i++) {
        fd_import_weight *other = &plan->weights[i];
        if (strcmp(other->name, weight->name) != 0) continue;
        if (other->rule == weight->rule)
            return fd_fail(p->err, FD_ERR_INPUT, "two arrays are the weight %s: \"%s\" and \"%s\"", weight->name,
                           fd_source_at(plan->weight_source, other->tensor)->name,
                           fd_source_at(plan->weight_source, weight->tensor)->name);
        if (weight->rule < other->rule) *other = *weight;
        return FD_OK;
    }
    fd_import_weight *weights = realloc(plan->weights, (plan->n_weight + 1) * sizeof *weights);
    if (!weights) return fd_fail(p->err, FD_ERR_MEMORY, "import: out of memory");
    plan->weights = weights;
    weights[plan->n_weight++] = *weight;
    return FD_OK;
}

/* Every weight that the array is by a rule: Q, K and V may be one array; else the one that it is by its own name. */
static fd_code match_array(fd_planner *p, size_t tensor, bool *found) {
    const fd_name_map *map = p->plan->map;
    const char *name = fd_source_at(p->plan->weight_source, tensor)->name;
    const char *arch = p->plan->graph ? p->plan->graph->hparams.arch : NULL;
    fd_import_weight weight = {.tensor = tensor};
    bool claimed = false; /* by a rule with arch= */
    *found = false;
    for (; weight.rule < map->n_rule; weight.rule++) {
        const fd_name_map_rule *rule = &map->rules[weight.rule];
        fd_name_map_capture capture;
        if (!fd_name_map_is_for(rule, arch) || (!rule->archs && claimed)) continue;
        for (size_t i = 0; fd_source_is_weight(rule->node) && i < rule->n_source; i++) {
            if (!fd_name_map_matches(rule->sources[i].pattern, name, &capture) ||
                !fd_name_map_node(rule, &capture, weight.name, sizeof weight.name))
                continue;
            *found = true;
            claimed = claimed || rule->archs;
            FD_TRY(add_weight(p, &weight));
            break;
        }
    }
    if (*found || !has_own_name(p, name, &weight)) return FD_OK;
    *found = true;
    weight.rule = SIZE_MAX;
    return add_weight(p, &weight);
}

/* Of a source of their own all arrays are weights; next to activations those that have a weight's name or rule. */
fd_code fd_plan_weights(fd_planner *p) {
    fd_import_plan *plan = p->plan;
    const fd_source *given = p->options->weights;
    if (!given && fd_source_trace(plan->source)) return FD_OK;
    plan->weight_source = given ? given : plan->source;
    if (fd_source_trace(plan->weight_source))
        return fd_fail(p->err, FD_ERR_INPUT, "%s: a trace, expected arrays of weights", fd_source_path(given));
    size_t count = fd_source_count(plan->weight_source);
    plan->unmatched_weights = calloc(count + 1, sizeof *plan->unmatched_weights);
    if (!plan->unmatched_weights) return fd_fail(p->err, FD_ERR_MEMORY, "import: out of memory");
    for (size_t i = 0; i < count; i++) {
        bool found;
        FD_TRY(match_array(p, i, &found));
        if (found && !given) p->touched[i] = true;
        if (!found && given && !fd_plan_is_allowed(p, fd_source_at(given, i)->name))
            plan->unmatched_weights[plan->n_unmatched_weight++] = i;
    }
    return FD_OK;
}

/* ---- its rows ---- */

/* What a weight is while it is read. */
typedef struct reading {
    const fd_import_plan *plan;
    const fd_import_weight *weight;
    const fd_name_map_rule *rule; /* NULL: as it is */
    const char *from;             /* its name in the source */
    fd_source_view view;
    int rank;
    int64_t shape[FD_ARRAY_MAX_RANK]; /* after the rule's operations */
    int64_t n_row, n_col;
} reading;

/* Rows and columns of the result, which the model's must be. */
static fd_code find_size(reading *r, fd_error *err) {
    char text[128];
    const fd_import_plan *plan = r->plan;
    r->n_row = 1;
    r->n_col = r->rank ? r->shape[r->rank - 1] : 1;
    for (int i = 0; i + 1 < r->rank; i++)
        if (__builtin_mul_overflow(r->n_row, r->shape[i], &r->n_row)) r->n_row = 0;
    if (r->n_row < 1 || r->n_row > INT32_MAX || r->n_col < 1 || r->n_col > INT32_MAX)
        return fd_fail(err, FD_ERR_INPUT, "weight %s from \"%s\": shape %s, expected 1 to 2^31 - 1 rows and columns",
                       r->weight->name, r->from, fd_array_shape_text(r->rank, r->shape, text));
    const fd_weight *w = find_weight(plan->graph, r->weight->name);
    if (!plan->graph || (w && w->n_row == r->n_row && w->n_col == r->n_col)) return FD_OK;
    if (!w)
        return fd_fail(err, FD_ERR_INPUT, "\"%s\" is mapped to the weight %s, which the model does not have", r->from,
                       r->weight->name);
    return fd_fail(err, FD_ERR_INPUT, "weight %s from \"%s\": shape %s, the model has [%lld, %lld]%s", r->weight->name,
                   r->from, fd_array_shape_text(r->rank, r->shape, text), (long long)w->n_row, (long long)w->n_col,
                   w->n_row == r->n_col && w->n_col == r->n_row ? ": write transpose" : " (another model?)");
}

static void add_row(fd_row_hasher *hasher, const double *row, float *narrow) {
    for (int64_t c = 0; c < hasher->rows.n_col; c++) narrow[c] = (float)row[c];
    fd_row_hasher_add(hasher, narrow);
}

/* Without operations a row is read at a time, else the whole. */
static fd_code hash_rows(reading *r, fd_row_hasher *hasher, fd_error *err) {
    const fd_array *array = &r->view.array;
    const bool by_rows = !(r->rule && r->rule->n_op > 0) && array->rank == 2;
    size_t n = 1; /* before the operations: a slice leaves less */
    for (int i = by_rows; i < array->rank; i++) n *= (size_t)array->shape[i];
    const size_t bytes = n * sizeof(double);
    double *data = malloc(bytes), *scratch = by_rows ? NULL : malloc(bytes);
    float *narrow = malloc((size_t)r->n_col * sizeof *narrow);
    fd_code code = FD_OK;
    if (!data || !narrow || !(scratch || by_rows))
        code = fd_fail(err, FD_ERR_MEMORY, "weight %s: no memory for %zu elements", r->weight->name, n);
    for (int64_t i = 0; code == FD_OK && by_rows && i < r->n_row; i++) {
        fd_array row = fd_array_at(array, 0, i);
        fd_array_fetch(&row, data);
        add_row(hasher, data, narrow);
    }
    if (code == FD_OK && !by_rows) {
        int rank = array->rank;
        int64_t shape[FD_ARRAY_MAX_RANK];
        memcpy(shape, array->shape, sizeof shape);
        fd_array_fetch(array, data);
        if (r->rule)
            code = fd_name_map_apply(r->plan->map, r->rule, &r->plan->values, &rank, shape, &data, &scratch, err);
        for (int64_t i = 0; code == FD_OK && i < r->n_row; i++) add_row(hasher, data + i * r->n_col, narrow);
    }
    free(data);
    free(scratch);
    free(narrow);
    return code;
}

static fd_code hash_opened(reading *r, fd_weight_rows *out, fd_error *err) {
    fd_array *array = &r->view.array;
    static const char *const names[FD_ARRAY_TYPE_COUNT] = {
        [FD_ARRAY_F16] = "F16", [FD_ARRAY_BF16] = "BF16", [FD_ARRAY_F32] = "F32", [FD_ARRAY_F64] = "F64"};
    array->type = fd_import_words(r->rule ? r->rule->words : FD_NAME_MAP_WORDS_AS_FILE, r->from, array->type);
    if (!names[array->type])
        return fd_fail(err, FD_ERR_INPUT, "weight %s from \"%s\": %s, expected floats: dequantised rows",
                       r->weight->name, r->from, fd_array_type_name(array->type));
    r->rank = array->rank;
    memcpy(r->shape, array->shape, sizeof r->shape);
    if (r->rule)
        FD_TRY(fd_name_map_apply(r->plan->map, r->rule, &r->plan->values, &r->rank, r->shape, NULL, NULL, err));
    FD_TRY(find_size(r, err));
    fd_row_hasher hasher;
    FD_TRY(fd_row_hasher_begin(&hasher, r->weight->name, names[array->type], r->n_row, r->n_col, err));
    fd_code code = hash_rows(r, &hasher, err);
    if (code == FD_OK)
        *out = fd_row_hasher_end(&hasher);
    else
        fd_row_hasher_abandon(&hasher);
    return code;
}

static fd_code write_weight(const fd_import_plan *plan, size_t i, hid_t group, fd_error *err) {
    const fd_import_weight *w = &plan->weights[i];
    reading r = {.plan = plan, .weight = w, .from = fd_source_at(plan->weight_source, w->tensor)->name};
    fd_weight_rows rows;
    if (w->rule != SIZE_MAX) r.rule = &plan->map->rules[w->rule];
    FD_TRY(fd_source_view_open(plan->weight_source, w->tensor, &r.view, err));
    fd_code code = hash_opened(&r, &rows, err);
    fd_source_view_close(&r.view);
    if (code != FD_OK) return code;
    if (!fd_weight_put(group, &rows, (int32_t)i))
        code = fd_h5_fail(err, FD_ERR_IO, "weight %s: cannot be written", w->name);
    fd_weight_rows_free(&rows);
    return code;
}

/* Those that a foreign trace already holds. */
static fd_code copy_weights(const fd_import_plan *plan, hid_t group, fd_error *err) {
    fd_weight_table table;
    FD_TRY(fd_trace_read_weights(fd_source_trace(plan->source), &table, err));
    bool ok = true;
    for (int32_t i = 0; ok && i < table.n; i++) ok = fd_weight_put(group, &table.rows[i], i);
    fd_weight_table_free(&table);
    return ok ? FD_OK : fd_h5_fail(err, FD_ERR_IO, "weights: cannot be written");
}

fd_code fd_import_write_weights(const fd_import_plan *plan, hid_t file, fd_error *err) {
    bool traced = fd_source_trace(plan->source) != NULL;
    if (plan->n_weight == 0 && !traced) return FD_OK;
    hid_t group = fd_weights_group(file);
    fd_code code = group >= 0 ? FD_OK : fd_h5_fail(err, FD_ERR_IO, "weights: cannot be created");
    if (code == FD_OK && traced) code = copy_weights(plan, group, err);
    for (size_t i = 0; code == FD_OK && i < plan->n_weight; i++) code = write_weight(plan, i, group, err);
    fd_h5_release(group);
    return code;
}
