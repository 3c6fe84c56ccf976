/* firstdiff inspect TRACE.h5: what the trace is, its steps, its tensors. */
#include <fnmatch.h>
#include <math.h>

#include "cli/inspect/inspect.h"
#include "cli/output.h"
#include "compare/verdict.h"
#include "compare/describe.h"

/* Statistics of one node over all positions that have any. */
typedef struct node_summary {
    int32_t n_pos; /* positions that had any; 0: nothing is known */
    double min, max, absmax;
    double rms; /* over all positions, weighted by their elements */
    double n_nan, n_inf, n_zero, n;
} node_summary;

static fd_code summarise(const fd_trace *trace, int32_t node, node_summary *out, fd_error *err) {
    const fd_trace_node *info = fd_trace_node_at(trace, node);
    double squares = 0;
    *out = (node_summary){.min = INFINITY, .max = -INFINITY};
    for (int32_t pos = 0; pos < fd_trace_n_pos(trace); pos++) {
        fd_trace_stats stats, *s = &stats;
        bool known;
        FD_TRY(fd_inspect_stats(trace, node, pos, s, &known, err));
        if (!known) continue;
        double n = (double)fd_trace_elements(info, pos), n_inf = s->n_pos_inf + s->n_neg_inf;
        double finite = n - s->n_nan - n_inf;
        out->n_pos++;
        out->n += n;
        out->n_nan += s->n_nan;
        out->n_inf += n_inf;
        out->n_zero += s->n_zero;
        if (!(finite > 0)) continue;
        out->min = fmin(out->min, s->min);
        out->max = fmax(out->max, s->max);
        out->absmax = fmax(out->absmax, s->absmax);
        squares += s->rms * s->rms * finite;
    }
    double finite = out->n - out->n_nan - out->n_inf;
    out->rms = finite > 0 ? sqrt(squares / finite) : NAN;
    if (!(finite > 0)) out->min = out->max = out->absmax = NAN;
    return FD_OK;
}

/* Consecutive steps of one kind and size are one line: "decode 12–19, one position each". */
static int32_t same_steps(const fd_trace *trace, int32_t i) {
    const fd_trace_step *steps = fd_trace_steps(trace);
    int32_t n = 1;
    while (i + n < fd_trace_n_step(trace) && steps[i + n].kind == steps[i].kind && steps[i + n].n_pos == steps[i].n_pos)
        n++;
    return n;
}

static void print_steps(const fd_trace *trace) {
    const fd_trace_step *steps = fd_trace_steps(trace);
    for (int32_t i = 0, n; i < fd_trace_n_step(trace); i += n) {
        n = same_steps(trace, i);
        int32_t last = steps[i + n - 1].pos0 + steps[i + n - 1].n_pos - 1;
        if (n == 1)
            printf("  step %-9d %-8s positions %d-%d\n", i, fd_step_kind_name(steps[i].kind), steps[i].pos0, last);
        else
            printf("  steps %3d-%-4d %-8s positions %d-%d, %d each\n", i, i + n - 1, fd_step_kind_name(steps[i].kind),
                   steps[i].pos0, last, steps[i].n_pos);
    }
}

static void print_field(const char *name, const char *value) {
    if (value && value[0]) printf("  %-12s %s\n", name, value);
}

static void print_header(const fd_trace *trace) {
    const fd_trace_info *info = fd_trace_get_info(trace);
    char text[192];
    printf("%s\n", fd_trace_path(trace));
    print_field("producer", info->producer);
    if (info->contract)
        snprintf(text, sizeof text, "%s (contract %d)", info->numerics, info->contract);
    else
        snprintf(text, sizeof text, "%s", info->numerics[0] ? info->numerics : "not stated");
    print_field("numerics", text);
    print_field("backend", info->backend);
    print_field("device", info->device);
    print_field("driver", info->driver);
    print_field("fault", info->fault);
    snprintf(text, sizeof text, "%s%s%s", info->arch, info->arch[0] && info->model_name[0] ? ": " : "",
             info->model_name);
    print_field("model", text);
    print_field("model hash", info->model_hash);
    print_field("tokenizer", info->tokenizer);
    print_field("prompt", info->prompt);
    print_field("started", info->started);
    print_field("finished", info->finished);
    snprintf(text, sizeof text, "%s, %s", fd_trace_level_text(info->level),
             info->complete ? "complete" : "INCOMPLETE: the run did not finish");
    print_field("level", text);
    snprintf(text, sizeof text, "%d in %d step%s", fd_trace_n_pos(trace), fd_trace_n_step(trace),
             fd_trace_n_step(trace) == 1 ? "" : "s");
    print_field("positions", text);
}

