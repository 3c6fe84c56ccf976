/* What an imported trace says of itself. */
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "dumpers/import/import.h"
#include "dumpers/import/ranks/ranks.h"
#include "dumpers/store/datasets.h"

/* Of a + b + c, the sum that only another sum reads: an engine may add in another order. */
static bool is_inner_sum(const fd_graph *graph, int32_t id) {
    bool read = false;
    if (graph->nodes[id].op != FD_OP_ADD) return false;
    for (int32_t i = id + 1; i < graph->n_node; i++)
        for (int k = 0; k < FD_MAX_INPUTS; k++) {
            if (graph->nodes[i].input[k] != id) continue;
            if (graph->nodes[i].op != FD_OP_ADD) return false;
            read = true;
        }
    return read;
}

static bool is_of_model(const fd_import_plan *plan, const char *glob) {
    for (int32_t i = 0; plan->graph && i < plan->graph->n_node; i++)
        if (fnmatch(glob, plan->graph->nodes[i].name, 0) == 0) return true;
    return !plan->graph;
}

static bool is_there(const fd_source *source, const char *pattern) {
    fd_name_map_capture unused;
    for (size_t i = 0; i < fd_source_count(source); i++)
        if (fd_name_map_matches(pattern, fd_source_at(source, i)->name, &unused)) return true;
    return pattern[0] == '\0';
}

/* Nodes that the engine cannot have, as globs: what the map says, and inner sums. False when they do not fit. */
static bool put_absent(const fd_import_plan *plan, char *out, size_t size) {
    size_t at = strlen(out);
    for (size_t i = 0; i < plan->map->absent.n; i++) {
        if (!is_of_model(plan, plan->map->absent.items[i])) continue;
        if (!is_there(plan->source, plan->map->absent_with.items[i])) continue;
        int n = snprintf(out + at, size - at, "%s%s", at ? " " : "", plan->map->absent.items[i]);
        if (n < 0 || (size_t)n >= size - at) return false;
        at += (size_t)n;
    }
    for (int32_t i = 0; plan->graph && i < plan->graph->n_node; i++) {
        const char *name = plan->graph->nodes[i].name, *dot = strrchr(name, '.');
        char glob[80];
        if (!is_inner_sum(plan->graph, i)) continue;
        snprintf(glob, sizeof glob, "%s%s", dot ? "blk.*" : "", dot ? dot : name);
        if (strstr(out, glob)) continue;
        int n = snprintf(out + at, size - at, "%s%s", at ? " " : "", glob);
        if (n < 0 || (size_t)n >= size - at) return false;
        at += (size_t)n;
    }
    return true;
}

/* What a trace said of itself is kept; files say nothing. */
bool fd_import_put_info(const fd_import_plan *plan, hid_t file) {
    const fd_trace *trace = fd_source_trace(plan->source);
    fd_trace_info info = trace ? *fd_trace_get_info(trace) : (fd_trace_info){.producer = "firstdiff import"};
    if (!trace && plan->graph) {
        snprintf(info.arch, sizeof info.arch, "%s", plan->graph->hparams.arch);
        snprintf(info.model_name, sizeof info.model_name, "%s", plan->graph->hparams.name);
    }
    info.names[0] = '\0'; /* the names are the GGUF's now */
    if (plan->cache_type) snprintf(info.kv_type, sizeof info.kv_type, "%s", plan->cache_type);
    const fd_rank_report *ranks = fd_ranks_report_of(plan->source);
    if (ranks) snprintf(info.absent, sizeof info.absent, "%s", ranks->absent);
    if (!put_absent(plan, info.absent, sizeof info.absent)) return false;
    return fd_trace_put_info(file, &info, FD_TRACE_FULL) && fd_h5_put_string(file, "map", plan->map->name) &&
           fd_h5_put_int(file, "complete", trace ? info.complete : 1);
}
