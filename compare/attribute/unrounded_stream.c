#include <math.h>
#include <stdlib.h>

#include "compare/attribute/unrounded_internal.h"
#include "faults/faults.h"

/* Of the mean over kinds of log(share): a kind is handed on as recorded where this much less is left. A tensor that is read by one kind
 * of reader, wrongly taken unrounded, doubles what that leaves: 0.7 by some twenty kinds. */
#define BETTER 0.005

/* Multiply-adds of one replay, of some twenty. */
#define MOST_WORK 1e9

/* Over all kinds of readers: the mean of log(share). */
static double score(const fd_unrounded *u, const fd_reading *r) {
    const fd_graph *graph = u->o.graph;
    double sum = 0;
    int32_t n_kind = 0, n;
    for (int32_t i = 0; i < graph->n_node; i++) {
        const double share = fd_reading_share(u, &r->errors, i, &n);
        if (n == 0) continue;
        sum += log(fmax(share, 1e-3));
        n_kind++;
    }
    return n_kind > 0 ? sum / n_kind : 0;
}

/* What is not as the engine handed it on makes all after it depart, so in order of execution. */
static fd_code find_stream(fd_unrounded *u, fd_error *err) {
    const fd_graph *graph = u->o.graph;
    fd_reading *all = &u->stream;
    FD_TRY(fd_reading_new(u, all, err));
    for (int32_t i = 0; i < graph->n_node; i++) all->of[i] = fd_reading_may_take(u, i);
    FD_TRY(fd_reading_measure(u, all, err));
    double best = score(u, all);
    for (int32_t i = 0; i < graph->n_node; i++) {
        fd_reading next;
        if (!fd_fault_begins_kind(graph, i) || !all->of[i]) continue;
        FD_TRY(fd_reading_copy(u, all, &next, err));
        fd_reading_set_kind(u, i, false, &next);
        const fd_code code = fd_reading_measure(u, &next, err);
        const double s = code == FD_OK ? score(u, &next) : 0;
        if (code == FD_OK && s < best - BETTER) {
            fd_reading_free(all);
            *all = next;
            best = s;
        } else {
            fd_reading_free(&next);
        }
        FD_TRY(code);
    }
    all->left = exp(best);
    return FD_OK;
}

fd_code fd_unrounded_stream(fd_unrounded *u, int32_t node, fd_row_errors *errors, bool *shown, fd_error *err) {
    *shown = false;
    if (!(fd_graph_n_parameter(u->o.graph) * u->o.n_pos <= MOST_WORK)) return FD_OK;
    fd_unrounded_ask(u, -1);
    fd_unrounded_ask_steps(u, true, true);
    if (!u->stream.of) FD_TRY(find_stream(u, err));
    if (!(u->stream.left <= FD_SHOWN_SHARE)) return FD_OK;
    fd_unrounded_ask(u, node);
    for (int single = 0; single < 2; single++) {
        fd_unrounded_ask_steps(u, single, !single);
        fd_reading_take(u, &u->stream, INFINITY, errors, shown);
    }
    return FD_OK;
}

fd_code fd_reads_unrounded(const fd_attribution_options *candidate, int32_t node, bool *yes, fd_error *err) {
    fd_unrounded *u;
    *yes = false;
    if (!fd_unrounded_can_ask(candidate)) return FD_OK;
    fd_code code = fd_unrounded_open(candidate, &u, err);
    if (code == FD_OK) code = fd_unrounded_inputs(u, node, NULL, yes, err);
    if (code == FD_OK && !*yes) code = fd_unrounded_stream(u, node, NULL, yes, err);
    fd_unrounded_free(u);
    return code;
}
