#include "compare/attribute/z_map.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static int32_t heads_of(const fd_node *node) {
    return node->over_kv || node->n_dim == 2 ? node->shape[0] : 0;
}

fd_code fd_z_map_open(const fd_graph *graph, int32_t n_pos, fd_verdict_map *out, fd_error *err) {
    *out = (fd_verdict_map){.n_node = graph->n_node, .n_pos = n_pos, .most_heads = 1};
    for (int32_t i = 0; i < graph->n_node; i++)
        if (heads_of(&graph->nodes[i]) > out->most_heads) out->most_heads = heads_of(&graph->nodes[i]);
    size_t n = (size_t)graph->n_node;
    out->cells = calloc(n + 1, sizeof *out->cells);
    out->by_pos = malloc(sizeof *out->by_pos * (n * (size_t)n_pos + 1));
    out->by_head = malloc(sizeof *out->by_head * (n * (size_t)out->most_heads + 1));
    if (!out->cells || !out->by_pos || !out->by_head) {
        fd_z_map_free(out);
        return fd_fail(err, FD_ERR_MEMORY, "map of %zu nodes at %d positions: out of memory", n, n_pos);
    }
    for (size_t i = 0; i < n * (size_t)n_pos; i++) out->by_pos[i] = -1;
    for (size_t i = 0; i < n * (size_t)out->most_heads; i++) out->by_head[i] = -1;
    for (int32_t i = 0; i < graph->n_node; i++) {
        fd_verdict_cell *cell = &out->cells[i];
        snprintf(cell->name, sizeof cell->name, "%s", graph->nodes[i].name);
        snprintf(cell->op, sizeof cell->op, "%s", fd_op_name(graph->nodes[i].op));
        cell->layer = graph->nodes[i].layer;
        for (int k = 0; k < FD_MAX_INPUTS; k++) cell->input[k] = graph->nodes[i].input[k];
        cell->n_head = heads_of(&graph->nodes[i]);
        cell->z = -1;
    }
    return FD_OK;
}

void fd_z_map_free(fd_verdict_map *map) {
    free(map->cells);
    free(map->by_pos);
    free(map->by_head);
    *map = (fd_verdict_map){0};
}

static void raise(float *to, double z) {
    if (!((float)z <= *to)) *to = isnan(z) ? INFINITY : (float)z;
}

void fd_z_map_add(fd_verdict_map *map, const fd_attribution_row *row) {
    const fd_node *node = row->node;
    if (row->pos >= map->n_pos) return;
    int32_t n_head = heads_of(node) ? heads_of(node) : 1;
    int64_t slice = row->stride / n_head, seen = node->over_kv && row->pos + 1 < slice ? row->pos + 1 : slice;
    for (int32_t h = 0; h < n_head; h++) {
        double z = 0;
        for (int64_t i = h * slice; i < h * slice + seen; i++) {
            double at = fd_bound_z(row->candidate[i], row->replayed[i], row->tau[i]);
            if (!(at <= z)) z = at;
        }
        if (heads_of(node)) raise(&map->by_head[(int64_t)node->id * map->most_heads + h], z);
        raise(&map->by_pos[(int64_t)node->id * map->n_pos + row->pos], z);
        raise(&map->cells[node->id].z, z);
    }
}

void fd_z_map_finish(fd_verdict_map *map, const fd_attribution *attribution) {
    for (int32_t i = 0; i < map->n_node; i++)
        snprintf(map->cells[i].finding, sizeof map->cells[i].finding, "%s",
                 fd_finding_name((fd_finding)attribution->finding[i]));
}
