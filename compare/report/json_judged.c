#include "compare/report/remarks.h"
#include "compare/report/json.h"
#include "compare/report/unnamed.h"

json_t *fd_json_replay(fd_json_builder *b, const fd_verdict_replay *p) {
    json_t *object = json_object();
    char evidence[FD_REMARK_SIZE];
    fd_json_set_text(b, object, "class", p->numerics);
    fd_json_set_text(b, object, "class_source", p->source);
    fd_json_set_text(b, object, "class_evidence", fd_class_evidence_text(&p->evidence, evidence));
    fd_json_set(b, object, "class_undecided", json_boolean(p->evidence.undecided));
    fd_json_set_int(b, object, "tensors", p->n_tensor);
    fd_json_set_int(b, object, "noise", p->n_noise);
    fd_json_set_int(b, object, "inherited", p->n_inherited);
    fd_json_set_int(b, object, "amplified", p->n_amplifier);
    fd_json_set_int(b, object, "introduced", p->n_introduced);
    fd_json_set(b, object, "largest_noise_z", p->noisiest_z >= 0 ? fd_json_number(b, p->noisiest_z) : json_null());
    fd_json_set_text(b, object, "largest_noise_at", p->noisiest);
    if (!p->finding[0]) {
        fd_json_set(b, object, "finding", json_null());
        return object;
    }
    fd_json_set_text(b, object, "finding", p->finding);
    fd_json_set(b, object, "of_reference", json_boolean(p->of_reference));
    fd_json_set(b, object, "z", fd_json_number(b, p->z));
    fd_json_set(b, object, "tau", fd_json_number(b, p->tau));
    fd_json_set(b, object, "value", fd_json_number(b, p->candidate));
    fd_json_set(b, object, "replayed", fd_json_number(b, p->replayed));
    fd_json_set(b, object, "introduced_share", p->shares_known ? json_real(p->introduced) : json_null());
    fd_json_set(b, object, "propagated_share", p->shares_known ? json_real(p->propagated) : json_null());
    fd_json_set_int(b, object, "elements", p->n_element);
    fd_json_set_int(b, object, "elements_beyond", p->n_beyond);
    fd_json_set_int(b, object, "heads_beyond", p->n_slice_beyond);
    fd_json_set_int(b, object, "not_finite_new", p->n_nan_new);
    fd_json_set_int(b, object, "before", p->n_before);
    fd_json_set_text(b, object, "span_first", p->span_first);
    fd_json_set_text(b, object, "record_to_narrow", p->missing);
    fd_json_set_text(b, object, "tensors_to_narrow", p->tensors);
    fd_json_set_text(b, object, "not_finite_first_at", p->not_finite);
    fd_json_set_text(b, object, "next_introduced", p->next);
    return object;
}

/* A fault's name and summary, or null for both. */
static void set_fault(fd_json_builder *b, json_t *object, const char *name, const char *summary) {
    fd_json_set_text(b, object, "name", name);
    fd_json_set_text(b, object, "summary", summary);
}

static void set_count(fd_json_builder *b, json_t *object, const char *key, int64_t n) {
    fd_json_set(b, object, key, n < 0 ? json_null() : json_integer((json_int_t)n));
}

static json_t *weight_side(fd_json_builder *b, const char *dtype, int64_t n_row, int64_t n_col, int64_t zero,
                           int64_t trailing) {
    json_t *object = json_object();
    fd_json_set_text(b, object, "dtype", dtype);
    fd_json_set_int(b, object, "rows", n_row);
    set_count(b, object, "columns", n_col ? n_col : -1);
    set_count(b, object, "zero_rows", zero);
    set_count(b, object, "trailing_zero_rows", trailing);
    return object;
}

json_t *fd_json_weights(fd_json_builder *b, const fd_verdict_weights *w) {
    json_t *object = json_object();
    char text[FD_UNNAMED_SIZE];
    fd_json_set_text(b, object, "against", w->against_model ? "model" : "reference");
    fd_json_set_int(b, object, "same", w->n_same);
    fd_json_set_int(b, object, "differ", w->n_differ);
    fd_json_set_int(b, object, "unknown", w->n_unknown);
    if (!w->n_differ) return object;
    fd_json_set(b, object, "of_reference", json_boolean(w->of_reference));
    fd_json_set_text(b, object, "first", w->name);
    fd_json_set_text(b, object, "read_by", w->node);
    fd_json_set(b, object, "held", weight_side(b, w->dtype, w->n_row, w->n_col, w->n_zero_row, w->n_trailing_zero_row));
    fd_json_set(b, object, "expected",
                weight_side(b, w->expected_dtype, w->expected_n_row, w->expected_n_col, w->expected_zero_row,
                            w->expected_trailing_zero_row));
    fd_json_set_int(b, object, "rows_per_hash", w->rows_per_hash);
    set_count(b, object, "first_row", w->first_row);
    fd_json_set_int(b, object, "rows_differ", w->n_row_differ);
    fd_json_set_text(b, object, "holds", fd_weights_match_text(w, text));
    fd_json_set_text(b, object, "others", w->others);
    set_fault(b, object, w->named ? w->fault : NULL, w->named ? w->summary : NULL);
    fd_json_set_text(b, object, "same_as", w->same_as);
    fd_json_set_int(b, object, "explained", w->n_explained);
    fd_json_set_text(b, object, "reason", fd_weights_unnamed_text(w, text));
    fd_json_set(b, object, "replayed_with_them", json_boolean(w->replayed));
    fd_json_set_int(b, object, "unjudged_nodes", w->n_unjudged);
    return object;
}

