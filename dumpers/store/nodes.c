/* Which tensors a trace has: from /graph when it is there, else made up from the datasets of /tensors. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/limits.h"
#include "base/text.h"
#include "dumpers/store/reader.h"

enum { LARGE_POSITION = 64 << 20 }; /* bytes of a position; what is smaller may be all zeros */

static fd_code take_last_rows(const fd_trace *trace, fd_trace_node *node, fd_h5_attribute last_rows, fd_error *err) {
    if (last_rows.found == FD_H5_ABSENT) return FD_OK;
    if (last_rows.found == FD_H5_WRONG || last_rows.value < 1 || last_rows.value > INT32_MAX)
        return fd_fail(err, FD_ERR_INPUT, "%s: tensors/%s: last_rows %lld, expected 1 or more", trace->path, node->name,
                       (long long)last_rows.value);
    node->last_rows = (int32_t)last_rows.value;
    return FD_OK;
}

/* Rows against positions: as many as /tokens has, unless first_position says otherwise or the run was cut off: then
 * rows of the step that it was cut off in lie beyond the last position and are never read. */
static fd_code check_rows(const fd_trace *trace, fd_trace_node *node, const fd_h5_object *object, fd_trace_set *set,
                          fd_error *err) {
    int64_t first = object->first_position.value, rows = (int64_t)set->shape.dim[0];
    char text[128];
    fd_h5_found found = object->first_position.found;
    if (found == FD_H5_WRONG || first < 0 || first > (trace->info.complete ? trace->n_pos : INT32_MAX))
        return fd_fail(err, FD_ERR_INPUT, "%s: tensors/%s: first_position %lld, expected 0 to %d", trace->path,
                       node->name, (long long)first, trace->n_pos);
    set->first = (int32_t)first;
    FD_TRY(take_last_rows(trace, node, object->last_rows, err));
    bool fits = set->shape.dim[0] <= INT32_MAX && first + rows <= trace->n_pos;
    if (found == FD_H5_ABSENT && trace->info.complete) fits = set->shape.dim[0] == (hsize_t)trace->n_pos;
    if (!fits && trace->info.complete)
        return fd_fail(err, FD_ERR_INPUT, "%s: tensors/%s: shape %s has %lld positions, expected %lld (as /tokens)",
                       trace->path, node->name, fd_h5_shape_text(&set->shape, text), (long long)rows,
                       (long long)(trace->n_pos - first));
    hsize_t n_kv = set->shape.dim[set->shape.rank - 1];
    if (node->over_kv && (set->shape.rank < 3 || (trace->info.complete && n_kv < (hsize_t)(first + rows))))
        return fd_fail(err, FD_ERR_INPUT,
                       "%s: tensors/%s: shape %s, expected [n_pos, n_head, n_kv] with n_kv at least %lld", trace->path,
                       node->name, fd_h5_shape_text(&set->shape, text), (long long)(first + rows));
    return FD_OK;
}

/* Takes tensors/NAME into node and `set`: dtype, has_data and, for a node without /graph, its shape. */
static fd_code take_tensor(const fd_trace *trace, const fd_h5_object *object, fd_trace_node *node, fd_trace_set *set,
                           bool shaped, fd_error *err) {
    node->dtype = set->dtype;
    char text[128];
    bool same = !shaped || node->n_dim == set->shape.rank - 1;
    int64_t elements = 1;
    for (int i = 0; i < set->shape.rank - 1; i++) {
        hsize_t dim = set->shape.dim[1 + i];
        bool along_kv = node->over_kv && i == set->shape.rank - 2;
        bool empty = dim == 0 && !(along_kv && set->shape.dim[0] == 0);
        if (empty || dim > INT32_MAX || (elements *= dim ? (int64_t)dim : 1) > INT32_MAX)
            return fd_fail(err, FD_ERR_INPUT, "%s: tensors/%s: shape %s, expected 1 to 2^31-1 elements a position",
                           trace->path, node->name, fd_h5_shape_text(&set->shape, text));
        if (shaped && same && !along_kv) same = node->shape[i] == (int32_t)dim;
        if (!shaped) node->shape[i] = along_kv ? 0 : (int32_t)dim;
    }
    if (!same)
        return fd_fail(err, FD_ERR_INPUT,
                       "%s: tensors/%s: shape %s, expected [n_pos, ...] with %d dimensions as in /graph", trace->path,
                       node->name, fd_h5_shape_text(&set->shape, text), 1 + node->n_dim);
    uint64_t bytes = (uint64_t)elements * fd_element_bytes(set->dtype), size = fd_h5_reader_size(trace->reader);
    if (bytes > LARGE_POSITION && bytes / (uint64_t)fd_limit_of(FD_LIMIT_INFLATION) > size)
        return fd_limit_exceeded(err, FD_LIMIT_INFLATION, "%s: tensors/%s: %llu bytes a position, in a file of %llu",
                                 trace->path, node->name, (unsigned long long)bytes, (unsigned long long)size);
    if (!shaped) node->n_dim = set->shape.rank - 1;
    FD_TRY(check_rows(trace, node, object, set, err));
    char path[FD_TRACE_PATH];
    node->has_data =
        trace->has_graph || (set->placed ? fd_trace_any_chunk(trace, set)
                                         : fd_h5_reader_stored(trace->reader, fd_tensor_path(node->name, path)) > 0);
    node->partial = node->has_data && strcmp(node->name, trace->info.partial) == 0;
    node->has_data = node->has_data && !node->partial;
    return FD_OK;
}

