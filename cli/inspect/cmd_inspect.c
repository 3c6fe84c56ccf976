/* firstdiff inspect: look into a trace. */
#include <stdlib.h>
#include <string.h>

#include "cli/arguments.h"
#include "cli/inspect/gather.h"
#include "cli/open_trace.h"
#include "cli/output.h"
#include "compare/diff/align.h"
#include "dumpers/store/golden.h"

typedef struct arguments {
    const char *trace, *tensor, *export, *with, *model;
    bool health, json, map, all, histogram, watch;
    int32_t layer;
} arguments;

enum {
    KEY_JSON = 256,
    KEY_HEALTH,
    KEY_MAP,
    KEY_LAYER,
    KEY_ALL,
    KEY_HISTOGRAM,
    KEY_EXPORT,
    KEY_WITH,
    KEY_WATCH,
    KEY_MODEL
};

static const struct argp_option options[] = {
    {"health", KEY_HEALTH, 0, 0, "Per position: token, K/V length, attention entropy, top token, logit range, loops",
     1},
    {"layer", KEY_LAYER, "N", 0, "With --health: every head's entropy in this layer", 1},
    {"map", KEY_MAP, 0, 0, "Attention scores or weights as a heat map; TENSOR[:, 2] is head 2", 1},
    {"all", KEY_ALL, 0, 0, "Print every element of a slice, however many", 1},
    {"histogram", KEY_HISTOGRAM, 0, 0, "A tensor's elements, or a slice's, in 24 bins", 1},
    {"export", KEY_EXPORT, "FILE", 0, "Write these elements as .npy, .csv or a grey .png, by the name's ending", 1},
    {"with", KEY_WITH, "TRACE.h5", 0,
     "Next to another trace: NMSE, cosine and the largest distance of every tensor that both hold, or of those that "
     "TENSOR, "
     "a glob, names",
     1},
    {"watch", KEY_WATCH, 0, 0,
     "A line for each step while the trace is being written, and where NaN begins; ends when it is "
     "complete",
     1},
    {"model", KEY_MODEL, "MODEL.gguf", 0, "With --health and --watch: the tokens' text beside their ids", 1},
    {"json", KEY_JSON, 0, 0, "JSON instead of text", 2},
    {0},
};

