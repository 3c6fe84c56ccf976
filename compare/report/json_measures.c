#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/report/json.h"
#include "compare/report/json_build.h"
#include "compare/report/layer_rows.h"

static json_t *logits(const fd_measures *m) {
    fd_logits_summary s = fd_measure_logits(m);
    if (!s.n_pos) return json_null();
    return json_pack("{s:i, s:i, s:o, s:o, s:i, s:o, s:o, s:o}", "positions", s.n_pos, "same_best_token", s.n_same_best,
                     "mean_kl", fd_json_number(s.mean_kl), "largest_kl", fd_json_number(s.largest_kl),
                     "largest_kl_position", s.largest_kl_pos, "reference_probability",
                     fd_json_number(s.reference_share), "candidate_probability", fd_json_number(s.candidate_share),
                     "rms_probability_change", fd_json_number(s.rms_share));
}

static json_t *layers(const fd_verdict *v) {
    int32_t n;
    fd_layer_row *rows = fd_layer_rows(v, &n);
    json_t *list = json_array();
    for (int32_t i = 0; rows && i < n; i++)
        list = fd_json_append(list,
                              json_pack("{s:i, s:o, s:o, s:o, s:o, s:b}", "layer", rows[i].layer, "node",
                                        fd_json_text(rows[i].node), "z", fd_json_number_if(rows[i].z >= 0, rows[i].z),
                                        "nmse", fd_json_number_if(!isnan(rows[i].nmse), rows[i].nmse), "cosine",
                                        fd_json_number_if(!isnan(rows[i].cosine), rows[i].cosine), "introduced",
                                        rows[i].introduced));
    free(rows);
    return list;
}

static json_t *numbers(const double *x, int32_t n) {
    json_t *list = json_array();
    for (int32_t i = 0; i < n; i++) list = fd_json_append(list, fd_json_number(x[i]));
    return list;
}

static json_t *values(const fd_measured_values *m) {
    if (!m->n) return json_null();
    return json_pack("{s:i, s:I, s:I, s:o, s:o, s:o, s:o}", "position", m->pos, "first", FD_JSON_INT(m->first), "worst",
                     FD_JSON_INT(m->worst), "reference", numbers(m->reference, m->n), "replayed",
                     numbers(m->replayed, m->n), "candidate", numbers(m->candidate, m->n), "tau",
                     numbers(m->tau, m->n));
}

json_t *fd_json_measures(const fd_verdict *v) {
    const fd_node_measure *node = NULL;
    for (int32_t i = 0; i < v->map.n_node && v->divergence.kind == FD_DIVERGED_VALUES; i++)
        if (strcmp(v->map.cells[i].name, v->divergence.node) == 0) node = &v->measures.nodes[i];
    bool known = node && node->n_pos;
    return json_pack("{s:o, s:o, s:o, s:o, s:o}", "nmse", fd_json_number_if(known, known ? fd_measure_nmse(node) : 0),
                     "cosine", fd_json_number_if(known, known ? fd_measure_cosine(node) : 0), "values",
                     node ? values(&node->values) : json_null(), "layers", layers(v), "logits", logits(&v->measures));
}
