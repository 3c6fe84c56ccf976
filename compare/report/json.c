#include "compare/report/json.h"

#include <math.h>

#include "compare/report/baseline.h"
#include "compare/report/remarks.h"
#include "compare/report/report.h"
#include "numerics/contract.h"

void fd_json_set(fd_json_builder *b, json_t *object, const char *key, json_t *value) {
    if (json_object_set_new(object, key, value) != 0) b->failed = true;
}

json_t *fd_json_text(const char *text) {
    if (!text) return json_null();
    json_t *value = json_string(text);
    if (value) return value;
    char ascii[1024];
    size_t n = 0;
    for (; text[n] && n + 1 < sizeof ascii; n++) ascii[n] = text[n] >= 0x20 && text[n] < 0x7f ? text[n] : '?';
    ascii[n] = '\0';
    return json_string(ascii);
}

void fd_json_set_text(fd_json_builder *b, json_t *object, const char *key, const char *text) {
    fd_json_set(b, object, key, fd_json_text(text));
}

void fd_json_append(fd_json_builder *b, json_t *list, json_t *value) {
    if (json_array_append_new(list, value) != 0) b->failed = true;
}

void fd_json_set_int(fd_json_builder *b, json_t *object, const char *key, int64_t n) {
    fd_json_set(b, object, key, json_integer((json_int_t)n));
}

json_t *fd_json_number(fd_json_builder *b, double x) {
    json_t *object = json_object();
    char text[40];
    fd_value_text(x, text, sizeof text);
    fd_json_set(b, object, "value", isfinite(x) ? json_real(x) : json_null());
    fd_json_set_text(b, object, "text", text);
    if (isnan(x) || (double)(float)x == x)
        snprintf(text, sizeof text, "0x%08x", fd_canonical32((float)x));
    else
        snprintf(text, sizeof text, "0x%016llx", (unsigned long long)fd_bits64(x));
    fd_json_set_text(b, object, "bits", text);
    return object;
}

static json_t *side(fd_json_builder *b, const fd_verdict_side *s) {
    json_t *object = json_object();
    fd_json_set_text(b, object, "label", s->label);
    fd_json_set_text(b, object, "producer", s->producer);
    fd_json_set_text(b, object, "backend", s->backend);
    fd_json_set_text(b, object, "numerics", s->numerics);
    fd_json_set_int(b, object, "contract", s->contract);
    fd_json_set_text(b, object, "device", s->device);
    fd_json_set_text(b, object, "fault", s->fault);
    fd_json_set_text(b, object, "model_name", s->model_name);
    fd_json_set_text(b, object, "model_hash", s->model_hash);
    fd_json_set_text(b, object, "arch", s->arch);
    fd_json_set_int(b, object, "positions", s->n_pos);
    fd_json_set(b, object, "complete", json_boolean(s->complete));
    return object;
}

static json_t *element(fd_json_builder *b, const fd_divergence *d, const fd_element_diff *e) {
    json_t *object = json_object(), *at = json_array();
    int64_t rest = e->index, place[4] = {0};
    for (int32_t i = d->n_dim - 1; i >= 0; i--) {
        place[i] = d->dims[i] > 0 ? rest % d->dims[i] : 0;
        rest = d->dims[i] > 0 ? rest / d->dims[i] : rest;
    }
    for (int32_t i = 0; i < d->n_dim; i++) fd_json_append(b, at, json_integer((json_int_t)place[i]));
    fd_json_set_int(b, object, "flat_index", e->index);
    fd_json_set(b, object, "index", at);
    fd_json_set(b, object, "reference", fd_json_number(b, e->ref));
    fd_json_set(b, object, "candidate", fd_json_number(b, e->cand));
    if (e->ulp == FD_ULP_NONE) {
        fd_json_set(b, object, "abs_difference", json_null());
        fd_json_set(b, object, "ulp", json_null());
    } else {
        double distance = fabs(e->cand - e->ref);
        fd_json_set(b, object, "abs_difference", isfinite(distance) ? json_real(distance) : json_null());
        fd_json_set_int(b, object, "ulp", e->ulp > INT64_MAX ? INT64_MAX : (int64_t)e->ulp);
    }
    return object;
}

static json_t *values(fd_json_builder *b, const fd_divergence *d) {
    const fd_tensor_diff *t = &d->diff;
    const fd_dtype_info *grid = fd_dtype_get(t->grid);
    json_t *object = json_object();
    fd_json_set_text(b, object, "compared_as", grid ? grid->name : "?");
    fd_json_set_int(b, object, "elements", t->n);
    fd_json_set_int(b, object, "differ", t->n_differ);
    fd_json_set(b, object, "first", element(b, d, &t->first));
    fd_json_set(b, object, "largest", t->largest.index < 0 ? json_null() : element(b, d, &t->largest));
    fd_json_set_int(b, object, "nan_both", t->n_nan_same);
    fd_json_set_int(b, object, "nan_new", t->n_nan_new);
    fd_json_set_int(b, object, "nan_lost", t->n_nan_lost);
    fd_json_set_int(b, object, "inf_new", t->n_inf_new);
    fd_json_set_int(b, object, "inf_lost", t->n_inf_lost);
    fd_json_set_int(b, object, "inf_sign", t->n_inf_sign);
    return object;
}

