#include "compare/report/layer_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

fd_layer_row *fd_layer_rows(const fd_verdict *v, int32_t *n) {
    const fd_verdict_map *map = &v->map;
    *n = 0;
    if (!map->n_node || v->measures.n_node != map->n_node) return NULL;
    fd_layer_row *rows = calloc((size_t)map->n_node, sizeof *rows);
    for (int32_t i = 0; rows && i < map->n_node; i++) {
        const fd_verdict_cell *cell = &map->cells[i];
        const fd_node_measure *measure = &v->measures.nodes[i];
        fd_layer_row *row = *n && cell->layer >= 0 && rows[*n - 1].layer == cell->layer ? &rows[*n - 1] : NULL;
        if (!row) {
            row = &rows[(*n)++];
            *row = (fd_layer_row){.layer = cell->layer, .node = cell->name, .z = -1, .nmse = NAN, .cosine = NAN};
        }
        if (!(cell->z <= row->z)) row->z = cell->z;
        row->introduced |= strcmp(cell->finding, "INTRODUCED") == 0 || strcmp(cell->finding, "BOTH") == 0;
        if (!measure->n_pos && !isnan(row->nmse)) continue;
        row->node = cell->name;
        row->nmse = fd_measure_nmse(measure);
        row->cosine = fd_measure_cosine(measure);
    }
    return rows;
}