static error_t parse_inspect_option(int key, char *arg, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case KEY_HEALTH: a->health = true; return 0;
    case KEY_LAYER: a->layer = fd_cli_integer(arg, 0, state); return 0;
    case KEY_MAP: a->map = true; return 0;
    case KEY_ALL: a->all = true; return 0;
    case KEY_HISTOGRAM: a->histogram = true; return 0;
    case KEY_EXPORT: a->export = arg; return 0;
    case KEY_WITH: a->with = arg; return 0;
    case KEY_WATCH: a->watch = true; return 0;
    case KEY_MODEL: a->model = arg; return 0;
    case KEY_JSON: a->json = true; return 0;
    case ARGP_KEY_ARG:
        if (a->tensor) argp_error(state, "a trace and a tensor expected, \"%s\" is one too many", arg);
        *(a->trace ? &a->tensor : &a->trace) = arg;
        return 0;
    case ARGP_KEY_END:
        if (!a->trace) argp_error(state, "no trace given");
        if (a->health && a->tensor) argp_error(state, "--health is about the whole trace, not %s", a->tensor);
        if (a->map && !a->tensor) argp_error(state, "--map: no tensor given");
        if ((a->histogram || a->export) && !a->tensor) argp_error(state, "--histogram and --export: no tensor given");
        if (a->with && (a->health || a->map || a->histogram || a->export))
            argp_error(state, "--with compares tensors as a whole: no other view goes with it");
        if (a->watch && (a->tensor || a->health || a->json || a->with))
            argp_error(state, "--watch is about the steps of a trace: no tensor and no other view goes with it");
        if (a->model && !a->health && !a->watch) argp_error(state, "--model goes with --health or --watch");
        if (a->layer >= 0 && !a->health) argp_error(state, "--layer goes with --health");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

const struct argp fd_cmd_inspect_argp = {
    options,
    parse_inspect_option,
    "TRACE.h5 [TENSOR[SLICE]]",
    "Without a tensor: what the trace is, its steps and its tensors. With one: its statistics at every position. With "
    "a "
    "slice: its elements. With a glob ('blk.*.attn_q'): a line each. Statistics and health that were not recorded are "
    "computed from the elements. Of a golden: "
    "its "
    "prompts; GOLDEN.h5#2 is the trace of its second prompt.\v"
    "A slice is written as in NumPy, the first index is the position: 'blk.0.attn_q[3:5, 2, :8]' is elements 0 to 7 of "
    "head 2 at positions 3 and 4; 'logits[-1]' is the last position. Quote it: [ and ] mean something to a shell.\n\n"
    "Exit status: 0, 2 for unusable input, 3 when the trace does not hold what was asked for.",
    NULL,
    NULL,
    NULL};

/* NAME or NAME[SLICE]: the node, and where the slice begins (NULL: none). */
static fd_code find_tensor(const fd_trace *trace, const char *text, int32_t *node, const char **slice, fd_error *err) {
    char name[128], nearest[256];
    *slice = NULL;
    if ((*node = fd_trace_find(trace, text)) >= 0) return FD_OK; /* foreign names may have brackets */
    *slice = strrchr(text, '[');
    size_t size = *slice ? (size_t)(*slice - text) : strlen(text);
    snprintf(name, sizeof name, "%.*s", (int)(size < sizeof name ? size : sizeof name - 1), text);
    *node = fd_trace_find(trace, name);
    if (*node >= 0) return FD_OK;
    fd_nearest_nodes(trace, name, nearest, sizeof nearest);
    return fd_fail(err, FD_ERR_INPUT, "%s: no tensor \"%s\"%s%s", fd_trace_path(trace), name,
                   nearest[0] ? "; nearest: " : ": it holds none", nearest);
}

static fd_code show_elements(const arguments *a, const fd_trace *trace, int32_t node, const fd_slice *slice,
                             fd_error *err) {
    fd_gathered elements;
    const char *inputs[] = {a->trace};
    FD_TRY(fd_cli_check_not_overwriting(a->export, inputs, 1, err));
    FD_TRY(fd_inspect_gather(trace, node, slice, &elements, err));
    if (a->histogram) fd_inspect_histogram(a->tensor, &elements);
    fd_code code = a->export ? fd_inspect_export(&elements, a->export, err) : FD_OK;
    fd_gathered_free(&elements);
    return code;
}

static fd_code show_beside(const arguments *a, const fd_trace *trace, fd_error *err) {
    fd_trace *other;
    FD_TRY(fd_cli_open_trace(a->with, SIZE_MAX, &other, err));
    fd_code code = fd_inspect_beside(trace, other, a->tensor, a->json, err);
    fd_trace_close(other);
    return code;
}

static fd_code show_view(const arguments *a, const fd_trace *trace, const fd_tokenizer *tokenizer, fd_error *err) {
    bool is_glob = a->tensor && strpbrk(a->tensor, "*?") && fd_trace_find(trace, a->tensor) < 0;
    fd_inspect in = {trace, a->json, a->map, a->all, a->layer, is_glob ? a->tensor : NULL, tokenizer};
    if (a->with) return show_beside(a, trace, err);
    if (a->health) return fd_inspect_health(&in, err);
    if (!a->tensor || (is_glob && !a->map && !a->histogram && !a->export)) return fd_inspect_tree(&in, err);
    int32_t node;
    const char *text;
    fd_slice slice;
    FD_TRY(find_tensor(trace, a->tensor, &node, &text, err));
    FD_TRY(fd_slice_parse(text, &slice, err));
    const fd_trace_node *info = fd_trace_node_at(trace, node);
    if (slice.n_axis > info->n_dim + 1)
        return fd_fail(err, FD_ERR_INPUT, "%s: %d indices, expected at most %d: the position and %d of the tensor",
                       a->tensor, slice.n_axis, info->n_dim + 1, info->n_dim);
    if (a->histogram || a->export) return show_elements(a, trace, node, &slice, err);
    if (a->map) return fd_inspect_map(&in, node, &slice, err);
    return text ? fd_inspect_slice(&in, node, &slice, err) : fd_inspect_tensor(&in, node, err);
}

static fd_code inspect(const arguments *a, const fd_tokenizer *tokenizer, fd_error *err) {
    fd_trace *trace;
    if (a->watch) return fd_inspect_watch(a->trace, tokenizer, err);
    if (!a->tensor && !a->health && fd_golden_is_one(a->trace)) return fd_inspect_golden(a->trace, a->json, err);
    FD_TRY(fd_cli_open_trace(a->trace, SIZE_MAX, &trace, err));
    fd_code code = show_view(a, trace, tokenizer, err);
    fd_trace_close(trace);
    return code;
}

int fd_cmd_inspect(int argc, char **argv) {
    arguments args = {.layer = -1};
    argp_parse(&fd_cmd_inspect_argp, argc, argv, 0, NULL, &args);
    fd_error err = {0};
    fd_cli_model model = {0};
    fd_code code = args.model ? fd_cli_model_open(args.model, &model, &err) : FD_OK;
    if (code == FD_OK && args.model && !model.tokenizer) err = model.tokenizer_error, code = err.code;
    if (code == FD_OK) code = inspect(&args, model.tokenizer, &err);
    fd_cli_model_close(&model);
    return code == FD_OK ? FD_EXIT_SAME : fd_cli_fail("inspect", &err);
}