static json_t *divergence(fd_json_builder *b, const fd_divergence *d) {
    static const char *const kinds[] = {"none", "tokens", "shape", "values", "weights"};
    json_t *object = json_object(), *inputs = json_array();
    fd_json_set_text(b, object, "kind", kinds[d->kind]);
    fd_json_set_text(b, object, "node", d->node);
    fd_json_set_int(b, object, "layer", d->layer);
    if (d->kind == FD_DIVERGED_WEIGHTS) {
        json_decref(inputs);
        return object;
    }
    fd_json_set_int(b, object, "step", d->step);
    fd_json_set_text(b, object, "step_kind", fd_step_kind_name(d->step_kind));
    fd_json_set_int(b, object, "position", d->pos);
    if (d->kind == FD_DIVERGED_TOKENS) {
        fd_json_set_int(b, object, "reference_token", d->ref_token);
        fd_json_set_int(b, object, "candidate_token", d->cand_token);
        json_decref(inputs);
        return object;
    }
    fd_json_set_text(b, object, "op", d->op);
    fd_json_set_text(b, object, "attributes", d->attributes);
    fd_json_set_text(b, object, "reference_shape", d->ref_shape);
    fd_json_set_text(b, object, "candidate_shape", d->cand_shape);
    for (int32_t i = 0; i < d->n_input; i++) {
        json_t *input = json_object();
        fd_json_set_text(b, input, "name", d->inputs[i].name);
        fd_json_set_text(b, input, "equality", fd_equality_name(d->inputs[i].equality));
        fd_json_append(b, inputs, input);
    }
    fd_json_set(b, object, "inputs", inputs);
    fd_json_set(b, object, "introduced_here",
                d->inputs_equal == FD_EQUALITY_UNKNOWN ? json_null() : json_boolean(d->inputs_equal == FD_EQUAL));
    fd_json_set(b, object, "values", d->has_values ? values(b, d) : json_null());
    return object;
}

static json_t *missing(fd_json_builder *b, const fd_verdict *v) {
    static const char *const why[] = {"only in the reference", "only in the candidate", "not recorded on both sides"};
    json_t *list = json_array();
    for (int32_t i = 0; i < v->n_missing; i++) {
        json_t *item = json_object();
        fd_json_set_text(b, item, "name", v->missing[i].name);
        fd_json_set_text(b, item, "why", why[v->missing[i].why]);
        fd_json_set_int(b, item, "positions", v->missing[i].n_pos);
        fd_json_set(b, item, "allowed", json_boolean(v->missing[i].allowed));
        fd_json_append(b, list, item);
    }
    return list;
}

static json_t *remarks(fd_json_builder *b, const fd_verdict *v, const fd_remarks *of) {
    json_t *list = json_array();
    char text[FD_REMARK_SIZE];
    for (int32_t i = 0; i < of->n && i < FD_MAX_REMARKS; i++)
        fd_json_append(b, list, fd_json_text(fd_remark_text(v, &of->items[i], text)));
    return list;
}

fd_code fd_report_json(FILE *to, const fd_verdict *v, fd_error *err) {
    fd_json_builder build = {false}, *b = &build;
    json_t *root = json_object();
    fd_json_set_text(b, root, "schema", "firstdiff-verdict 1");
    fd_json_set_text(b, root, "status", fd_verdict_status_name(v->status));
    fd_json_set_int(b, root, "exit_status", fd_verdict_exit_status(v));
    fd_json_set(b, root, "reference", side(b, &v->ref));
    fd_json_set(b, root, "candidate", side(b, &v->cand));
    fd_json_set_int(b, root, "positions", v->counts.n_pos);
    fd_json_set_int(b, root, "steps", v->counts.n_step);
    fd_json_set_int(b, root, "tensors_compared", v->counts.n_compared);
    fd_json_set_int(b, root, "tensors_by_fingerprint", v->counts.n_by_fingerprint);
    fd_json_set_int(b, root, "identical_before", v->counts.n_before);
    if (v->counts.after_known) {
        fd_json_set_int(b, root, "identical_after", v->counts.n_after_identical);
        fd_json_set_int(b, root, "differ_after", v->counts.n_after_differ);
    } else {
        fd_json_set(b, root, "identical_after", json_null());
        fd_json_set(b, root, "differ_after", json_null());
    }
    fd_json_set(b, root, "divergence",
                v->divergence.kind == FD_NO_DIVERGENCE ? json_null() : divergence(b, &v->divergence));
    if (v->weights.compared) fd_json_set(b, root, "weights", fd_json_weights(b, &v->weights));
    if (v->replay.done) fd_json_set(b, root, "replay", fd_json_replay(b, &v->replay));
    if (v->replay.done) fd_json_set(b, root, "best_token", fd_json_flip(b, &v->flip));
    if (v->diagnosis.done) fd_json_set(b, root, "explanation", fd_json_explanation(b, &v->diagnosis.explanation));
    if (v->diagnosis.done) fd_json_set(b, root, "causes", fd_json_causes(b, &v->diagnosis.causes));
    if (v->moved) {
        json_t *moved = json_object();
        char text[512];
        fd_json_set_text(b, moved, "moved", fd_moved_name(v->moved));
        fd_baseline_text(v, text, sizeof text);
        fd_json_set_text(b, moved, "text", text);
        fd_json_set(b, root, "since", moved);
    }
    fd_json_set(b, root, "missing", missing(b, v));
    fd_json_set(b, root, "reasons", remarks(b, v, &v->reasons));
    fd_json_set(b, root, "notes", remarks(b, v, &v->notes));
    fd_json_set_text(b, root, "next", v->next);
    bool written = !build.failed && json_dumpf(root, to, JSON_INDENT(2) | JSON_PRESERVE_ORDER) == 0;
    json_decref(root);
    if (build.failed) return fd_fail(err, FD_ERR_MEMORY, "JSON report: out of memory");
    if (!written || fputc('\n', to) == EOF) return fd_fail(err, FD_ERR_IO, "JSON report: writing failed");
    return FD_OK;
}
