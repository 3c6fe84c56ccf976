#include "compare/report/json.h"

#include "compare/report/json_build.h"
#include "compare/report/remarks.h"
#include "compare/report/unnamed.h"

#define INT FD_JSON_INT

static json_t *extent(const fd_verdict_extent *e) {
    static const char *const only[] = {[FD_ONLY_IN_DECODE] = "decode", [FD_ONLY_IN_PREFILL] = "prefill"};
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:s?}", "judged", e->n_judged, "beyond", e->n_beyond, "first",
                     e->first, "last", e->last, "first_step", e->first_step, "last_step", e->last_step, "only",
                     only[e->only]);
}

static json_t *overflow(const fd_overflow *o) {
    char text[FD_OVERFLOW_TEXT_SIZE];
    if (o->kind == FD_OVERFLOW_NONE) return json_null();
    return json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:i, s:i, s:i, s:o}", "kind", fd_overflow_kind_name(o->kind),
                     "node", o->node, "input", fd_json_text(o->input), "type", fd_json_text(o->type ? o->type : ""),
                     "limit", fd_json_number_if(o->type != NULL, o->limit), "reaches", fd_json_number(o->reaches),
                     "position", o->pos, "rows", o->n_row, "rows_not_finite", o->n_row_not_finite, "summary",
                     fd_json_text(fd_overflow_text(o, text)));
}

json_t *fd_json_replay(const fd_verdict_replay *p) {
    char evidence[FD_REMARK_SIZE];
    fd_class_evidence_text(&p->evidence, evidence);
    json_t *object =
        json_pack("{s:s, s:s, s:o, s:b, s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "class", p->numerics, "class_source",
                  p->source, "class_evidence", fd_json_text(evidence), "class_undecided", p->evidence.undecided,
                  "tensors", INT(p->n_tensor), "noise", INT(p->n_noise), "inherited", INT(p->n_inherited), "amplified",
                  INT(p->n_amplifier), "introduced", INT(p->n_introduced), "largest_noise_z",
                  fd_json_number_if(p->noisiest_z >= 0, p->noisiest_z), "largest_noise_at", fd_json_text(p->noisiest));
    if (!p->finding[0]) return fd_json_join(object, json_pack("{s:n}", "finding"));
    object = fd_json_join(object,
                          json_pack("{s:s, s:b, s:o, s:o, s:o, s:o, s:o, s:o}", "finding", p->finding, "of_reference",
                                    p->of_reference, "z", fd_json_number(p->z), "tau", fd_json_number(p->tau), "value",
                                    fd_json_number(p->candidate), "replayed", fd_json_number(p->replayed),
                                    "introduced_share", p->shares_known ? json_real(p->introduced) : json_null(),
                                    "propagated_share", p->shares_known ? json_real(p->propagated) : json_null()));
    return fd_json_join(object, json_pack("{s:o, s:I, s:I, s:i, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o}", "positions",
                                          extent(&p->extent), "elements", INT(p->n_element), "elements_beyond",
                                          INT(p->n_beyond), "heads_beyond", p->n_slice_beyond, "not_finite_new",
                                          INT(p->n_nan_new), "before", INT(p->n_before), "span_first",
                                          fd_json_text(p->span_first), "record_to_narrow", fd_json_text(p->missing),
                                          "tensors_to_narrow", fd_json_text(p->tensors), "not_finite_first_at",
                                          fd_json_text(p->not_finite), "overflow", overflow(&p->overflow),
                                          "next_introduced", fd_json_text(p->next)));
}

static json_t *weight_side(const char *dtype, int64_t n_row, int64_t n_col, int64_t zero, int64_t trailing) {
    return json_pack("{s:o, s:I, s:o, s:o, s:o}", "dtype", fd_json_text(dtype), "rows", INT(n_row), "columns",
                     fd_json_int_if(n_col != 0, n_col), "zero_rows", fd_json_int_if(zero >= 0, zero),
                     "trailing_zero_rows", fd_json_int_if(trailing >= 0, trailing));
}

