#include "tests/gpu/plan_simulation.h"

#include <stdlib.h>
#include <string.h>

#include "bench/run.h"
#include "engine/edges.h"

/* Whose tensor a slot holds now, by type; a cache holds what was written to it. */
typedef struct holdings {
    const fd_plan *plan;
    int32_t *node[FD_RESULT_COUNT];
} holdings;

static bool is_there(const holdings *h, fd_edge edge) {
    int32_t slot = h->plan->slot_of[edge.type][edge.node];
    return h->plan->graph->nodes[edge.node].op == FD_OP_KV_WRITE ||
           (slot >= 0 && h->node[edge.type][slot] == edge.node);
}

/* Whether the item writes over what it reads; a product by cuBLAS that is added in place is meant to. */
static bool spoils(const fd_plan *plan, const fd_item *item, fd_edge read) {
    int32_t slot = plan->slot_of[read.type][read.node];
    for (int w = 0; w < item->n_write; w++)
        if (slot >= 0 && item->writes[w].type == read.type && plan->slot_of[read.type][item->writes[w].node] == slot &&
            item->kernel != FD_KERNEL_GEMM_ADD_F16)
            return true;
    return false;
}

bool plan_simulate(const fd_plan *plan) {
    size_t n = (size_t)plan->graph->n_node;
    holdings h = {.plan = plan};
    bool good = true;
    int32_t n_computed = 0;
    char *computed = calloc(n, 1);
    if (!computed) exit(1);
    for (int t = 0; t < FD_RESULT_COUNT; t++) {
        h.node[t] = malloc(sizeof **h.node * n);
        if (!h.node[t]) exit(1);
        memset(h.node[t], -1, sizeof **h.node * n);
    }
    for (int32_t i = 0; i < plan->n_item && good; i++) {
        const fd_item *item = &plan->items[i];
        for (int k = 0; k < item->n_read; k++)
            good = good && is_there(&h, item->reads[k]) && !spoils(plan, item, item->reads[k]);
        for (int k = 0; k < item->n_member; k++) {
            bool again =
                computed[item->members[k]] && !(item->kernel == FD_KERNEL_MATVEC && item->members[k] == item->norm);
            good = good && !again;
            n_computed += !computed[item->members[k]];
            computed[item->members[k]] = 1;
        }
        for (int w = 0; w < item->n_write; w++) {
            fd_result type = item->writes[w].type;
            int32_t slot = plan->slot_of[type][item->writes[w].node];
            if (slot >= 0) h.node[type][slot] = item->writes[w].node;
        }
    }
    good = good && n_computed == plan->graph->n_node && is_there(&h, (fd_edge){plan->graph->n_node - 1, FD_REAL});
    for (int t = 0; t < FD_RESULT_COUNT; t++) free(h.node[t]);
    free(computed);
    return good;
}

int plan_count(const fd_plan *plan, fd_kernel kernel) {
    int n = 0;
    for (int32_t i = 0; i < plan->n_item; i++) n += plan->items[i].kernel == kernel;
    return n;
}

fd_plan plan_made(const fd_graph *graph, fd_plan_kind kind) {
    fd_error err = {0};
    fd_plan plan;
    must(fd_plan_make(graph, kind, &plan, &err), &err);
    return plan;
}
