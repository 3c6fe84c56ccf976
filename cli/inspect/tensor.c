/* firstdiff inspect TRACE.h5 TENSOR[SLICE]: statistics of a tensor, or its elements. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/inspect/inspect.h"
#include "cli/output.h"
#include "compare/report/line.h"
#include "compare/describe.h"

/* A row longer than this is shown by its ends, unless --all. */
enum { LONGEST_ROW = 16, ENDS = 6, MOST_AXES = 4 };

/* ---- statistics ---- */

static fd_code print_tensor(const fd_trace *trace, int32_t at, fd_error *err) {
    const fd_trace_node *node = fd_trace_node_at(trace, at);
    const fd_dtype_info *type = fd_dtype_get(node->dtype);
    char shape[64];
    fd_shape_text(node->n_dim, node->shape, node->over_kv, shape, sizeof shape);
    printf("%s  %s %s", node->name, type ? type->name : "?", shape);
    if (node->op[0]) printf("  %s of", node->op);
    for (int32_t k = 0; k < FD_MAX_INPUTS && node->op[0]; k++)
        if (node->inputs[k][0]) printf("%s %s", k ? "," : "", node->inputs[k]);
    printf("\n  %8s %13s %13s %13s %13s %13s %6s %6s %6s %7s  %s\n", "position", "min", "max", "mean", "rms", "absmax",
           "NaN", "+Inf", "-Inf", "zero", "fingerprint");
    for (int32_t pos = 0; pos < fd_trace_n_pos(trace); pos++) {
        fd_trace_stats stats, *s = &stats;
        bool known;
        FD_TRY(fd_inspect_stats(trace, at, pos, s, &known, err));
        const fd_fingerprint *f = fd_trace_fingerprint(trace, at, pos);
        printf("  %8d", pos);
        if (known)
            printf(" %13.6g %13.6g %13.6g %13.6g %13.6g %6.0f %6.0f %6.0f %7.0f", s->min, s->max, s->mean, s->rms,
                   s->absmax, s->n_nan, s->n_pos_inf, s->n_neg_inf, s->n_zero);
        else
            printf(" %13s %13s %13s %13s %13s %6s %6s %6s %7s", "-", "-", "-", "-", "-", "-", "-", "-", "-");
        if (f) printf("  %016llx%016llx", (unsigned long long)f->hi, (unsigned long long)f->lo);
        printf("\n");
    }
    return FD_OK;
}

static fd_code print_tensor_json(const fd_trace *trace, int32_t at, fd_error *err) {
    const fd_trace_node *node = fd_trace_node_at(trace, at);
    json_t *rows = json_array();
    for (int32_t pos = 0; pos < fd_trace_n_pos(trace); pos++) {
        fd_trace_stats stats, *s = &stats;
        bool known;
        fd_code code = fd_inspect_stats(trace, at, pos, s, &known, err);
        if (code != FD_OK) {
            json_decref(rows);
            return code;
        }
        const fd_fingerprint *f = fd_trace_fingerprint(trace, at, pos);
        json_t *row = json_pack("{s:i}", "position", pos);
        char hash[40];
        if (known)
            json_object_update_new(row, json_pack("{s:o, s:o, s:o, s:o, s:o, s:f, s:f, s:f, s:f}", "min",
                                                  fd_inspect_number(s->min), "max", fd_inspect_number(s->max), "mean",
                                                  fd_inspect_number(s->mean), "rms", fd_inspect_number(s->rms),
                                                  "absmax", fd_inspect_number(s->absmax), "nan", s->n_nan, "pos_inf",
                                                  s->n_pos_inf, "neg_inf", s->n_neg_inf, "zero", s->n_zero));
        if (f) {
            snprintf(hash, sizeof hash, "%016llx%016llx", (unsigned long long)f->hi, (unsigned long long)f->lo);
            json_object_set_new(row, "fingerprint", json_string(hash));
        }
        json_array_append_new(rows, row);
    }
    return fd_cli_print_json(json_pack("{s:s, s:o}", "name", node->name, "positions", rows), err);
}

fd_code fd_inspect_tensor(const fd_inspect *in, int32_t node, fd_error *err) {
    return in->json ? print_tensor_json(in->trace, node, err) : print_tensor(in->trace, node, err);
}

