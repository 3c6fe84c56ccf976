#include "cli/arguments.h"
#include "cli/import/mapped_trace.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/temporary.h"

static void list_arrays(FILE *to, const char *what, const fd_source *source, const size_t *arrays, size_t n) {
    char shape[128];
    for (size_t i = 0; i < n; i++) {
        const fd_source_tensor *tensor = fd_source_at(source, arrays[i]);
        fprintf(to, "%s  %s  %s %s\n", what, tensor->name, fd_array_type_name(tensor->type),
                fd_array_shape_text(tensor->rank, tensor->shape, shape));
    }
}

void fd_cli_list_unmatched(FILE *to, const fd_import_plan *plan) {
    list_arrays(to, "unmatched", plan->source, plan->unmatched, plan->n_unmatched);
    list_arrays(to, "unmatched weight", plan->weight_source, plan->unmatched_weights, plan->n_unmatched_weight);
    for (size_t i = 0; i < plan->n_allowed; i++)
        fprintf(to, "allowed    %s\n", fd_source_at(plan->source, plan->allowed[i])->name);
    for (size_t i = 0; i < plan->map->ask.n; i++) fprintf(to, "undecided  %s\n", plan->map->ask.items[i]);
}

fd_code fd_cli_check_names(const char *path, const char *names, fd_error *err) {
    size_t size;
    if (fd_name_map_builtin(names, &size)) return FD_OK;
    return fd_fail(err, FD_ERR_INPUT, "%s: its attribute names is \"%s\", which is not a built-in map: give --map",
                   path, names);
}

/* Says of every node of `mapped` what the foreign trace calls it, and that it lies in that trace's file. */
static fd_code put_sources(const fd_import_plan *plan, fd_trace *mapped, fd_error *err) {
    const fd_trace *from = fd_source_trace(plan->source);
    for (size_t i = 0; i < plan->n_match; i++) {
        int32_t node = fd_trace_find(mapped, plan->matches[i].node);
        size_t tensor = plan->matches[i].tensor;
        if (node >= 0)
            fd_trace_set_source(mapped, node,
                                fd_trace_node_at(from, (int32_t)fd_source_at(plan->source, tensor)->file)->name);
    }
    if (fd_trace_set_path(mapped, fd_trace_path(from))) return FD_OK;
    return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", fd_trace_path(from));
}

/* Writes the mapped trace to the temporary file `to` and opens it. */
static fd_code write_mapped(const char *from, const fd_name_map *map, const fd_graph *graph, const char *to,
                            size_t *n_unmatched, fd_trace **mapped, fd_error *err) {
    fd_source *source;
    fd_import_plan plan;
    FD_TRY(fd_source_open(from, &source, err));
    fd_code code = fd_import_make_plan(source, &(fd_import_options){.map = map, .graph = graph}, &plan, err);
    if (code == FD_OK) {
        code = fd_import_write(&plan, to, err);
        if (code == FD_OK) code = fd_trace_open(to, mapped, err);
        if (code == FD_OK) code = put_sources(&plan, *mapped, err);
        *n_unmatched += plan.n_unmatched + map->ask.n;
        if (plan.n_unmatched + map->ask.n > 0) {
            fprintf(stderr, "%s: tensors that the map %s does not name:\n", from, map->name);
            fd_cli_list_unmatched(stderr, &plan);
        }
        fd_import_plan_free(&plan);
    }
    fd_source_close(source);
    return code;
}

void fd_cli_allow_absent(fd_cli_globs *globs, char *text) {
    char *rest;
    for (char *glob = strtok_r(text, " ", &rest); glob && globs->n < FD_CLI_MAX_GLOBS;
         glob = strtok_r(NULL, " ", &rest))
        globs->items[globs->n++] = glob;
}

fd_code fd_cli_map_trace(const char *map_name, const fd_graph *graph, fd_trace **trace, size_t *n_unmatched,
                         fd_error *err) {
    const char *names = map_name ? map_name : fd_trace_get_info(*trace)->names;
    char path[4096];
    fd_name_map *map;
    if (!names[0]) return FD_OK;
    if (!map_name) FD_TRY(fd_cli_check_names(fd_trace_path(*trace), names, err));
    FD_TRY(fd_name_map_open(names, &map, err));
    fd_code code = fd_cli_temporary(path, err);
    if (code == FD_OK) {
        fd_trace *mapped = NULL;
        code = write_mapped(fd_trace_path(*trace), map, graph, path, n_unmatched, &mapped, err);
        unlink(path);
        if (code == FD_OK) {
            fd_trace_close(*trace);
            *trace = mapped;
        } else {
            fd_trace_close(mapped);
        }
    }
    fd_name_map_free(map);
    return code;
}
