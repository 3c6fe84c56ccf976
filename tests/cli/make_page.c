/* make_page: the report page of a large model on standard output, 100 layers of 30 nodes at 64 positions with 32 heads,
 * where everything that a page can show is there. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "compare/report/report.h"

enum { N_LAYER = 100, EACH = 30, N_NODE = N_LAYER * EACH, N_POS = 64, N_HEAD = 32, WRONG = 50 * EACH + 7 };

static float noise(int32_t i) {
    return (float)((double)((uint32_t)i * 2654435761u) / 4294967296.0);
}

static void fill_node(fd_verdict *v, int32_t i) {
    fd_verdict_cell *cell = &v->map.cells[i];
    fd_node_measure *m = &v->measures.nodes[i];
    snprintf(cell->name, sizeof cell->name, "blk.%d.node_%02d", i / EACH, i % EACH);
    snprintf(cell->op, sizeof cell->op, "matmul");
    snprintf(cell->finding, sizeof cell->finding, "%s", i < WRONG ? "NOISE" : i == WRONG ? "INTRODUCED" : "INHERITED");
    cell->layer = i / EACH;
    cell->input[0] = i - 1;
    cell->input[1] = -1;
    cell->z = i == WRONG ? 1e6f : noise(i);
    cell->n_head = N_HEAD;
    for (int32_t p = 0; p < N_POS; p++) {
        v->map.by_pos[i * N_POS + p] = noise(i + p) * (i == WRONG ? 1e6f : 1);
        v->measures.relative[i * N_POS + p] = noise(i * p) * 1e-3f;
    }
    for (int32_t h = 0; h < N_HEAD; h++) v->map.by_head[i * N_HEAD + h] = noise(i + h);
    *m =
        (fd_node_measure){.n_pos = N_POS, .error2 = 1e-6, .reference2 = 1, .candidate2 = 1, .product = 1, .z = cell->z};
    m->values = (fd_measured_values){.pos = 3, .n = FD_MEASURE_VALUES, .first = 96, .worst = 99};
    for (int k = 0; k < FD_MEASURE_VALUES; k++) {
        m->values.reference[k] = noise(i * k);
        m->values.candidate[k] = m->values.replayed[k] = noise(i * k + 1);
        m->values.tau[k] = 1e-6;
    }
    for (int k = 0; k < 12; k++) m->ulp[k] = 1000 + (uint32_t)k, m->tau_ulp[k] = 2000;
}

int main(void) {
    fd_verdict v = {.status = FD_DIVERGED};
    fd_error err = {0};
    snprintf(v.divergence.node, sizeof v.divergence.node, "blk.%d.node_%02d", WRONG / EACH, WRONG % EACH);
    v.divergence.kind = FD_DIVERGED_VALUES;
    v.divergence.layer = WRONG / EACH;
    v.replay.done = true;
    v.replay.noisiest_z = -1;
    v.map = (fd_verdict_map){.n_node = N_NODE, .n_pos = N_POS, .most_heads = N_HEAD};
    v.map.cells = calloc(N_NODE, sizeof *v.map.cells);
    v.map.by_pos = calloc((size_t)N_NODE * N_POS, sizeof *v.map.by_pos);
    v.map.by_head = calloc((size_t)N_NODE * N_HEAD, sizeof *v.map.by_head);
    fd_measures *m = &v.measures;
    *m = (fd_measures){.n_node = N_NODE, .n_pos = N_POS, .n_layer = N_LAYER, .n_head = N_HEAD};
    m->nodes = calloc(N_NODE, sizeof *m->nodes);
    m->relative = calloc((size_t)N_NODE * N_POS, sizeof *m->relative);
    m->logits = calloc(N_POS, sizeof *m->logits);
    m->entropy = calloc((size_t)2 * N_LAYER * N_HEAD, sizeof *m->entropy);
    m->n_entropy = calloc((size_t)2 * N_LAYER, sizeof *m->n_entropy);
    m->maps = (fd_attention_maps){50, N_HEAD, N_POS, true, true, calloc((size_t)2 * N_HEAD * N_POS, N_POS)};
    if (!v.map.cells || !v.map.by_pos || !v.map.by_head || !m->nodes || !m->relative || !m->logits || !m->entropy ||
        !m->n_entropy || !m->maps.weights)
        return 1;
    for (int32_t i = 0; i < N_NODE; i++) fill_node(&v, i);
    for (int32_t i = 0; i < 2 * N_LAYER; i++) m->n_entropy[i] = N_POS;
    for (int32_t i = 0; i < 2 * N_LAYER * N_HEAD; i++) m->entropy[i] = noise(i);
    for (int32_t i = 0; i < 2 * N_HEAD * N_POS * N_POS; i++) m->maps.weights[i] = (uint8_t)(255 * noise(i));
    m->nodes[WRONG].by_pos_head = calloc((size_t)N_POS * N_HEAD, sizeof(float));
    for (int32_t i = 0; m->nodes[WRONG].by_pos_head && i < N_POS * N_HEAD; i++)
        m->nodes[WRONG].by_pos_head[i] = 1e6f * noise(i);
    fd_code code = fd_report_html(stdout, &v, &err);
    fd_verdict_free(&v);
    return code != FD_OK;
}