/* ---- a trace with /graph ---- */

static void end_text(fd_graph_row *row) { /* a full-width field comes without its NUL */
    char *const fields[] = {row->name, row->op, row->input[0], row->input[1], row->dtype};
    const size_t sizes[] = {sizeof row->name, sizeof row->op, sizeof row->input[0], sizeof row->input[1],
                            sizeof row->dtype};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) fields[i][sizes[i] - 1] = '\0';
}

static fd_code take_row(const fd_trace *trace, int32_t i, fd_graph_row *row, fd_trace_node *node, fd_error *err) {
    end_text(row);
    int dtype = row->dtype[0] ? fd_dtype_parse(row->dtype) : FD_F32;
    if (!row->name[0] || row->n_dim < 1 || row->n_dim > 4 ||
        (dtype != FD_F32 && dtype != FD_F64 && dtype != FD_F16 && dtype != FD_BF16))
        return fd_fail(err, FD_ERR_INPUT, "%s: graph row %d: name \"%s\", %d dimensions, dtype \"%s\"", trace->path, i,
                       row->name, row->n_dim, row->dtype);
    if (i > 0 && row->seq <= trace->nodes[i - 1].seq)
        return fd_fail(err, FD_ERR_INPUT, "%s: graph row %d (%s): seq %d after %d, expected rising", trace->path, i,
                       row->name, row->seq, trace->nodes[i - 1].seq);
    node->seq = row->seq;
    snprintf(node->name, sizeof node->name, "%s", row->name);
    snprintf(node->op, sizeof node->op, "%s", row->op);
    snprintf(node->params, sizeof node->params, "%s", row->params);
    for (int k = 0; k < 2; k++) snprintf(node->inputs[k], sizeof node->inputs[k], "%s", row->input[k]);
    node->layer = row->layer;
    node->n_dim = row->n_dim;
    node->over_kv = row->over_kv != 0;
    node->dtype = (uint32_t)dtype;
    int64_t elements = 1;
    for (int k = 0; k < row->n_dim; k++) {
        bool along_kv = node->over_kv && k == row->n_dim - 1;
        if (!along_kv && (row->shape[k] < 1 || (elements *= row->shape[k]) > INT32_MAX))
            return fd_fail(err, FD_ERR_INPUT, "%s: graph row %d (%s): dimension %d is %d", trace->path, i, row->name, k,
                           row->shape[k]);
        node->shape[k] = along_kv ? 0 : row->shape[k];
    }
    return FD_OK;
}

