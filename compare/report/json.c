#include "compare/report/json.h"

#include <math.h>

#include "compare/report/baseline.h"
#include "compare/report/json_build.h"
#include "compare/report/remarks.h"
#include "compare/report/report.h"

#define INT FD_JSON_INT

static json_t *side(const fd_verdict_side *s) {
    return json_pack("{s:o, s:o, s:o, s:o, s:i, s:o, s:o, s:o, s:o, s:o, s:i, s:b}", "label", fd_json_text(s->label),
                     "producer", fd_json_text(s->producer), "backend", fd_json_text(s->backend), "numerics",
                     fd_json_text(s->numerics), "contract", s->contract, "device", fd_json_text(s->device), "fault",
                     fd_json_text(s->fault), "model_name", fd_json_text(s->model_name), "model_hash",
                     fd_json_text(s->model_hash), "arch", fd_json_text(s->arch), "positions", s->n_pos, "complete",
                     s->complete);
}

static json_t *element(const fd_divergence *d, const fd_element_diff *e) {
    json_t *at = json_array();
    int64_t rest = e->index, place[4] = {0};
    for (int32_t i = d->n_dim - 1; i >= 0; i--) {
        place[i] = d->dims[i] > 0 ? rest % d->dims[i] : 0;
        rest = d->dims[i] > 0 ? rest / d->dims[i] : rest;
    }
    for (int32_t i = 0; i < d->n_dim; i++) at = fd_json_append(at, json_integer(INT(place[i])));
    bool apart = e->ulp != FD_ULP_NONE;
    double distance = fabs(e->cand - e->ref);
    return json_pack("{s:I, s:o, s:o, s:o, s:o, s:o}", "flat_index", INT(e->index), "index", at, "reference",
                     fd_json_number(e->ref), "candidate", fd_json_number(e->cand), "abs_difference",
                     apart && isfinite(distance) ? json_real(distance) : json_null(), "ulp",
                     fd_json_int_if(apart, e->ulp > INT64_MAX ? INT64_MAX : (int64_t)e->ulp));
}

static json_t *values(const fd_divergence *d) {
    const fd_tensor_diff *t = &d->diff;
    const fd_dtype_info *grid = fd_dtype_get(t->grid);
    return json_pack("{s:s, s:I, s:I, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I}", "compared_as", grid ? grid->name : "?",
                     "elements", INT(t->n), "differ", INT(t->n_differ), "first", element(d, &t->first), "largest",
                     t->largest.index < 0 ? json_null() : element(d, &t->largest), "nan_both", INT(t->n_nan_same),
                     "nan_new", INT(t->n_nan_new), "nan_lost", INT(t->n_nan_lost), "inf_new", INT(t->n_inf_new),
                     "inf_lost", INT(t->n_inf_lost), "inf_sign", INT(t->n_inf_sign));
}

static json_t *inputs(const fd_divergence *d) {
    json_t *list = json_array();
    for (int32_t i = 0; i < d->n_input; i++)
        list = fd_json_append(list, json_pack("{s:o, s:s}", "name", fd_json_text(d->inputs[i].name), "equality",
                                              fd_equality_name(d->inputs[i].equality)));
    return list;
}

/* What every divergence has, what those of ops have, and what the tokens have. */
static json_t *divergence(const fd_divergence *d) {
    static const char *const kinds[] = {"none", "tokens", "shape", "values", "weights"};
    json_t *object =
        json_pack("{s:s, s:o, s:i}", "kind", kinds[d->kind], "node", fd_json_text(d->node), "layer", d->layer);
    if (d->kind == FD_NO_DIVERGENCE || d->kind == FD_DIVERGED_WEIGHTS) return object;
    object = fd_json_join(object, json_pack("{s:i, s:s, s:i}", "step", d->step, "step_kind",
                                            fd_step_kind_name(d->step_kind), "position", d->pos));
    if (d->kind == FD_DIVERGED_TOKENS)
        return fd_json_join(object,
                            json_pack("{s:i, s:i}", "reference_token", d->ref_token, "candidate_token", d->cand_token));
    return fd_json_join(
        object,
        json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "op", fd_json_text(d->op), "attributes",
                  fd_json_text(d->attributes), "reference_shape", fd_json_text(d->ref_shape), "candidate_shape",
                  fd_json_text(d->cand_shape), "inputs", inputs(d), "introduced_here",
                  d->inputs_equal == FD_EQUALITY_UNKNOWN ? json_null() : json_boolean(d->inputs_equal == FD_EQUAL),
                  "values", d->has_values ? values(d) : json_null()));
}

