#include <jansson.h>
#include <math.h>

#include "compare/report.h"
#include "compare/since.h"
#include "numerics/contract.h"

/* json_object_set_new takes over the value also when it is NULL and fails; one failure anywhere fails the report. */
typedef struct builder {
    bool failed;
} builder;

static void set(builder *b, json_t *object, const char *key, json_t *value) {
    if (json_object_set_new(object, key, value) != 0) b->failed = true;
}

/* A name from a file need not be UTF-8; then its printable part stands for it. */
static json_t *text_value(const char *text) {
    json_t *value = json_string(text);
    if (value) return value;
    char ascii[1024];
    size_t n = 0;
    for (; text[n] && n + 1 < sizeof ascii; n++) ascii[n] = text[n] >= 0x20 && text[n] < 0x7f ? text[n] : '?';
    ascii[n] = '\0';
    return json_string(ascii);
}

static void set_text(builder *b, json_t *object, const char *key, const char *text) {
    set(b, object, key, text_value(text));
}

static void append(builder *b, json_t *list, json_t *value) {
    if (json_array_append_new(list, value) != 0) b->failed = true;
}

static void set_int(builder *b, json_t *object, const char *key, int64_t n) {
    set(b, object, key, json_integer((json_int_t)n));
}

/* {"value": 0.5, "text": "0.5", "bits": "0x3f000000"}; value is null for NaN and Inf. */
static json_t *number(builder *b, double x) {
    json_t *object = json_object();
    char text[40];
    fd_value_text(x, text, sizeof text);
    set(b, object, "value", isfinite(x) ? json_real(x) : json_null());
    set_text(b, object, "text", text);
    if (isnan(x) || (double)(float)x == x)
        snprintf(text, sizeof text, "0x%08x", fd_canonical32((float)x));
    else
        snprintf(text, sizeof text, "0x%016llx", (unsigned long long)fd_bits64(x));
    set_text(b, object, "bits", text);
    return object;
}

static json_t *side(builder *b, const fd_verdict_side *s) {
    json_t *object = json_object();
    set_text(b, object, "label", s->label);
    set_text(b, object, "producer", s->producer);
    set_text(b, object, "backend", s->backend);
    set_text(b, object, "numerics", s->numerics);
    set_int(b, object, "contract", s->contract);
    set_text(b, object, "device", s->device);
    set_text(b, object, "fault", s->fault);
    set_text(b, object, "model_name", s->model_name);
    set_text(b, object, "model_hash", s->model_hash);
    set_text(b, object, "arch", s->arch);
    set_int(b, object, "positions", s->n_pos);
    set(b, object, "complete", json_boolean(s->complete));
    return object;
}

static json_t *element(builder *b, const fd_divergence *d, const fd_element_diff *e) {
    json_t *object = json_object(), *at = json_array();
    int64_t rest = e->index, place[4] = {0};
    for (int32_t i = d->n_dim - 1; i >= 0; i--) {
        place[i] = d->dims[i] > 0 ? rest % d->dims[i] : 0;
        rest = d->dims[i] > 0 ? rest / d->dims[i] : rest;
    }
    for (int32_t i = 0; i < d->n_dim; i++) append(b, at, json_integer((json_int_t)place[i]));
    set_int(b, object, "flat_index", e->index);
    set(b, object, "index", at);
    set(b, object, "reference", number(b, e->ref));
    set(b, object, "candidate", number(b, e->cand));
    if (e->ulp == FD_ULP_NONE) {
        set(b, object, "abs_difference", json_null());
        set(b, object, "ulp", json_null());
    } else {
        double distance = fabs(e->cand - e->ref);
        set(b, object, "abs_difference", isfinite(distance) ? json_real(distance) : json_null());
        set_int(b, object, "ulp", e->ulp > INT64_MAX ? INT64_MAX : (int64_t)e->ulp);
    }
    return object;
}

