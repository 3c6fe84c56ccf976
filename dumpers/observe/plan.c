/* Which nodes a trace keeps, and what of them. */
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/observe/writer.h"

fd_trace_options fd_trace_defaults(const char *path) {
    return (fd_trace_options){.path = path, .level = FD_TRACE_FULL, .layer_last = INT32_MAX, .step_last = INT32_MAX};
}

bool fd_trace_stores(const fd_trace_writer *writer, const fd_node *node, fd_trace_level level) {
    bool below = writer->plan.options.level < FD_TRACE_FULL; /* then `always` named it, for every step */
    return writer->plan.in_file[node->id] && (below || level == FD_TRACE_FULL);
}

/* No tensor's name has a comma. */
static bool one_matches(const char *globs, const char *name) {
    for (size_t size; *globs; globs += size + (globs[size] == ',')) {
        char glob[256];
        size = strcspn(globs, ",");
        if (size >= sizeof glob) continue; /* check_options has refused it */
        memcpy(glob, globs, size);
        glob[size] = '\0';
        if (fnmatch(glob, name, 0) == 0) return true;
    }
    return false;
}

bool fd_trace_selects(const fd_trace_options *options, const fd_node *node) {
    if (node->layer >= 0 && (node->layer < options->layer_first || node->layer > options->layer_last)) return false;
    return !options->tensors || one_matches(options->tensors, node->name);
}

static fd_code check_globs(const char *path, const char *what, const char *globs, fd_error *err) {
    for (; globs && *globs; globs += strcspn(globs, ",") + (strchr(globs, ',') != NULL))
        if (strcspn(globs, ",") > 255)
            return fd_fail(err, FD_ERR_INPUT, "%s: %s \"%.40s…\": a glob of more than 255 bytes", path, what, globs);
    return FD_OK;
}

fd_code fd_trace_check_options(const fd_trace_options *options, const fd_graph *graph, fd_numerics numerics,
                               fd_error *err) {
    if (!options->path || !options->path[0]) return fd_fail(err, FD_ERR_INPUT, "trace: no file name");
    if (options->file && (!options->group || !options->group[0]))
        return fd_fail(err, FD_ERR_INPUT, "%s: no name of a group", options->path);
    if (options->level < FD_TRACE_FINGERPRINT || options->level > FD_TRACE_FULL)
        return fd_fail(err, FD_ERR_INPUT, "%s: trace level %d, expected 0 to 2", options->path, (int)options->level);
    bool half = options->store == FD_F16 || options->store == FD_BF16;
    if (!half && options->store != FD_F32)
        return fd_fail(err, FD_ERR_INPUT, "%s: elements stored as type %u, expected F32, F16 or BF16", options->path,
                       options->store);
    if (half && numerics == FD_NUMERICS_F64)
        return fd_fail(err, FD_ERR_INPUT,
                       "%s: binary64 elements stored as %s would be rounded twice: leave --store out", options->path,
                       fd_dtype_get(options->store)->name);
    if (graph->n_node < 1) return fd_fail(err, FD_ERR_INPUT, "%s: the graph has no nodes", options->path);
    FD_TRY(check_globs(options->path, "tensors", options->tensors, err));
    return check_globs(options->path, "always", options->always, err);
}

bool fd_writer_plan_make(fd_writer_plan *plan, const fd_trace_options *options, const fd_graph *graph,
                         fd_numerics numerics) {
    size_t n_node = (size_t)graph->n_node;
    plan->options = *options;
    plan->graph = graph;
    plan->dtype = numerics == FD_NUMERICS_F64 ? FD_F64 : FD_F32;
    plan->stored = options->store == FD_F32 ? plan->dtype : options->store;
    plan->logits = fd_graph_find(graph, "logits");
    plan->heads = graph->hparams.n_layer > 0 && graph->hparams.n_head > 0;
    plan->path = strdup(options->path);
    plan->selected = calloc(n_node, sizeof *plan->selected);
    plan->in_file = calloc(n_node, sizeof *plan->in_file);
    if (!plan->path || !plan->selected || !plan->in_file) return false;
    for (size_t i = 0; i < n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        bool elements =
            options->level == FD_TRACE_FULL || (options->always && one_matches(options->always, node->name));
        plan->selected[i] = fd_trace_selects(options, node);
        plan->in_file[i] = plan->selected[i] && elements;
    }
    plan->options.path = plan->path;
    plan->options.tensors = plan->options.always = NULL; /* looked at, and the caller's */
    return true;
}

void fd_writer_plan_free(fd_writer_plan *plan) {
    free(plan->path);
    free(plan->selected);
    free(plan->in_file);
}
