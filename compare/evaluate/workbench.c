#include "compare/evaluate/workbench.h"

#include "compare/evaluate/kept_types.h"

#include <stdlib.h>

/* Of what a machine that holds the model has beside it. */
#define MOST_WIDE (1ll << 28)

fd_code fd_evaluation_open(fd_workbench *bench, const fd_hypothesis *h, bool bounds, fd_evaluation *ev, fd_error *err) {
    size_t n = (size_t)bench->request->args.graph->n_node;
    *ev = (fd_evaluation){.bench = bench, .h = *h, .bounds = bounds && bench->request->numerics};
    ev->works = bench->spare ? bench->spare : calloc(n, sizeof *ev->works);
    ev->begin = (int32_t)n;
    bench->spare = NULL;
    return ev->works ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory");
}

static void free_work(fd_work *w) {
    if (w->edit_known) fd_faulty_node_free(&w->node);
    fd_variant_free(&w->v);
    for (int d = 0; d < FD_N_SAMPLE; d++) free(w->sample[d]);
}

void fd_evaluation_close(fd_evaluation *ev) {
    for (int32_t i = ev->begin; i < ev->end; i++) {
        free_work(&ev->works[i]);
        ev->works[i] = (fd_work){0};
    }
    free(ev->bench->spare);
    ev->bench->spare = ev->works;
}

const float *fd_bench_recorded(const fd_explain_request *r, int32_t node) {
    for (int k = 0; k < FD_MAX_INPUTS; k++)
        if (r->args.node->input[k] == node && r->args.in[k]) return r->args.in[k];
    return r->tensor ? r->tensor(r->user, node) : NULL;
}

static void find_feeding(const fd_explain_request *r, bool *feeds) {
    const fd_graph *graph = r->args.graph;
    for (int32_t i = graph->n_node - 1; i >= 0; i--) {
        const fd_node *node = &graph->nodes[i];
        feeds[i] |= node->op == FD_OP_KV_WRITE;
        for (int k = 0; k < FD_MAX_INPUTS && feeds[i] && !fd_bench_recorded(r, i); k++)
            if (node->input[k] >= 0) feeds[node->input[k]] = true;
    }
}

fd_code fd_workbench_open(const fd_explain_request *request, fd_workbench **out, fd_error *err) {
    size_t n_node = (size_t)request->args.graph->n_node, n_weight = (size_t)request->args.graph->n_weight;
    fd_workbench *bench = *out = calloc(1, sizeof *bench);
    if (!bench) return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory");
    bench->request = request;
    bench->wide = calloc(n_weight, sizeof *bench->wide);
    bench->wide_left = MOST_WIDE;
    bench->feeds_cache = calloc(n_node, sizeof *bench->feeds_cache);
    fd_code code = bench->wide && bench->feeds_cache
                       ? fd_evaluation_open(bench, &fd_no_hypothesis, true, &bench->plain, err)
                       : fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory");
    if (code == FD_OK) {
        find_feeding(request, bench->feeds_cache);
        return FD_OK;
    }
    free(bench->wide);
    free(bench->feeds_cache);
    free(bench);
    *out = NULL;
    return code;
}

void fd_workbench_close(fd_workbench *bench) {
    if (!bench) return;
    fd_evaluation_close(&bench->plain);
    free(bench->spare);
    for (int32_t i = 0; i < bench->request->args.graph->n_weight; i++) free(bench->wide[i]);
    free(bench->wide);
    free(bench->feeds_cache);
    free(bench);
}

/* ---- what there is ---- */

bool fd_evaluate_recorded(const fd_workbench *bench, int32_t node) {
    return fd_bench_recorded(bench->request, node) != NULL;
}

/* Nothing is known of a cache's rows before the request's. */
bool fd_bench_can_compute(const fd_explain_request *r, const fd_node *node) {
    return r->tensor && (node->op != FD_OP_KV_WRITE || r->args.pos0 == 0);
}

int32_t fd_evaluate_span(const fd_workbench *bench, int32_t node, int32_t *list) {
    const fd_explain_request *r = bench->request;
    const fd_graph *graph = r->args.graph;
    int32_t n = 0;
    bool *in = calloc((size_t)graph->n_node, sizeof *in);
    if (!in) return 0;
    in[node] = true;
    for (int32_t i = node; i >= 0; i--) {
        if (!in[i] || (i != node && fd_bench_recorded(r, i))) {
            in[i] = false;
            continue;
        }
        for (int k = 0; k < FD_MAX_INPUTS; k++)
            if (graph->nodes[i].input[k] >= 0) in[graph->nodes[i].input[k]] = true;
    }
    for (int32_t i = 0; i <= node; i++)
        if (in[i]) list[n++] = i;
    free(in);
    return n;
}

fd_code fd_bench_edit(fd_evaluation *ev, int32_t id, fd_error *err) {
    fd_work *w = &ev->works[id];
    const fd_graph *graph = ev->bench->request->args.graph;
    if (w->edit_known) return FD_OK;
    if (id < ev->begin) ev->begin = id;
    if (id >= ev->end) ev->end = id + 1;
    FD_TRY(fd_hypothesis_edit(&ev->h, graph, &graph->nodes[id], &w->node, &w->edited, err));
    if (graph->nodes[id].op == FD_OP_KV_WRITE)
        w->node.node.kv_type = fd_explain_kv_type(ev->bench->request, &graph->nodes[id]);
    w->edit_known = true;
    return FD_OK;
}

/* Is the node another one under the hypothesis, by itself or through unrecorded inputs? */
fd_code fd_bench_touches(fd_evaluation *ev, int32_t id, bool *yes, fd_error *err) {
    fd_work *w = &ev->works[id];
    const fd_explain_request *r = ev->bench->request;
    if (w->touched == TOUCHED_UNKNOWN) {
        FD_TRY(fd_bench_edit(ev, id, err));
        bool any = w->edited;
        for (int k = 0; k < FD_MAX_INPUTS && !any; k++) {
            int32_t in = w->node.node.input[k];
            if (in < 0 || !r->tensor) continue;
            /* scores that a mask hides are computed again (evaluate_inputs.c) */
            const bool hidden = r->args.graph->nodes[in].op == FD_OP_ATTN_SCORES && ev->h.guess == FD_GUESS_FAULT;
            if (!fd_bench_recorded(r, in) || hidden) FD_TRY(fd_bench_touches(ev, in, &any, err));
        }
        w->touched = any ? TOUCHED : UNTOUCHED;
    }
    *yes = w->touched == TOUCHED;
    return FD_OK;
}