/* ---- elements ---- */

/* A tensor at one position as rows: the last axis runs along a row, the axes before it number the rows. */
typedef struct selection {
    int32_t n_dim; /* 1 to MOST_AXES */
    int64_t dims[MOST_AXES];
    fd_range ranges[MOST_AXES];
} selection;

/* False when a single index lies outside this position's tensor. */
static bool select_at(const fd_trace_node *node, const fd_slice *slice, int32_t pos, selection *out) {
    out->n_dim = node->n_dim;
    for (int32_t i = 0; i < node->n_dim; i++) {
        out->dims[i] = node->over_kv && i == node->n_dim - 1 ? pos + 1 : node->shape[i];
        if (!fd_slice_resolve(slice, i + 1, out->dims[i], &out->ranges[i])) return false;
    }
    return true;
}

static void print_value(double x) {
    char text[40];
    fd_value_text(x, text, sizeof text);
    printf(" %s", text);
}

static void print_row(const double *row, fd_range range, bool all) {
    for (int64_t k = 0; k < range.count; k++) {
        if (!all && range.count > LONGEST_ROW && k == ENDS) {
            printf(" …");
            k = range.count - ENDS;
        }
        print_value(row[range.first + k * range.step]);
    }
    printf("\n");
}

/* Calls itself for each axis but the last; path holds the indices chosen so far, the position first. */
static void print_rows(const selection *s, const double *data, int32_t axis, int64_t path[FD_SLICE_MAX_AXIS],
                       bool all) {
    if (axis >= MOST_AXES) return;
    const fd_range *r = &s->ranges[axis];
    int64_t stride = 1;
    for (int32_t i = axis + 1; i < s->n_dim; i++) stride *= s->dims[i];
    for (int64_t k = 0; axis < s->n_dim - 1 && k < r->count; k++) {
        path[axis + 1] = r->first + k * r->step;
        print_rows(s, data + path[axis + 1] * stride, axis + 1, path, all);
    }
    if (axis < s->n_dim - 1) return;
    printf("  [");
    for (int32_t i = 0; i <= axis; i++) printf("%lld, ", (long long)path[i]);
    if (r->count == s->dims[axis])
        printf(":]");
    else if (r->count == 1)
        printf("%lld]", (long long)r->first);
    else
        printf("%lld:%lld%s]", (long long)r->first, (long long)(r->first + (r->count - 1) * r->step + 1),
               r->step > 1 ? ":…" : "");
    print_row(data, *r, all);
}

static json_t *rows_json(const selection *s, const double *data, int32_t axis) {
    json_t *list = json_array();
    int64_t stride = 1;
    if (axis >= MOST_AXES) return list;
    for (int32_t i = axis + 1; i < s->n_dim; i++) stride *= s->dims[i];
    for (int64_t k = 0; k < s->ranges[axis].count; k++) {
        int64_t at = s->ranges[axis].first + k * s->ranges[axis].step;
        double x = data[at * stride];
        json_t *item;
        if (axis < s->n_dim - 1)
            item = rows_json(s, data + at * stride, axis + 1);
        else
            item = isfinite(x) ? json_real(x) : json_string(isnan(x) ? "nan" : x > 0 ? "inf" : "-inf");
        json_array_append_new(list, item);
    }
    return list;
}

static fd_code show_position(const fd_inspect *in, int32_t node, const fd_slice *slice, int32_t pos, json_t *list,
                             int32_t *n_shown, fd_error *err) {
    selection s;
    double *data;
    int64_t n;
    if (!select_at(fd_trace_node_at(in->trace, node), slice, pos, &s)) return FD_OK;
    FD_TRY(fd_inspect_read(in->trace, node, pos, &data, &n, err));
    ++*n_shown;
    if (list) {
        json_array_append_new(list, json_pack("{s:i, s:o}", "position", pos, "values", rows_json(&s, data, 0)));
    } else {
        int64_t path[FD_SLICE_MAX_AXIS] = {pos};
        print_rows(&s, data, 0, path, in->all);
    }
    free(data);
    return FD_OK;
}

