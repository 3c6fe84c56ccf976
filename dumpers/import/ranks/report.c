/* What is said of the ranks: how each kind of tensor is sharded, where ranks contradict each other, which sums stay
 * out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/ranks/internal.h"

const char *fd_joined_suffix(const fd_graph *graph, const fd_joined *j) {
    const char *name = j->node >= 0 ? graph->nodes[j->node].name : graph->weights[j->weight].name;
    const char *dot = strncmp(name, "blk.", 4) == 0 ? strchr(name + 4, '.') : NULL;
    return dot ? dot + 1 : name;
}

static int by_order(const void *a, const void *b) {
    const fd_rank_finding *x = a, *y = b;
    return x->step != y->step ? (x->step > y->step) - (x->step < y->step)
                              : (x->order > y->order) - (x->order < y->order);
}
static int by_graph(const void *a, const void *b) {
    const fd_rank_kind *x = a, *y = b;
    return (x->order > y->order) - (x->order < y->order);
}

static fd_code count_kind(fd_rank_report *report, const char *name, const fd_joined *j, fd_error *err) {
    size_t at = 0;
    while (at < report->n_kind && (strcmp(report->kinds[at].name, name) != 0 || report->kinds[at].shard != j->shard))
        at++;
    if (at == report->n_kind) {
        fd_rank_kind *more = realloc(report->kinds, (at + 1) * sizeof *more);
        if (!more) return fd_fail(err, FD_ERR_MEMORY, "ranks: out of memory");
        report->kinds = more;
        more[at] = (fd_rank_kind){.shard = j->shard, .order = j->node >= 0 ? j->node : INT32_MAX};
        snprintf(more[at].name, sizeof more[at].name, "%.63s", name);
        report->n_kind++;
    }
    fd_rank_kind *kind = &report->kinds[at];
    if (j->node >= 0 && j->node < kind->order) kind->order = j->node;
    kind->n++;
    return FD_OK;
}

fd_code fd_joiner_make_report(fd_joiner *k) {
    const fd_graph *graph = k->options->graph;
    fd_rank_report *report = &k->ranks->report;
    report->n_rank = k->ranks->n_rank;
    for (size_t i = 0; i < k->whole->n; i++) {
        const fd_joined *j = &k->ranks->joined[i];
        if (j->alone) continue;
        FD_TRY(fd_joined_check(k->ranks, graph, k->whole, i, k->err));
        if (j->node >= 0 || j->weight >= 0) FD_TRY(count_kind(report, fd_joined_suffix(graph, j), j, k->err));
    }
    if (report->n_finding) qsort(report->findings, report->n_finding, sizeof *report->findings, by_order);
    if (report->n_kind) qsort(report->kinds, report->n_kind, sizeof *report->kinds, by_graph);
    return FD_OK;
}

/* A sum of ours is not the engine's, which adds in an order of its own: where the tensor that reads it is there, that
 * one is judged from what comes before, and the sum stays out of the trace, as one that this engine cannot record. */
static bool is_read(const fd_joiner *k, const fd_joined *j) {
    const fd_graph *graph = k->options->graph;
    for (size_t i = 0; i < k->whole->n; i++) {
        const fd_joined *reader = &k->ranks->joined[i];
        if (reader->node < 0 || reader->pos0 != j->pos0) continue;
        const fd_node *node = &graph->nodes[reader->node];
        if (node->input[0] == j->node || node->input[1] == j->node) return true;
    }
    return false;
}

fd_code fd_joiner_leave_out_sums(fd_joiner *k) {
    struct fd_ranks *ranks = k->ranks;
    bool *out = calloc(k->whole->n + 1, sizeof *out);
    if (!out) return fd_fail(k->err, FD_ERR_MEMORY, "ranks: out of memory");
    for (size_t i = 0; i < k->whole->n; i++)
        out[i] = ranks->joined[i].node >= 0 && ranks->joined[i].shard == FD_SHARD_ROW && is_read(k, &ranks->joined[i]);
    size_t kept = 0;
    for (size_t i = 0; i < k->whole->n; i++) {
        const char *name = out[i] ? k->options->graph->nodes[ranks->joined[i].node].name : NULL;
        char *absent = ranks->report.absent;
        size_t at = strlen(absent), size = sizeof ranks->report.absent;
        if (!out[i]) {
            ranks->joined[kept] = ranks->joined[i];
            k->whole->tensors[kept++] = k->whole->tensors[i];
            continue;
        }
        char glob[160];
        snprintf(glob, sizeof glob, "%s%s", strncmp(name, "blk.", 4) == 0 ? "blk.*." : "",
                 fd_joined_suffix(k->options->graph, &ranks->joined[i]));
        if (!strstr(absent, glob)) snprintf(absent + at, size - at, "%s%s", at ? " " : "", glob);
        free(ranks->joined[i].parts);
        free(k->whole->tensors[i].name);
    }
    k->whole->n = ranks->n_joined = kept;
    free(out);
    return FD_OK;
}
