#include "compare/report/baseline.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"

/* ---- reading a verdict ---- */

static void copy(const json_t *object, const char *key, char *to, size_t size) {
    const char *text = json_string_value(json_object_get(object, key));
    snprintf(to, size, "%s", text ? text : "");
}

static fd_code take(const json_t *root, const char *where, fd_baseline *out, fd_error *err) {
    const char *schema = json_string_value(json_object_get(root, "schema"));
    if (!schema || strcmp(schema, "firstdiff-verdict 1") != 0)
        return fd_fail(err, FD_ERR_INPUT, "%s: schema %.40s, expected firstdiff-verdict 1 (what --json prints)", where,
                       schema ? schema : "not stated");
    const json_t *divergence = json_object_get(root, "divergence"), *weights = json_object_get(root, "weights");
    *out = (fd_baseline){0};
    if (json_integer_value(json_object_get(weights, "differ")) > 0) {
        out->diverged = out->in_weights = true;
        copy(weights, "first", out->weight, sizeof out->weight);
        copy(weights, "read_by", out->node, sizeof out->node);
        copy(weights, "name", out->name, sizeof out->name);
    } else if (json_is_object(divergence)) {
        json_int_t step = json_integer_value(json_object_get(divergence, "step"));
        out->diverged = true;
        out->step = step < 0 ? 0 : step > INT32_MAX ? INT32_MAX : (int32_t)step;
        copy(divergence, "node", out->node, sizeof out->node);
        copy(json_object_get(root, "explanation"), "name", out->name, sizeof out->name);
    }
    return FD_OK;
}

fd_code fd_baseline_parse(const char *data, size_t size, const char *where, fd_baseline *out, fd_error *err) {
    json_error_t why;
    FD_TRY(fd_json_fits(where, data, size, err));
    json_t *root = json_loadb(data, size, 0, &why);
    if (!root) return fd_fail(err, FD_ERR_INPUT, "%s: not JSON: line %d: %.100s", where, why.line, why.text);
    fd_code code = take(root, where, out, err);
    json_decref(root);
    return code;
}

fd_code fd_baseline_read(const char *path, fd_baseline *out, fd_error *err) {
    char *data;
    size_t size;
    FD_TRY(fd_file_read(path, "an earlier verdict", FD_LIMIT_TEXT_BYTES, &data, &size, err));
    fd_code code = fd_baseline_parse(data, size, path, out, err);
    free(data);
    return code;
}

/* ---- comparing ---- */

static fd_baseline now(const fd_verdict *v) {
    fd_baseline s = {.step = v->divergence.step};
    s.in_weights = v->weights.n_differ > 0;
    s.diverged = s.in_weights || v->divergence.kind != FD_NO_DIVERGENCE;
    snprintf(s.weight, sizeof s.weight, "%s", v->weights.name);
    snprintf(s.node, sizeof s.node, "%s", s.in_weights ? v->weights.node : v->divergence.node);
    if (s.in_weights)
        snprintf(s.name, sizeof s.name, "%s", v->weights.named ? v->weights.fault : "");
    else if (v->diagnosis.done && v->diagnosis.explanation.named)
        snprintf(s.name, sizeof s.name, "%s", v->diagnosis.explanation.remaining[0].name);
    return s;
}

/* Less than 0: a is earlier. */
static int64_t order_of(const fd_baseline *a, const fd_baseline *b, const fd_trace *order) {
    if (a->in_weights != b->in_weights) return a->in_weights ? -1 : 1;
    if (!a->in_weights && a->step != b->step) return (int64_t)a->step - b->step;
    return (int64_t)fd_trace_find(order, a->node) - fd_trace_find(order, b->node);
}

static void place(const fd_baseline *s, char *to, size_t size) {
    if (s->in_weights)
        snprintf(to, size, "weight %s", s->weight);
    else
        snprintf(to, size, "%s step %d", s->node[0] ? s->node : "the tokens", s->step);
}

void fd_baseline_apply(const fd_baseline *baseline, const fd_trace *order, fd_verdict *verdict) {
    fd_baseline here = now(verdict);
    int64_t by = order_of(baseline, &here, order);
    if (!baseline->diverged && !here.diverged) return;
    if (baseline->diverged && verdict->status == FD_INCOMPLETE) {
        fd_remark r = {FD_NOTE_BASELINE_NOT_SEEN};
        place(baseline, r.text, sizeof r.text);
        fd_verdict_note(verdict, r);
        return;
    }
    verdict->baseline = *baseline;
    verdict->moved = !here.diverged        ? FD_MOVED_GONE
                     : !baseline->diverged ? FD_MOVED_NEW
                     : by < 0              ? FD_MOVED_LATER
                     : by > 0              ? FD_MOVED_EARLIER
                                           : FD_MOVED_NOT;
}

void fd_baseline_text(const fd_verdict *verdict, char *to, size_t size) {
    static const char *const verbs[] = {"", "moved later", "moved earlier", "the same place", "gone", "new"};
    fd_baseline here = now(verdict);
    const fd_baseline *then = &verdict->baseline;
    const char *verb = verbs[verdict->moved];
    char from[160], now_at[160], name[160] = "";
    place(then, from, sizeof from);
    place(&here, now_at, sizeof now_at);
    if (then->name[0] && strcmp(then->name, here.name) != 0) snprintf(name, sizeof name, "; it was %s", then->name);
    if (verdict->moved == FD_MOVED_UNASKED)
        to[0] = '\0';
    else if (verdict->moved == FD_MOVED_NEW)
        snprintf(to, size, "%s: there was none before", verb);
    else if (verdict->moved == FD_MOVED_GONE || verdict->moved == FD_MOVED_NOT)
        snprintf(to, size, "%s: %s%s", verb, from, name);
    else
        snprintf(to, size, "%s: from %s to %s%s", verb, from, now_at, name);
}

const char *fd_moved_name(fd_moved moved) {
    static const char *const names[] = {"", "later", "earlier", "not", "gone", "new"};
    return names[moved];
}