static json_t *values(builder *b, const fd_divergence *d) {
    const fd_tensor_diff *t = &d->diff;
    const fd_dtype_info *grid = fd_dtype_get(t->grid);
    json_t *object = json_object();
    set_text(b, object, "compared_as", grid ? grid->name : "?");
    set_int(b, object, "elements", t->n);
    set_int(b, object, "differ", t->n_differ);
    set(b, object, "first", element(b, d, &t->first));
    set(b, object, "largest", t->largest.index < 0 ? json_null() : element(b, d, &t->largest));
    set_int(b, object, "nan_both", t->n_nan_same);
    set_int(b, object, "nan_new", t->n_nan_new);
    set_int(b, object, "nan_lost", t->n_nan_lost);
    set_int(b, object, "inf_new", t->n_inf_new);
    set_int(b, object, "inf_lost", t->n_inf_lost);
    set_int(b, object, "inf_sign", t->n_inf_sign);
    return object;
}

static json_t *divergence(builder *b, const fd_divergence *d) {
    static const char *const kinds[] = {"none", "tokens", "shape", "values", "weights"};
    json_t *object = json_object(), *inputs = json_array();
    set_text(b, object, "kind", kinds[d->kind]);
    set_text(b, object, "node", d->node);
    set_int(b, object, "layer", d->layer);
    if (d->kind == FD_DIVERGED_WEIGHTS) {
        json_decref(inputs);
        return object;
    }
    set_int(b, object, "step", d->step);
    set_text(b, object, "step_kind", fd_step_kind_name(d->step_kind));
    set_int(b, object, "position", d->pos);
    if (d->kind == FD_DIVERGED_TOKENS) {
        set_int(b, object, "reference_token", d->ref_token);
        set_int(b, object, "candidate_token", d->cand_token);
        json_decref(inputs);
        return object;
    }
    set_text(b, object, "op", d->op);
    set_text(b, object, "attributes", d->attributes);
    set_text(b, object, "reference_shape", d->ref_shape);
    set_text(b, object, "candidate_shape", d->cand_shape);
    for (int32_t i = 0; i < d->n_input; i++) {
        json_t *input = json_object();
        set_text(b, input, "name", d->inputs[i].name);
        set_text(b, input, "equality", fd_equality_name(d->inputs[i].equality));
        append(b, inputs, input);
    }
    set(b, object, "inputs", inputs);
    set(b, object, "introduced_here",
        d->inputs_equal == FD_EQUALITY_UNKNOWN ? json_null() : json_boolean(d->inputs_equal == FD_EQUAL));
    set(b, object, "values", d->has_values ? values(b, d) : json_null());
    return object;
}

static json_t *missing(builder *b, const fd_verdict *v) {
    static const char *const why[] = {"only in the reference", "only in the candidate", "not recorded on both sides"};
    json_t *list = json_array();
    for (int32_t i = 0; i < v->n_missing; i++) {
        json_t *item = json_object();
        set_text(b, item, "name", v->missing[i].name);
        set_text(b, item, "why", why[v->missing[i].why]);
        set_int(b, item, "positions", v->missing[i].n_pos);
        set(b, item, "allowed", json_boolean(v->missing[i].allowed));
        append(b, list, item);
    }
    return list;
}

static json_t *texts(builder *b, const char (*lines)[FD_REASON_SIZE], int32_t n) {
    json_t *list = json_array();
    for (int32_t i = 0; i < n && i < FD_MAX_REASONS; i++) append(b, list, text_value(lines[i]));
    return list;
}

static json_t *replay(builder *b, const fd_verdict_replay *p) {
    json_t *object = json_object();
    set_text(b, object, "class", p->numerics);
    set_text(b, object, "class_source", p->source);
    set_int(b, object, "tensors", p->n_tensor);
    set_int(b, object, "noise", p->n_noise);
    set_int(b, object, "inherited", p->n_inherited);
    set_int(b, object, "amplified", p->n_amplifier);
    set_int(b, object, "introduced", p->n_introduced);
    set(b, object, "largest_noise_z", p->noisiest_z >= 0 ? number(b, p->noisiest_z) : json_null());
    set_text(b, object, "largest_noise_at", p->noisiest);
    if (!p->finding[0]) {
        set(b, object, "finding", json_null());
        return object;
    }
    set_text(b, object, "finding", p->finding);
    set(b, object, "of_reference", json_boolean(p->of_reference));
    set(b, object, "z", number(b, p->z));
    set(b, object, "tau", number(b, p->tau));
    set(b, object, "value", number(b, p->candidate));
    set(b, object, "replayed", number(b, p->replayed));
    set(b, object, "introduced_share", p->shares_known ? json_real(p->introduced) : json_null());
    set(b, object, "propagated_share", p->shares_known ? json_real(p->propagated) : json_null());
    set_int(b, object, "elements", p->n_element);
    set_int(b, object, "elements_beyond", p->n_beyond);
    set_int(b, object, "heads_beyond", p->n_slice_beyond);
    set_int(b, object, "not_finite_new", p->n_nan_new);
    set_int(b, object, "before", p->n_before);
    set_text(b, object, "span_first", p->span_first);
    set_text(b, object, "record_to_narrow", p->missing);
    set_text(b, object, "tensors_to_narrow", p->tensors);
    set_text(b, object, "not_finite_first_at", p->not_finite);
    set_text(b, object, "next_introduced", p->next);
    return object;
}

