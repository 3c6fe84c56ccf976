#include "compare/dump/held_values.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/order.h"
#include "compare/replay/replay.h"

/* What rounding makes of a sound engine in 16 bits is less; two tensors of a model are farther apart. */
#define NEAR 0.02

fd_code fd_held_row(const fd_trace *trace, const fd_node *node, int32_t pos, double *row, bool *present,
                    fd_error *err) {
    int64_t size = fd_node_row_stride(node, pos + 1);
    return fd_replay_read_row(trace, fd_trace_find(trace, node->name), node, pos, pos + 1, row + size, row, present,
                              err);
}

/* |a − b| / |b|, of lengths; padding is equal. */
static double distance(const double *a, const double *b, int64_t n) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        if (a[i] == b[i] && !isfinite(b[i])) continue;
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        size += b[i] * b[i];
    }
    return sqrt(difference / size);
}

fd_code fd_held_alike(const fd_attribution_options *o, const fd_node_finding *f, char name[FD_HELD_SIZE],
                      fd_error *err) {
    const fd_graph *graph = o->graph;
    const fd_node *own = &graph->nodes[f->node];
    int32_t n_ref = o->n_ref_pos ? o->n_ref_pos : o->n_pos;
    int64_t size = fd_node_row_stride(own, f->pos + 1);
    double *row = malloc(4 * sizeof *row * (size_t)size), *other = row + 2 * size, nearest = NEAR;
    int32_t last = -1;
    bool present = row && o->ref && f->pos < n_ref;
    fd_code code = !row      ? fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", own->name)
                   : present ? fd_held_row(o->cand, own, f->pos, row, &present, err)
                             : FD_OK;
    for (int32_t i = 0; i < graph->n_node && code == FD_OK && present; i++) {
        const fd_node *node = &graph->nodes[i];
        bool there = false, another = i != f->node && fd_node_row_stride(node, f->pos + 1) == size;
        if (another) code = fd_held_row(o->ref, node, f->pos, other, &there, err);
        bool closer = i > f->node && 2 * f->node - i > last; /* of equal ones that by the side of the node */
        double d = there ? distance(row, other, size) : INFINITY;
        if (code != FD_OK || !(d < nearest || (closer && d <= nearest))) continue;
        nearest = d;
        last = i;
        snprintf(name, FD_HELD_SIZE, "%s", node->name);
    }
    for (int32_t p = 0; p < n_ref && code == FD_OK && present && !own->over_kv; p++) {
        bool there = false;
        if (p != f->pos) code = fd_held_row(o->ref, own, p, other, &there, err);
        double d = there ? distance(row, other, size) : INFINITY;
        if (code != FD_OK || !(d < nearest)) continue;
        nearest = d;
        snprintf(name, FD_HELD_SIZE, "%s of position %d", own->name, p);
    }
    free(row);
    return code;
}

fd_code fd_held_in_other_order(const fd_attribution_options *o, const fd_node_finding *f, bool *yes, fd_error *err) {
    const fd_node *node = &o->graph->nodes[f->node];
    const int64_t n_kv = f->pos + 1, size = fd_node_row_stride(node, f->pos + 1);
    double *rows = malloc(3 * sizeof *rows * (size_t)size);
    bool present = rows && o->ref && node->over_kv && f->pos < (o->n_ref_pos ? o->n_ref_pos : o->n_pos);
    fd_code code = rows ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", node->name);
    for (int side = 0; side < 2 && present && code == FD_OK; side++) {
        code = fd_held_row(side ? o->ref : o->cand, node, f->pos, rows + side * size, &present, err);
        for (int64_t at = 0; at < size && present; at += n_kv)
            qsort(rows + side * size + at, (size_t)n_kv, sizeof *rows, fd_order_doubles);
    }
    *yes = present && code == FD_OK && distance(rows, rows + size, size) <= NEAR;
    free(rows);
    return code;
}