static json_t *missing(const fd_verdict *v) {
    static const char *const why[] = {"only in the reference", "only in the candidate", "not recorded on both sides"};
    json_t *list = json_array();
    for (int32_t i = 0; i < v->n_missing; i++) {
        const fd_missing *m = &v->missing[i];
        list = fd_json_append(list, json_pack("{s:o, s:s, s:i, s:b}", "name", fd_json_text(m->name), "why", why[m->why],
                                              "positions", m->n_pos, "allowed", m->allowed));
    }
    return list;
}

static json_t *remarks(const fd_verdict *v, const fd_remarks *of) {
    json_t *list = json_array();
    char text[FD_REMARK_SIZE];
    for (int32_t i = 0; i < of->n && i < FD_MAX_REMARKS; i++)
        list = fd_json_append(list, fd_json_text(fd_remark_text(v, &of->items[i], text)));
    return list;
}

static json_t *misrecorded(const fd_misrecorded *m) {
    json_t *list = json_array();
    for (int32_t i = 0; i < m->n; i++) {
        const fd_misrecorded_kind *k = &m->kinds[i];
        list = fd_json_append(list,
                              json_pack("{s:o, s:i, s:o, s:o, s:o, s:o}", "node", fd_json_text(k->node), "tensors",
                                        k->n_node, "layers", fd_json_text(k->layers), "reader", fd_json_text(k->reader),
                                        "holds", fd_json_text(k->holds), "summary", fd_json_text(k->summary)));
    }
    return list;
}

static json_t *baseline(const fd_verdict *v) {
    char text[512];
    fd_baseline_text(v, text, sizeof text);
    return json_pack("{s:s, s:o}", "moved", fd_moved_name(v->moved), "text", fd_json_text(text));
}

static json_t *report(const fd_verdict *v) {
    const fd_verdict_counts *n = &v->counts;
    const fd_verdict_diagnosis *d = &v->diagnosis;
    json_t *root = json_pack("{s:s, s:s, s:i, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o}", "schema",
                             "firstdiff-verdict 1", "status", fd_verdict_status_name(v->status), "exit_status",
                             fd_verdict_exit_status(v), "reference", side(&v->ref), "candidate", side(&v->cand),
                             "positions", INT(n->n_pos), "steps", INT(n->n_step), "tensors_compared",
                             INT(n->n_compared), "tensors_by_fingerprint", INT(n->n_by_fingerprint), "identical_before",
                             INT(n->n_before), "identical_after", fd_json_int_if(n->after_known, n->n_after_identical),
                             "differ_after", fd_json_int_if(n->after_known, n->n_after_differ), "divergence",
                             v->divergence.kind == FD_NO_DIVERGENCE ? json_null() : divergence(&v->divergence));
    if (v->weights.compared) root = fd_json_join(root, json_pack("{s:o}", "weights", fd_json_weights(&v->weights)));
    if (v->replay.done)
        root = fd_json_join(
            root, json_pack("{s:o, s:o}", "replay", fd_json_replay(&v->replay), "best_token", fd_json_flip(&v->flip)));
    if (v->measures.n_node) root = fd_json_join(root, json_pack("{s:o}", "measures", fd_json_measures(v)));
    if (d->done)
        root = fd_json_join(root, json_pack("{s:o, s:o}", "explanation", fd_json_explanation(&d->explanation), "causes",
                                            fd_json_causes(&d->causes)));
    if (v->dump.n) root = fd_json_join(root, json_pack("{s:o}", "misrecorded", misrecorded(&v->dump)));
    if (v->moved) root = fd_json_join(root, json_pack("{s:o}", "since", baseline(v)));
    if (v->saved_as[0]) root = fd_json_join(root, json_pack("{s:o}", "saved_as", fd_json_text(v->saved_as)));
    return fd_json_join(root,
                        json_pack("{s:o, s:o, s:o, s:o}", "missing", missing(v), "reasons", remarks(v, &v->reasons),
                                  "notes", remarks(v, &v->notes), "next", fd_json_text(v->next)));
}

fd_code fd_report_json(FILE *to, const fd_verdict *v, fd_error *err) {
    json_t *root = report(v);
    if (!root) return fd_fail(err, FD_ERR_MEMORY, "JSON report: out of memory");
    bool written = fd_json_write(to, root);
    json_decref(root);
    return written ? FD_OK : fd_fail(err, FD_ERR_IO, "JSON report: writing failed");
}