static void set_count(builder *b, json_t *object, const char *key, int64_t n) {
    set(b, object, key, n < 0 ? json_null() : json_integer((json_int_t)n));
}

static json_t *weight_side(builder *b, const char *dtype, int64_t n_row, int64_t n_col, int64_t zero, int64_t trailing) {
    json_t *object = json_object();
    set_text(b, object, "dtype", dtype);
    set_int(b, object, "rows", n_row);
    set_count(b, object, "columns", n_col ? n_col : -1);
    set_count(b, object, "zero_rows", zero);
    set_count(b, object, "trailing_zero_rows", trailing);
    return object;
}

static json_t *weights(builder *b, const fd_verdict_weights *w) {
    json_t *object = json_object();
    set_text(b, object, "against", w->against_model ? "model" : "reference");
    set_int(b, object, "same", w->n_same);
    set_int(b, object, "differ", w->n_differ);
    set_int(b, object, "unknown", w->n_unknown);
    if (!w->n_differ) return object;
    set(b, object, "of_reference", json_boolean(w->of_reference));
    set_text(b, object, "first", w->name);
    set_text(b, object, "read_by", w->node);
    set(b, object, "held", weight_side(b, w->dtype, w->n_row, w->n_col, w->n_zero_row, w->n_trailing_zero_row));
    set(b, object, "expected",
        weight_side(b, w->expected_dtype, w->expected_n_row, w->expected_n_col, w->expected_zero_row,
                    w->expected_trailing_zero_row));
    set_int(b, object, "rows_per_hash", w->rows_per_hash);
    set_count(b, object, "first_row", w->first_row);
    set_int(b, object, "rows_differ", w->n_row_differ);
    set_text(b, object, "holds", w->match);
    set_text(b, object, "others", w->others);
    set(b, object, "name", w->named ? text_value(w->fault) : json_null());
    set(b, object, "summary", w->named ? text_value(w->summary) : json_null());
    set_text(b, object, "same_as", w->same_as);
    set_int(b, object, "explained", w->n_explained);
    set_text(b, object, "reason", w->reason);
    set(b, object, "replayed_with_them", json_boolean(w->replayed));
    set_int(b, object, "unjudged_nodes", w->n_unjudged);
    return object;
}

static json_t *choice(builder *b, const fd_verdict_choice *c) {
    json_t *object = json_object();
    set_int(b, object, "positions", c->n_pos);
    set_int(b, object, "flips", c->n_flip);
    set_int(b, object, "flips_within_tau", c->n_flip_noise);
    if (c->n_flip) {
        set_int(b, object, "position", c->pos);
        set_int(b, object, "reference_token", c->ref_token);
        set_int(b, object, "candidate_token", c->cand_token);
        set(b, object, "reference_margin", number(b, c->ref_margin));
        set(b, object, "candidate_margin", number(b, c->cand_margin));
        set(b, object, "tau", number(b, c->tau));
    }
    set(b, object, "tokens_part_at", c->fed ? json_integer(c->fed_pos) : json_null());
    set(b, object, "own_choices", c->fed && c->choice_known ? json_boolean(c->chosen) : json_null());
    return object;
}

static json_t *fit(builder *b, const fd_explain_fit *f) {
    json_t *object = json_object();
    set_text(b, object, "name", f->fault->name);
    set_text(b, object, "summary", f->fault->summary);
    set(b, object, "z", number(b, f->z));
    set(b, object, "ulp", number(b, f->ulp));
    set_int(b, object, "elements_beyond", f->n_beyond);
    return object;
}