fd_code fd_inspect_slice(const fd_inspect *in, int32_t node, const fd_slice *slice, fd_error *err) {
    const fd_trace_node *info = fd_trace_node_at(in->trace, node);
    int32_t n_pos = fd_trace_n_pos(in->trace), n_shown = 0;
    fd_range positions;
    if (!fd_slice_resolve(slice, 0, n_pos, &positions))
        return fd_fail(err, FD_ERR_INPUT, "%s: position %lld, the trace has %d", info->name,
                       (long long)slice->axes[0].start, n_pos);
    if (positions.count == 0)
        return fd_fail(err, FD_ERR_INPUT, "%s: the slice selects none of the trace's %d positions", info->name, n_pos);
    json_t *list = in->json ? json_array() : NULL;
    fd_code code = FD_OK;
    for (int64_t k = 0; k < positions.count && code == FD_OK; k++)
        code = show_position(in, node, slice, (int32_t)(positions.first + k * positions.step), list, &n_shown, err);
    if (code == FD_OK && n_shown == 0) {
        char shape[64];
        fd_shape_text(info->n_dim, info->shape, info->over_kv, shape, sizeof shape);
        code = fd_fail(err, FD_ERR_INPUT, "%s: an index lies outside its shape %s at every selected position",
                       info->name, shape);
    }
    if (code != FD_OK || !list) {
        json_decref(list);
        return code;
    }
    return fd_cli_print_json(json_pack("{s:s, s:o}", "name", info->name, "positions", list), err);
}

/* ---- heat map ---- */

/* Darker is larger. Weights are probabilities: their square roots are shown on [0, 1], or all but the largest would be
 * blank; anything else on its row's own finite range. */
static char shade(double x, double low, double high, bool weights) {
    static const char shades[] = " .:-=+*#%@";
    if (isnan(x)) return '?';
    if (isinf(x)) return x > 0 ? '!' : ' ';
    double t = weights ? sqrt(fmax(x, 0)) : high > low ? (x - low) / (high - low) : 1;
    int i = (int)(t * 10);
    return shades[i < 0 ? 0 : i > 9 ? 9 : i];
}

static void print_map_row(const double *row, fd_range keys, bool weights, int32_t pos) {
    double low = INFINITY, high = -INFINITY;
    for (int64_t k = 0; k < keys.count; k++) {
        double x = row[keys.first + k * keys.step];
        if (isfinite(x)) low = fmin(low, x), high = fmax(high, x);
    }
    printf("  %5d |", pos);
    for (int64_t k = 0; k < keys.count; k++) putchar(shade(row[keys.first + k * keys.step], low, high, weights));
    printf("|\n");
}

fd_code fd_inspect_map(const fd_inspect *in, int32_t node, const fd_slice *slice, fd_error *err) {
    const fd_trace_node *info = fd_trace_node_at(in->trace, node);
    int32_t n_pos = fd_trace_n_pos(in->trace);
    fd_range positions, heads;
    if (!info->over_kv || info->n_dim != 2)
        return fd_fail(err, FD_ERR_INPUT, "%s: --map shows tensors over key positions (attn_scores, attn_weights)",
                       info->name);
    if (in->json) return fd_fail(err, FD_ERR_INPUT, "--map is text; leave it out and --json gives the numbers");
    if (!fd_slice_resolve(slice, 0, n_pos, &positions) || !fd_slice_resolve(slice, 1, info->shape[0], &heads))
        return fd_fail(err, FD_ERR_INPUT, "%s: an index lies outside %d positions or %d heads", info->name, n_pos,
                       info->shape[0]);
    bool weights = strstr(info->name, "weights") != NULL;
    for (int64_t h = 0; h < heads.count; h++) {
        int64_t head = heads.first + h * heads.step;
        printf("%s head %lld: query positions down, key positions across, %s\n", info->name, (long long)head,
               weights ? "' ' below 0.01 … '@' above 0.81" : "' ' lowest … '@' highest of the row");
        for (int64_t k = 0; k < positions.count; k++) {
            int32_t pos = (int32_t)(positions.first + k * positions.step);
            fd_range keys;
            double *data;
            int64_t n;
            if (!fd_slice_resolve(slice, 2, pos + 1, &keys)) continue;
            FD_TRY(fd_inspect_read(in->trace, node, pos, &data, &n, err));
            print_map_row(data + head * (pos + 1), keys, weights, pos);
            free(data);
        }
    }
    return FD_OK;
}