json_t *fd_json_flip(fd_json_builder *b, const fd_verdict_flip *c) {
    json_t *object = json_object();
    fd_json_set_int(b, object, "positions", c->n_pos);
    fd_json_set_int(b, object, "flips", c->n_flip);
    fd_json_set_int(b, object, "flips_within_tau", c->n_flip_noise);
    if (c->n_flip) {
        fd_json_set_int(b, object, "position", c->pos);
        fd_json_set_int(b, object, "reference_token", c->ref_token);
        fd_json_set_int(b, object, "candidate_token", c->cand_token);
        fd_json_set(b, object, "reference_margin", fd_json_number(b, c->ref_margin));
        fd_json_set(b, object, "candidate_margin", fd_json_number(b, c->cand_margin));
        fd_json_set(b, object, "tau", fd_json_number(b, c->tau));
    }
    fd_json_set(b, object, "tokens_part_at", c->fed ? json_integer(c->fed_pos) : json_null());
    fd_json_set(b, object, "own_choices", c->fed && c->choice_known ? json_boolean(c->chosen) : json_null());
    return object;
}

static json_t *fit(fd_json_builder *b, const fd_explain_fit *f) {
    json_t *object = json_object();
    set_fault(b, object, f->fault->name, f->fault->summary);
    fd_json_set(b, object, "z", fd_json_number(b, f->z));
    fd_json_set(b, object, "ulp", fd_json_number(b, f->ulp));
    fd_json_set_int(b, object, "elements_beyond", f->n_beyond);
    return object;
}

json_t *fd_json_explanation(fd_json_builder *b, const fd_explanation *e) {
    json_t *object = json_object(), *remaining = json_array();
    char text[FD_UNNAMED_SIZE];
    const fd_explain_fit *best = e->named ? &e->remaining[0] : NULL, *second = &e->runner_up;
    set_fault(b, object, best ? best->fault->name : NULL, best ? best->fault->summary : NULL);
    fd_json_set(b, object, "residual_z", best ? fd_json_number(b, best->z) : json_null());
    fd_json_set(b, object, "residual_ulp", best ? fd_json_number(b, best->ulp) : json_null());
    fd_json_set_text(b, object, "runner_up", second->fault ? second->fault->name : NULL);
    fd_json_set(b, object, "runner_up_z", second->fault ? fd_json_number(b, second->z) : json_null());
    for (int32_t i = 0; i < e->n_remaining && i < FD_MAX_REMAINING; i++)
        fd_json_append(b, remaining, fit(b, &e->remaining[i]));
    fd_json_set(b, object, "remaining", remaining);
    fd_json_set_int(b, object, "tried", e->n_tried);
    fd_json_set_int(b, object, "without_effect", e->n_without_effect);
    fd_json_set_int(b, object, "untried", e->n_untried);
    fd_json_set_text(b, object, "reason", fd_unnamed_text(e, text));
    fd_json_set_text(b, object, "tells_apart", fd_tells_apart_text(e, text));
    return object;
}

static json_t *cause(fd_json_builder *b, const fd_cause *c) {
    json_t *object = json_object();
    fd_json_set_text(b, object, "node", c->node);
    set_fault(b, object, c->fault ? c->fault->name : NULL, c->fault ? c->fault->summary : NULL);
    fd_json_set_int(b, object, "tensors", c->n_node);
    fd_json_set_text(b, object, "layers", c->layers);
    return object;
}

json_t *fd_json_causes(fd_json_builder *b, const fd_causes *r) {
    json_t *list = json_array();
    fd_json_append(b, list, cause(b, &r->first));
    for (int32_t i = 0; i < r->n_also && i < FD_MAX_ALSO; i++) fd_json_append(b, list, cause(b, &r->also[i]));
    return list;
}
