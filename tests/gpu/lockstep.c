#include "tests/gpu/lockstep.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "numerics/contract.h"

fd_code lockstep_open(lockstep *l, const fd_graph *graph, fd_error *err) {
    size_t n = (size_t)graph->n_node;
    *l = (lockstep){.n_node = graph->n_node};
    l->rows = calloc(n, sizeof *l->rows);
    l->n = calloc(n, sizeof *l->n);
    l->differ = calloc(n, sizeof *l->differ);
    return l->rows && l->n && l->differ ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "lockstep: out of memory");
}

void lockstep_close(lockstep *l) {
    for (int32_t i = 0; l->rows && i < l->n_node; i++) free(l->rows[i]);
    free(l->rows);
    free(l->n);
    free(l->differ);
}

static fd_code record(void *user, const fd_observation *seen, fd_error *err) {
    lockstep *l = user;
    int32_t id = seen->node->id;
    size_t n = (size_t)(seen->row_stride * seen->n_pos);
    if (n > l->n[id] || !l->rows[id]) {
        free(l->rows[id]);
        l->rows[id] = malloc(n * sizeof *l->rows[id]);
        if (!l->rows[id]) return fd_fail(err, FD_ERR_MEMORY, "lockstep: out of memory for %zu elements", n);
    }
    l->n[id] = n;
    memcpy(l->rows[id], seen->data, n * sizeof *l->rows[id]);
    return FD_OK;
}

static void describe(const fd_observation *seen, size_t at, float expected, float found) {
    printf("  first difference: %s, step %d, position %d, element %zu: cpu %.9g (%08x), gpu %.9g (%08x)\n",
           seen->node->name, seen->step, seen->pos0 + (int32_t)(at / (size_t)seen->row_stride),
           at % (size_t)seen->row_stride, (double)expected, (unsigned)fd_bits32(expected), (double)found,
           (unsigned)fd_bits32(found));
}

static fd_code compare(void *user, const fd_observation *seen, fd_error *err) {
    (void)err;
    lockstep *l = user;
    int32_t id = seen->node->id;
    const float *found = seen->data, *expected = l->rows[id];
    size_t n = (size_t)(seen->row_stride * seen->n_pos);
    l->n_seen++;
    if (n != l->n[id] || seen->dtype != FD_F32) {
        printf("  %s: %zu elements, the reference has %zu\n", seen->node->name, n, l->n[id]);
        l->n_wrong_shape++;
        return FD_OK;
    }
    l->compared += n;
    for (size_t i = 0; i < n; i++) {
        if (fd_canonical32(expected[i]) == fd_canonical32(found[i])) continue;
        l->differ[id]++;
        if (!l->printed) describe(seen, i, expected[i], found[i]);
        l->printed = true;
    }
    return FD_OK;
}

fd_observer lockstep_record(lockstep *l) {
    return (fd_observer){.observe = record, .user = l};
}
fd_observer lockstep_compare(lockstep *l) {
    return (fd_observer){.observe = compare, .user = l};
}

bool lockstep_complete(lockstep *l) {
    bool complete = l->n_seen == l->n_node && l->n_wrong_shape == 0;
    if (!complete)
        printf("  %d of %d nodes were shown, %d with a wrong shape\n", l->n_seen, l->n_node, l->n_wrong_shape);
    l->n_seen = 0;
    return complete;
}

bool lockstep_report(const lockstep *l, const fd_graph *graph, bool quiet) {
    int32_t n = 0;
    for (int32_t i = 0; i < l->n_node; i++) {
        if (l->differ[i] == 0) continue;
        if (n++ < 40) printf("  %-28s %12" PRIu64 " elements differ\n", graph->nodes[i].name, l->differ[i]);
    }
    if (n > 40) printf("  … and %d more nodes\n", n - 40);
    if (!quiet || n > 0)
        printf("  %d nodes, %" PRIu64 " elements compared, %d nodes differ\n", l->n_node, l->compared, n);
    return n == 0 && l->n_wrong_shape == 0 && l->compared > 0;
}
