#include "cli/arguments.h"
#include "cli/import/mapped_trace.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/temporary.h"

#define DIGITS "0123456789"

/* Names that differ in numbers alone, of one type and shape: they want one line of a map. */
typedef struct name_group {
    const fd_source_tensor *first;
    size_t n;
    uint32_t varies; /* bit i: the i-th number of the name */
} name_group;

/* Joins the name to the group when they differ in numbers alone; another step may have other shapes. */
static bool join_group(name_group *group, const fd_source_tensor *tensor) {
    const char *a = group->first->name, *b = tensor->name;
    uint32_t varies = 0;
    if (tensor->type != group->first->type || tensor->rank != group->first->rank ||
        (tensor->step == group->first->step &&
         memcmp(tensor->shape, group->first->shape, sizeof *tensor->shape * (size_t)tensor->rank) != 0))
        return false;
    for (int number = 0; *a || *b; number++) {
        size_t text = strcspn(a, DIGITS), digits = strspn(a + text, DIGITS), others = strspn(b + text, DIGITS);
        if (strncmp(a, b, text) != 0 || strcspn(b, DIGITS) != text || (digits == 0) != (others == 0)) return false;
        if (number < 32 && (digits != others || memcmp(a + text, b + text, digits) != 0)) varies |= 1u << number;
        a += text + digits;
        b += text + others;
    }
    group->varies |= varies;
    group->n++;
    return true;
}

/* As a map would name it: {layer} for the first number that varies, * for the others. */
static void put_pattern(FILE *to, const name_group *group) {
    const char *p = group->first->name, *put = "{layer}";
    for (int number = 0; *p; number++) {
        size_t text = strcspn(p, DIGITS), digits = strspn(p + text, DIGITS);
        bool varies = number < 32 && group->varies >> number & 1;
        fprintf(to, "%.*s%.*s", (int)text, p, varies ? 0 : (int)digits, p + text);
        if (varies) fputs(put, to), put = "*";
        p += text + digits;
    }
}

static void list_arrays(FILE *to, const char *what, const fd_source *source, const size_t *arrays, size_t n) {
    char shape[128];
    name_group *groups = calloc(n + 1, sizeof *groups);
    size_t n_group = 0;
    for (size_t i = 0; groups && i < n; i++) {
        const fd_source_tensor *tensor = fd_source_at(source, arrays[i]);
        size_t g = 0;
        while (g < n_group && !join_group(&groups[g], tensor)) g++;
        if (g == n_group) groups[n_group++] = (name_group){.first = tensor, .n = 1};
    }
    for (size_t g = 0; g < n_group; g++) {
        const fd_source_tensor *first = groups[g].first;
        fprintf(to, "%s  %s  %s %s", what, first->name, fd_array_type_name(first->type),
                fd_array_shape_text(first->rank, first->shape, shape));
        if (groups[g].n > 1) fprintf(to, "  and %zu like it: ", groups[g].n - 1);
        if (groups[g].n > 1) put_pattern(to, &groups[g]);
        fputc('\n', to);
    }
    free(groups);
}