json_t *fd_json_weights(const fd_verdict_weights *w) {
    char match[FD_UNNAMED_SIZE], unnamed[FD_UNNAMED_SIZE];
    json_t *object = json_pack("{s:s, s:i, s:i, s:i}", "against", w->against_model ? "model" : "reference", "same",
                               w->n_same, "differ", w->n_differ, "unknown", w->n_unknown);
    if (!w->n_differ) return object;
    object = fd_json_join(
        object, json_pack("{s:b, s:o, s:s, s:o, s:o, s:o, s:i, s:o, s:I}", "of_reference", w->of_reference, "first",
                          fd_json_text(w->name), "seen_in", w->by_values ? "values" : "hashes", "read_by",
                          fd_json_text(w->node), "held",
                          weight_side(w->dtype, w->n_row, w->n_col, w->n_zero_row, w->n_trailing_zero_row), "expected",
                          weight_side(w->expected_dtype, w->expected_n_row, w->expected_n_col, w->expected_zero_row,
                                      w->expected_trailing_zero_row),
                          "rows_per_hash", w->rows_per_hash, "first_row",
                          fd_json_int_if(w->first_row >= 0, w->first_row), "rows_differ", INT(w->n_row_differ)));
    return fd_json_join(object,
                        json_pack("{s:o, s:o, s:s?, s:s?, s:o, s:i, s:o, s:b, s:i}", "holds",
                                  fd_json_text(fd_weights_match_text(w, match)), "others", fd_json_text(w->others),
                                  "name", w->named ? w->fault : NULL, "summary", w->named ? w->summary : NULL,
                                  "same_as", fd_json_text(w->same_as), "explained", w->n_explained, "reason",
                                  fd_json_text(fd_weights_unnamed_text(w, unnamed)), "replayed_with_them", w->replayed,
                                  "unjudged_nodes", w->n_unjudged));
}

json_t *fd_json_flip(const fd_verdict_flip *c) {
    json_t *object =
        json_pack("{s:i, s:i, s:i}", "positions", c->n_pos, "flips", c->n_flip, "flips_within_tau", c->n_flip_noise);
    if (c->n_flip)
        object = fd_json_join(object, json_pack("{s:i, s:i, s:i, s:o, s:o, s:o}", "position", c->pos, "reference_token",
                                                c->ref_token, "candidate_token", c->cand_token, "reference_margin",
                                                fd_json_number(c->ref_margin), "candidate_margin",
                                                fd_json_number(c->cand_margin), "tau", fd_json_number(c->tau)));
    return fd_json_join(object,
                        json_pack("{s:o, s:o}", "tokens_part_at", fd_json_int_if(c->fed, c->fed_pos), "own_choices",
                                  c->fed && c->choice_known ? json_boolean(c->chosen) : json_null()));
}

static json_t *fit(const fd_explain_fit *f) {
    return json_pack("{s:s, s:s, s:o, s:o, s:I}", "name", f->name, "summary", f->summary, "z", fd_json_number(f->z),
                     "ulp", fd_json_number(f->ulp), "elements_beyond", INT(f->n_beyond));
}

json_t *fd_json_explanation(const fd_explanation *e) {
    json_t *remaining = json_array();
    char unnamed[FD_UNNAMED_SIZE], apart[FD_UNNAMED_SIZE];
    const fd_explain_fit *best = &e->remaining[0], *second = &e->runner_up;
    for (int32_t i = 0; i < e->n_remaining && i < FD_MAX_REMAINING; i++)
        remaining = fd_json_append(remaining, fit(&e->remaining[i]));
    return json_pack(
        "{s:s?, s:s?, s:s?, s:o, s:o, s:s?, s:s?, s:o, s:o, s:i, s:i, s:i, s:o, s:o, s:o, s:o, s:i}", "name",
        e->named ? best->name : NULL, "summary", e->named ? best->summary : NULL, "at",
        e->named && best->at[0] ? best->at : NULL, "residual_z", fd_json_number_if(e->named, best->z), "residual_ulp",
        fd_json_number_if(e->named, best->ulp), "runner_up", second->name[0] ? second->name : NULL, "runner_up_summary",
        second->name[0] ? second->summary : NULL, "runner_up_z", fd_json_number_if(second->name[0] != 0, second->z),
        "remaining", remaining, "tried", e->n_tried, "without_effect", e->n_without_effect, "untried", e->n_untried,
        "reason", fd_json_text(fd_unnamed_text(e, unnamed)), "tells_apart", fd_json_text(fd_tells_apart_text(e, apart)),
        "slope", fd_json_number_if(e->slope_rows > 0, e->slope), "slope_error",
        fd_json_number_if(e->slope_rows > 0, e->slope_error), "slope_rows", e->slope_rows);
}

static json_t *cause(const fd_cause *c) {
    return json_pack("{s:o, s:s?, s:s?, s:i, s:s}", "node", fd_json_text(c->node), "name", c->name[0] ? c->name : NULL,
                     "summary", c->name[0] ? c->summary : NULL, "tensors", c->n_node, "layers", c->layers);
}

json_t *fd_json_causes(const fd_causes *causes) {
    json_t *list = json_array();
    list = fd_json_append(list, cause(&causes->first));
    for (int32_t i = 0; i < causes->n_also && i < FD_MAX_ALSO; i++)
        list = fd_json_append(list, cause(&causes->also[i]));
    return list;
}