static fd_code print_tree(const fd_inspect *in, fd_error *err) {
    const fd_trace *trace = in->trace;
    if (!in->glob) print_header(trace);
    if (!in->glob) print_steps(trace);
    printf("  %4s  %-24s %-14s %-14s %-5s %-8s %11s %11s %11s  %s\n", "seq", "tensor", "op", "shape", "type",
           "elements", "min", "max", "rms", "");
    for (int32_t i = 0; i < fd_trace_n_node(trace); i++) {
        const fd_trace_node *node = fd_trace_node_at(trace, i);
        const fd_dtype_info *type = fd_dtype_get(node->dtype);
        node_summary s;
        char shape[64];
        if (in->glob && fnmatch(in->glob, node->name, 0) != 0) continue;
        FD_TRY(summarise(trace, i, &s, err));
        fd_shape_text(node->n_dim, node->shape, node->over_kv, shape, sizeof shape);
        printf("  %4d  %-24s %-14s %-14s %-5s %-8s", node->seq, node->name, node->op[0] ? node->op : "-", shape,
               type ? type->name : "?",
               node->has_data  ? "yes"
               : node->partial ? "part"
                               : "-");
        if (s.n_pos) printf(" %11.4g %11.4g %11.4g", s.min, s.max, s.rms);
        if (s.n_nan > 0) printf("  %.0f NaN", s.n_nan);
        /* Scores are -inf where the mask is; elsewhere an Inf is news. */
        if (s.n_inf > 0) printf("  %.0f Inf", s.n_inf);
        if (s.n_pos && s.n > 0 && s.n_zero == s.n) printf("  all zero");
        printf("\n");
    }
    return FD_OK;
}

/* NULL, and err set, when the elements cannot be read. */
static json_t *node_json(const fd_trace *trace, int32_t i, fd_error *err) {
    const fd_trace_node *node = fd_trace_node_at(trace, i);
    const fd_dtype_info *type = fd_dtype_get(node->dtype);
    node_summary s;
    if (summarise(trace, i, &s, err) != FD_OK) return NULL;
    json_t *shape = json_array(), *inputs = json_array(), *stats = json_null();
    for (int32_t k = 0; k < node->n_dim; k++)
        json_array_append_new(shape, node->over_kv && k == node->n_dim - 1 ? json_string("positions")
                                                                           : json_integer(node->shape[k]));
    for (int32_t k = 0; k < FD_MAX_INPUTS; k++)
        if (node->inputs[k][0]) json_array_append_new(inputs, json_string(node->inputs[k]));
    if (s.n_pos)
        stats =
            json_pack("{s:i, s:o, s:o, s:o, s:o, s:f, s:f, s:f}", "positions", s.n_pos, "min", fd_inspect_number(s.min),
                      "max", fd_inspect_number(s.max), "absmax", fd_inspect_number(s.absmax), "rms",
                      fd_inspect_number(s.rms), "nan", s.n_nan, "inf", s.n_inf, "zero", s.n_zero);
    return json_pack("{s:i, s:s, s:s, s:o, s:i, s:o, s:s, s:b, s:o}", "seq", node->seq, "name", node->name, "op",
                     node->op, "inputs", inputs, "layer", node->layer, "shape", shape, "dtype", type ? type->name : "?",
                     "elements", node->has_data, "stats", stats);
}

/* Takes over `nodes`. */
static json_t *tree_json(const fd_trace *trace, json_t *nodes) {
    const fd_trace_info *info = fd_trace_get_info(trace);
    json_t *steps = json_array(), *tokens = json_array();
    for (int32_t i = 0; i < fd_trace_n_step(trace); i++) {
        const fd_trace_step *s = &fd_trace_steps(trace)[i];
        json_array_append_new(steps, json_pack("{s:i, s:i, s:s}", "first", s->pos0, "count", s->n_pos, "kind",
                                               fd_step_kind_name(s->kind)));
    }
    for (int32_t i = 0; fd_trace_tokens(trace) && i < fd_trace_n_pos(trace); i++)
        json_array_append_new(tokens, json_integer(fd_trace_tokens(trace)[i]));
    return json_pack("{s:s, s:s, s:s, s:i, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:b, s:i, s:o, s:o, s:o}", "path",
                     fd_trace_path(trace), "producer", info->producer, "numerics", info->numerics, "contract",
                     info->contract, "backend", info->backend, "device", info->device, "fault", info->fault,
                     "model_name", info->model_name, "model_hash", info->model_hash, "arch", info->arch, "level",
                     fd_trace_level_text(info->level), "complete", info->complete, "positions", fd_trace_n_pos(trace),
                     "tokens", tokens, "steps", steps, "tensors", nodes);
}

fd_code fd_inspect_tree(const fd_inspect *in, fd_error *err) {
    if (!in->json) return print_tree(in, err);
    fd_code code = FD_OK;
    json_t *nodes = json_array();
    for (int32_t i = 0; code == FD_OK && i < fd_trace_n_node(in->trace); i++) {
        if (in->glob && fnmatch(in->glob, fd_trace_node_at(in->trace, i)->name, 0) != 0) continue;
        json_t *node = node_json(in->trace, i, err);
        if (node)
            json_array_append_new(nodes, node);
        else
            code = err->code;
    }
    if (code == FD_OK) return fd_cli_print_json(tree_json(in->trace, nodes), err);
    json_decref(nodes);
    return code;
}