fd_code fd_cli_prepare_source(fd_source *source, const fd_import_options *how, fd_error *err) {
    const char *what = fd_source_left_out(source);
    if (what) fprintf(stderr, "%s: left out: %s\n", fd_source_path(source), what);
    int32_t *tokens = NULL, n_token = how->n_token;
    size_t n_name = 0;
    if (!how->graph) return FD_OK;
    if (!how->tokens) FD_TRY(fd_source_tokens(source, &tokens, &n_token, err));
    free(tokens);
    FD_TRY(fd_source_unstack(source, how->graph, n_token, &n_name, err));
    if (n_name > 0)
        fprintf(stderr, "%s: %zu name%s all %d layers in one array: taken apart\n", fd_source_path(source), n_name,
                n_name == 1 ? " has" : "s have", how->graph->hparams.n_layer);
    FD_TRY(fd_source_read_inputs(source, how->graph, &n_name, err));
    if (n_name > 0)
        fprintf(stderr, "%s: its products are as wide as what they read: %zu names are of the modules' inputs\n",
                fd_source_path(source), n_name);
    return FD_OK;
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

/* Says of every node of `mapped` what the foreign trace, or the file, calls it. */
static void put_sources(const fd_import_plan *plan, fd_trace *mapped) {
    const fd_trace *from = fd_source_trace(plan->source);
    for (size_t i = 0; i < plan->n_match; i++) {
        int32_t node = fd_trace_find(mapped, plan->matches[i].node);
        const fd_source_tensor *tensor = fd_source_at(plan->source, plan->matches[i].tensor);
        if (node >= 0 && from) fd_trace_set_source(mapped, node, fd_trace_node_at(from, (int32_t)tensor->file)->name);
        if (node >= 0 && !from) fd_trace_set_saved_as(mapped, node, tensor->name);
    }
}

static void add_name(fd_cli_unmatched *to, const char *name) {
    const size_t at = strlen(to->names), room = sizeof to->names - at;
    const char *comma = to->n ? ", " : "";
    to->n++;
    if (at >= 4 && strcmp(to->names + at - strlen("…"), "…") == 0) return;
    if (strlen(comma) + strlen(name) + strlen(", …") < room)
        snprintf(to->names + at, room, "%s%s", comma, name);
    else
        snprintf(to->names + at, room, "%s…", comma);
}

/* Each name once, in whatever steps it stands. */
static void add_names(fd_cli_unmatched *to, const fd_source *source, const size_t *arrays, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const char *name = fd_source_at(source, arrays[i])->name;
        bool known = false;
        for (size_t k = 0; k < i && !known; k++) known = strcmp(name, fd_source_at(source, arrays[k])->name) == 0;
        if (!known) add_name(to, name);
    }
}

fd_code fd_cli_write_mapped(const fd_source *source, const fd_import_options *how, const char *path,
                            fd_cli_unmatched *unmatched, fd_trace **mapped, fd_error *err) {
    fd_import_plan plan;
    const char *from = fd_source_path(source);
    FD_TRY(fd_import_make_plan(source, how, &plan, err));
    fd_code code = fd_import_write(&plan, path, err);
    if (code == FD_OK) code = fd_trace_open(path, mapped, err);
    if (code == FD_OK) put_sources(&plan, *mapped);
    if (code == FD_OK && !fd_trace_set_path(*mapped, from))
        code = fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", from);
    add_names(unmatched, source, plan.unmatched, plan.n_unmatched);
    add_names(unmatched, plan.weight_source, plan.unmatched_weights, plan.n_unmatched_weight);
    for (size_t i = 0; unmatched->n == 0 && i < how->map->ask.n; i++) add_name(unmatched, how->map->ask.items[i]);
    if (plan.n_unmatched + plan.n_unmatched_weight + how->map->ask.n > 0) {
        fprintf(stderr, "%s: tensors that the map %s does not name:\n", from, how->map->name);
        fd_cli_list_unmatched(stderr, &plan);
    }
    fd_import_plan_free(&plan);
    return code;
}

void fd_cli_allow_absent(fd_cli_globs *globs, char *text) {
    char *rest;
    for (char *glob = strtok_r(text, " ", &rest); glob && globs->n < FD_CLI_MAX_GLOBS;
         glob = strtok_r(NULL, " ", &rest))
        globs->items[globs->n++] = glob;
}

fd_code fd_cli_map_trace(const char *map_name, const fd_graph *graph, fd_trace **trace, fd_cli_unmatched *unmatched,
                         fd_error *err) {
    const char *names = map_name ? map_name : fd_trace_get_info(*trace)->names;
    char path[4096];
    fd_name_map *map;
    fd_source *source = NULL;
    if (!names[0]) return FD_OK;
    if (!map_name) FD_TRY(fd_cli_check_names(fd_trace_path(*trace), names, err));
    FD_TRY(fd_name_map_open(names, &map, err));
    fd_code code = fd_source_open(fd_trace_path(*trace), &source, err);
    if (code == FD_OK) code = fd_cli_temporary(path, err);
    if (code == FD_OK) {
        fd_trace *mapped = NULL;
        code = fd_cli_write_mapped(source, &(fd_import_options){.map = map, .graph = graph}, path, unmatched, &mapped,
                                   err);
        unlink(path);
        fd_trace_close(code == FD_OK ? *trace : mapped);
        if (code == FD_OK) *trace = mapped;
    }
    fd_source_close(source);
    fd_name_map_free(map);
    return code;
}