static fd_code read_graph(fd_trace *trace, fd_error *err) {
    fd_h5_dataset set;
    bool ok = fd_h5_reader_dataset(trace->reader, "graph", &set) && set.has_names && set.simple && set.shape.rank == 1;
    if (ok && set.shape.dim[0] > (hsize_t)fd_limit_of(FD_LIMIT_NODES))
        return fd_limit_exceeded(err, FD_LIMIT_NODES, "%s: graph: %llu nodes", trace->path,
                                 (unsigned long long)set.shape.dim[0]);
    trace->n_node = ok ? (int32_t)set.shape.dim[0] : 0;
    size_t n = (size_t)trace->n_node + 1;
    fd_graph_row *rows = calloc(n, sizeof *rows);
    trace->nodes = calloc(n, sizeof *trace->nodes);
    fd_code code =
        ok ? FD_OK : fd_fail(err, FD_ERR_INPUT, "%s: graph: expected a table of nodes with a column name", trace->path);
    if (!rows || !trace->nodes) code = fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", trace->path);
    for (size_t i = 0; code == FD_OK && i < n; i++) {
        rows[i].seq = (int32_t)i;
        rows[i].layer = -1;
    }
    fd_h5_block block = {"graph", &fd_graph_row_type, set.shape, {.rank = 1}, set.shape};
    if (code == FD_OK && !fd_h5_reader_rows(trace->reader, &block, rows))
        code = fd_h5_reader_fail(trace->reader, err, FD_ERR_INPUT, "%s: graph", trace->path);
    for (int32_t i = 0; code == FD_OK && i < trace->n_node; i++)
        code = take_row(trace, i, &rows[i], &trace->nodes[i], err);
    free(rows);
    return code;
}

/* ---- names ---- */

typedef struct named {
    const char *name;
    int32_t at;
} named;

static int by_name(const void *a, const void *b) {
    return strcmp(((const named *)a)->name, ((const named *)b)->name);
}

/* Fills names [n_node] in order of name. Foreign traces often list their nodes so. */
static void sort_named(const fd_trace *trace, named *names) {
    size_t n = (size_t)trace->n_node;
    bool sorted = true;
    for (size_t i = 0; i < n; i++) {
        names[i] = (named){trace->nodes[i].name, (int32_t)i};
        sorted = sorted && (i == 0 || by_name(&names[i - 1], &names[i]) < 0);
    }
    if (!sorted) qsort(names, n, sizeof *names, by_name);
}

/* Opens what /tensors has of the graph's nodes; a dataset that is no node is refused, and so is a name given twice. */
static fd_code match_graph(fd_trace *trace, fd_trace_links *links, fd_error *err) {
    size_t n = (size_t)trace->n_node;
    named *names = malloc((n + 1) * sizeof *names);
    if (!names) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", trace->path);
    fd_code code = FD_OK;
    sort_named(trace, names);
    for (size_t i = 1; code == FD_OK && i < n; i++)
        if (by_name(&names[i - 1], &names[i]) == 0)
            code = fd_fail(err, FD_ERR_INPUT, "%s: graph: two nodes are named %s", trace->path, names[i].name);
    for (size_t i = 0; code == FD_OK && i < links->n; i++) {
        const char *name = links->links[i].name;
        named key = {name, 0}, *found = bsearch(&key, names, n, sizeof *names, by_name);
        fd_trace_set *set = found ? &trace->sets[found->at] : NULL;
        fd_h5_object object;
        code = found ? fd_trace_set_describe(trace, links, i, set, &object, err)
                     : fd_fail(err, FD_ERR_INPUT, "%s: tensors/%s: not a node of /graph", trace->path, name);
        if (code == FD_OK) code = take_tensor(trace, &object, &trace->nodes[found->at], set, true, err);
    }
    free(names);
    return code;
}

static fd_code make_node(const fd_trace *trace, fd_trace_links *links, size_t i, fd_error *err) {
    const char *name = links->links[i].name;
    fd_trace_node *node = &trace->nodes[i];
    fd_trace_set *set = &trace->sets[i];
    fd_h5_object object;
    if (strlen(name) >= sizeof node->name)
        return fd_fail(err, FD_ERR_INPUT, "%s: tensors/%s: a name of %zu bytes, expected at most %zu", trace->path,
                       name, strlen(name), sizeof node->name - 1);
    strcpy(node->name, name);
    node->layer = fd_layer_of_name(name);
    node->seq = -1;
    node->over_kv =
        fd_ends_with(name, ".attn_scores") || fd_ends_with(name, ".attn_alibi") || fd_ends_with(name, ".attn_weights");
    FD_TRY(fd_trace_set_describe(trace, links, i, set, &object, err));
    const fd_h5_attribute *seq = &object.seq, *layer = &object.layer;
    if (object.over_kv.found == FD_H5_FOUND) node->over_kv = object.over_kv.value != 0;
    if (seq->found == FD_H5_FOUND && seq->value >= 0 && seq->value < INT32_MAX) node->seq = (int32_t)seq->value;
    if (layer->found == FD_H5_FOUND && layer->value >= 0 && layer->value < INT32_MAX && node->layer < 0)
        node->layer = (int32_t)layer->value;
    if (object.op.text[0]) snprintf(node->op, sizeof node->op, "%s", object.op.text);
    return take_tensor(trace, &object, node, set, false, err);
}