static json_t *explanation(builder *b, const fd_explanation *e) {
    json_t *object = json_object(), *remaining = json_array();
    const fd_explain_fit *best = e->named ? &e->remaining[0] : NULL, *second = &e->runner_up;
    set(b, object, "name", best ? text_value(best->fault->name) : json_null());
    set(b, object, "summary", best ? text_value(best->fault->summary) : json_null());
    set(b, object, "residual_z", best ? number(b, best->z) : json_null());
    set(b, object, "residual_ulp", best ? number(b, best->ulp) : json_null());
    set(b, object, "runner_up", second->fault ? text_value(second->fault->name) : json_null());
    set(b, object, "runner_up_z", second->fault ? number(b, second->z) : json_null());
    for (int32_t i = 0; i < e->n_remaining && i < FD_MAX_REMAINING; i++) append(b, remaining, fit(b, &e->remaining[i]));
    set(b, object, "remaining", remaining);
    set_int(b, object, "tried", e->n_tried);
    set_int(b, object, "without_effect", e->n_without_effect);
    set_int(b, object, "untried", e->n_untried);
    set_text(b, object, "reason", e->reason);
    set_text(b, object, "tells_apart", e->next);
    return object;
}

static json_t *cause(builder *b, const fd_same_cause *c) {
    json_t *object = json_object();
    set_text(b, object, "node", c->node);
    set(b, object, "name", c->fault ? text_value(c->fault->name) : json_null());
    set(b, object, "summary", c->fault ? text_value(c->fault->summary) : json_null());
    set_int(b, object, "tensors", c->n_node);
    set_text(b, object, "layers", c->layers);
    return object;
}

/* The first cause, then the others. */
static json_t *causes(builder *b, const fd_rest *r) {
    json_t *list = json_array();
    append(b, list, cause(b, &r->same));
    for (int32_t i = 0; i < r->n_also && i < FD_MAX_ALSO; i++) append(b, list, cause(b, &r->also[i]));
    return list;
}

fd_code fd_report_json(FILE *to, const fd_verdict *v, fd_error *err) {
    builder build = {false}, *b = &build;
    json_t *root = json_object();
    set_text(b, root, "schema", "firstdiff-verdict 1");
    set_text(b, root, "status", fd_verdict_status_name(v->status));
    set_int(b, root, "exit_status", fd_verdict_exit_status(v));
    set(b, root, "reference", side(b, &v->ref));
    set(b, root, "candidate", side(b, &v->cand));
    set_int(b, root, "positions", v->n_pos);
    set_int(b, root, "steps", v->n_step);
    set_int(b, root, "tensors_compared", v->n_compared);
    set_int(b, root, "tensors_by_fingerprint", v->n_by_fingerprint);
    set_int(b, root, "identical_before", v->n_before);
    if (v->after_known) {
        set_int(b, root, "identical_after", v->n_after_identical);
        set_int(b, root, "differ_after", v->n_after_differ);
    } else {
        set(b, root, "identical_after", json_null());
        set(b, root, "differ_after", json_null());
    }
    set(b, root, "divergence", v->divergence.kind == FD_NO_DIVERGENCE ? json_null() : divergence(b, &v->divergence));
    if (v->weights.compared) set(b, root, "weights", weights(b, &v->weights));
    if (v->replay.done) set(b, root, "replay", replay(b, &v->replay));
    if (v->replay.done) set(b, root, "best_token", choice(b, &v->choice));
    if (v->explained) set(b, root, "explanation", explanation(b, &v->explanation));
    if (v->explained) set(b, root, "causes", causes(b, &v->rest));
    if (v->moved) {
        json_t *moved = json_object();
        set_text(b, moved, "moved", fd_moved_name(v->moved));
        set_text(b, moved, "text", v->since);
        set(b, root, "since", moved);
    }
    set(b, root, "missing", missing(b, v));
    set(b, root, "reasons", texts(b, v->reasons, v->n_reason));
    set(b, root, "notes", texts(b, v->notes, v->n_note));
    set_text(b, root, "next", v->next);
    bool written = !build.failed && json_dumpf(root, to, JSON_INDENT(2) | JSON_PRESERVE_ORDER) == 0;
    json_decref(root);
    if (build.failed) return fd_fail(err, FD_ERR_MEMORY, "JSON report: out of memory");
    if (!written || fputc('\n', to) == EOF) return fd_fail(err, FD_ERR_IO, "JSON report: writing failed");
    return FD_OK;
}