static fd_code make_nodes(fd_trace *trace, fd_trace_links *links, fd_error *err) {
    for (size_t i = 0; i < links->n; i++) FD_TRY(make_node(trace, links, i, err));
    return fd_trace_order(trace->nodes, trace->sets, trace->n_node, err);
}

/* calloc, in large pages where the system has them: a list of tens of thousands of nodes takes thousands of faults. */
static void *make_list(size_t n, size_t each) {
    enum { LARGE = 1 << 21 };
    char *list = calloc(n, each);
    if (!list || n * each < 2 * LARGE) return list;
    size_t before = (size_t)(-(uintptr_t)list & (LARGE - 1));                                /* to the first boundary */
    (void)madvise(list + before, (n * each - before) & ~(size_t)(LARGE - 1), MADV_HUGEPAGE); /* refused: small pages */
    return list;
}

static fd_code load_tensors(fd_trace *trace, fd_trace_links *links, fd_error *err) {
    if (!trace->has_graph) {
        trace->n_node = (int32_t)links->n;
        trace->nodes = make_list(links->n + 1, sizeof *trace->nodes);
    }
    trace->sets = make_list((size_t)trace->n_node + 1, sizeof *trace->sets);
    if (!trace->nodes || !trace->sets) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", trace->path);
    return trace->has_graph ? match_graph(trace, links, err) : make_nodes(trace, links, err);
}

static fd_code sort_names(fd_trace *trace, fd_error *err) {
    size_t n = (size_t)trace->n_node;
    named *names = malloc((n + 1) * sizeof *names);
    trace->by_name = malloc((n + 1) * sizeof *trace->by_name);
    if (names) sort_named(trace, names);
    for (size_t i = 0; names && trace->by_name && i < n; i++) trace->by_name[i] = names[i].at;
    fd_code code = names && trace->by_name ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", trace->path);
    free(names);
    return code;
}

static int by_address(const void *a, const void *b) {
    const fd_h5_link *x = a, *y = b;
    if (x->address != y->address) return x->address < y->address ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* From the order of names into that of headers in the file: several come with one read, and datasets were made in the
 * order of execution as a rule, so that no other is left to be found. */
static void sort_links(const fd_trace_links *links) {
    bool sorted = true;
    for (size_t i = 1; sorted && i < links->n; i++) sorted = links->links[i - 1].address < links->links[i].address;
    if (!sorted) qsort(links->links, links->n, sizeof *links->links, by_address);
}

/* Hard links make many tensors of one in no room. */
static fd_code check_names(const fd_trace *trace, const fd_trace_links *links, fd_error *err) {
    const size_t limit = (size_t)fd_limit_of(FD_LIMIT_NAMES);
    const fd_h5_link *l = links->links;
    for (size_t i = limit; i < links->n; i++)
        if (l[i].address == l[i - limit].address && l[i].address != FD_H5_NOWHERE)
            return fd_limit_exceeded(err, FD_LIMIT_NAMES, "%s: tensors/%s: has more than %zu names", trace->path,
                                     l[i - limit].name, limit);
    return FD_OK;
}

fd_code fd_trace_load_nodes(fd_trace *trace, fd_error *err) {
    trace->has_graph = fd_h5_reader_has(trace->reader, "graph");
    if (trace->has_graph) FD_TRY(read_graph(trace, err));
    bool has_tensors = fd_h5_reader_has(trace->reader, "tensors");
    size_t limit = (size_t)fd_limit_of(FD_LIMIT_NODES);
    fd_trace_links links = {0};
    if (has_tensors) links.links = fd_h5_reader_links(trace->reader, "tensors", limit, &links.n);
    fd_code code;
    sort_links(&links);
    if (links.links || (trace->has_graph && !has_tensors))
        code = check_names(trace, &links, err);
    else
        code = fd_fail(err, FD_ERR_INPUT, "%s: no group /tensors, expected one with a dataset for each tensor",
                       trace->path);
    if (code == FD_OK) code = load_tensors(trace, &links, err);
    free(links.links);
    return code == FD_OK ? sort_names(trace, err) : code;
}
