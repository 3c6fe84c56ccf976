#include "cli/arguments.h"
#include "cli/run/args.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/output.h"

enum {
    KEY_BACKEND = 256,
    KEY_NUMERICS,
    KEY_LEVEL,
    KEY_TENSORS,
    KEY_LAYERS,
    KEY_STEPS,
    KEY_COMPRESS,
    KEY_FAULT,
    KEY_TEMP,
    KEY_TOP_K,
    KEY_TOP_P,
    KEY_MIN_P,
    KEY_PENALTY,
    KEY_LAST,
    KEY_SEED,
    KEY_IDS,
    KEY_IGNORE_EOS,
    KEY_NO_WEIGHTS,
    KEY_STORE,
    KEY_PROMPTS,
    KEY_CHAT,
    KEY_CACHE_TYPE,
    KEY_CACHE_TYPE_K,
    KEY_CACHE_TYPE_V,
    KEY_GPUS,
    KEY_SYSTEM
};

static const struct argp_option options[] = {
    {"prompts-file", KEY_PROMPTS, "FILE", 0,
     "One prompt per line (\"tokens:1,2\" for ids), run as one batch where the backend can; each gets the text that it "
     "gets alone",
     1},
    {"chat", KEY_CHAT, 0, 0,
     "The prompt is what a user says: the file's chat template is rendered with it (by Python's jinja2, see "
     "docs/chat.md)",
     1},
    {"system", KEY_SYSTEM, "TEXT", 0, "With --chat: a system message before it", 1},
    {0, 'n', "N", 0, "Tokens to generate (default 32; 0: prefill only)", 2},
    {"backend", KEY_BACKEND, "cpu|gpu", 0, "Where to run (default cpu)", 2},
    {"gpus", KEY_GPUS, "N|LIST", 0,
     "With --backend gpu: so many GPUs, or those of the list, share the model; never changes a bit (default: the "
     "first). Under mpirun each process takes one of them",
     2},
    {"numerics", KEY_NUMERICS, "exact|q8act|fast|f64|emulate-CLASS", 0,
     "exact: the contract's bits; q8act: the same with products of int8 activations and quantised weights; fast: "
     "tensor "
     "cores, f16 K and V, int8 activations with quantised weights where that is faster, on the GPU; "
     "f64: binary64 on the CPU; emulate-CLASS: the CPU rounds as an engine of that class "
     "does, f32, tf32, f16, bf16, q8, … (default exact)",
     2},
    {"threads", 'j', "N", 0, "CPU threads (default: all cores; never changes a bit)", 2},
    {"ctx", 'c', "N", 0, "Maximum number of positions (default: what the model was trained for)", 2},
    {"fault", KEY_FAULT, "NAME[@LAYER]", 0, "Inject a fault; several joined by +", 2},
    {"cache-type", KEY_CACHE_TYPE, "TYPE", 0,
     "Round rows of K and V to f16, to bf16, or to blocks of q8_0, q4_0, q4_1, q5_0, q5_1 or iq4_nl, as they are "
     "written, "
     "as llama.cpp's -ctk and -ctv do; the GPU keeps f32 or f16 (default f32: as computed)",
     2},
    {"cache-type-k", KEY_CACHE_TYPE_K, "TYPE", 0, "The same of K alone", 2},
    {"cache-type-v", KEY_CACHE_TYPE_V, "TYPE", 0, "The same of V alone", 2},
    {"output", 'o', "TRACE.h5", 0, "Record a trace", 3},
    {"level", KEY_LEVEL, "full|stats|fingerprint", 0, "How much of it (default full)", 3},
    {"tensors", KEY_TENSORS, "GLOB", 0, "Only tensors whose name matches (several joined by commas)", 3},
    {"layers", KEY_LAYERS, "A-B", 0, "Only these layers", 3},
    {"steps", KEY_STEPS, "A-B", 0, "Record only these forward calls at the level full", 3},
    {"store", KEY_STORE, "f32|f16|bf16", 0,
     "Elements in the trace, rounded to 16 bits for half the size (default f32: as computed)", 3},
    {"compress", KEY_COMPRESS, 0, 0,
     "Compress tensors with gzip: somewhat smaller, but slower to compare; takes a helper thread 0.2 ms for each 16 "
     "KiB",
     3},
    {"no-weights", KEY_NO_WEIGHTS, 0, 0,
     "Do not hash the weights' rows: saves a pass over the model, but a loader bug then looks like a bug of its op", 3},
    {"temperature", KEY_TEMP, "T", 0, "0: greedy (default)", 4},
    {"top-k", KEY_TOP_K, "K", 0, "Keep the K best tokens (0: off)", 4},
    {"top-p", KEY_TOP_P, "P", 0, "Keep the smallest set of tokens with probability P (1: off)", 4},
    {"min-p", KEY_MIN_P, "P", 0, "Keep tokens at least P times as probable as the best (0: off)", 4},
    {"repeat-penalty", KEY_PENALTY, "R", 0, "Penalty of repeated tokens (1: off)", 4},
    {"repeat-last", KEY_LAST, "N", 0, "Tokens the penalty looks at (-1: all)", 4},
    {"seed", KEY_SEED, "S", 0, "Seed of the draws (default 0)", 4},
    {"ids", KEY_IDS, 0, 0, "Print token ids instead of text", 5},
    {"ignore-eos", KEY_IGNORE_EOS, 0, 0, "Do not stop at an end token", 5},
    {"quiet", 'q', 0, 0, "No text and no summary", 5},
    {0},
};

static double parse_number(const char *arg, struct argp_state *state) {
    char *end;
    double value = strtod(arg, &end);
    if (end == arg || *end) argp_error(state, "\"%s\": expected a number", arg);
    return value;
}

static uint64_t parse_seed(const char *arg, struct argp_state *state) {
    char *end;
    errno = 0;
    unsigned long long value = strtoull(arg, &end, 10);
    if (end == arg || *end || errno || arg[0] == '-') argp_error(state, "seed \"%s\": expected an integer from 0", arg);
    return value;
}

/* Options about recording need -o: the run would end without a trace. */
static void check_recording(const fd_run_args *a, struct argp_state *state) {
    const struct {
        bool given;
        const char *option;
    } of_a_trace[] = {{a->level, "level"},          {a->store, "store"}, {a->tensors, "tensors"},
                      {a->layers, "layers"},        {a->steps, "steps"}, {a->compress, "compress"},
                      {a->no_weights, "no-weights"}};
    for (size_t i = 0; i < sizeof of_a_trace / sizeof *of_a_trace && !a->trace; i++)
        if (of_a_trace[i].given) argp_error(state, "--%s goes with -o TRACE.h5", of_a_trace[i].option);
}

static error_t parse_run_option(int key, char *arg, struct argp_state *state) {
    fd_run_args *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &a->prompt; return 0;
    case KEY_PROMPTS: a->prompts = arg; return 0;
    case KEY_CHAT: a->chat = true; return 0;
    case KEY_SYSTEM: a->system = arg; return 0;
    case 'n': a->n_generate = fd_cli_integer(arg, 0, state); return 0;
    case KEY_BACKEND: a->backend = arg; return 0;
    case KEY_GPUS: a->gpus = arg; return 0;
    case KEY_NUMERICS: a->numerics = arg; return 0;
    case 'j': a->n_thread = fd_cli_integer(arg, 0, state); return 0;
    case 'c': a->n_ctx = fd_cli_integer(arg, 1, state); return 0;
    case KEY_FAULT: a->fault = arg; return 0;
    case KEY_CACHE_TYPE: a->cache_type = arg; return 0;
    case KEY_CACHE_TYPE_K: a->cache_type_k = arg; return 0;
    case KEY_CACHE_TYPE_V: a->cache_type_v = arg; return 0;
    case 'o': a->trace = arg; return 0;
    case KEY_LEVEL: a->level = arg; return 0;
    case KEY_STORE: a->store = arg; return 0;
    case KEY_TENSORS: a->tensors = arg; return 0;
    case KEY_LAYERS: a->layers = arg; return 0;
    case KEY_STEPS: a->steps = arg; return 0;
    case KEY_NO_WEIGHTS: a->no_weights = true; return 0;
    case KEY_COMPRESS: a->compress = true; return 0;
    case KEY_TEMP: a->sampler.temperature = (float)parse_number(arg, state); return 0;
    case KEY_TOP_K: a->sampler.top_k = fd_cli_integer(arg, 0, state); return 0;
    case KEY_TOP_P: a->sampler.top_p = (float)parse_number(arg, state); return 0;
    case KEY_MIN_P: a->sampler.min_p = (float)parse_number(arg, state); return 0;
    case KEY_PENALTY: a->sampler.repeat_penalty = (float)parse_number(arg, state); return 0;
    case KEY_LAST: a->sampler.repeat_last = fd_cli_integer(arg, -1, state); return 0;
    case KEY_SEED: a->sampler.seed = parse_seed(arg, state); return 0;
    case KEY_IDS: a->ids_only = true; return 0;
    case KEY_IGNORE_EOS: a->ignore_eos = true; return 0;
    case 'q': a->quiet = true; return 0;
    case ARGP_KEY_END:
        if (a->system && !a->chat) argp_error(state, "--system goes with --chat");
        if (a->chat && a->prompts) argp_error(state, "--chat takes one prompt, not --prompts-file");
        check_recording(a, state);
        break;
    default: break;
    }
    return fd_cli_one_model(key, arg, state, &a->model);
}

static const struct argp_child children[] = {{&fd_cli_prompt_argp, 0, NULL, 0}, {0}};
const struct argp fd_cmd_run_argp = {
    options, parse_run_option, "MODEL.gguf", "Runs a model, prints its text and records a trace.", children, NULL,
    NULL};

fd_run_args fd_run_parse(int argc, char **argv) {
    fd_run_args args = {.backend = "cpu", .numerics = "exact", .n_generate = 32, .sampler = fd_sampler_defaults()};
    argp_parse(&fd_cmd_run_argp, argc, argv, 0, NULL, &args);
    return args;
}

fd_code fd_run_spec(const fd_run_args *args, char spec[256], fd_error *err) {
    FD_TRY(fd_cli_spec(args->backend, args->numerics, args->fault, spec, err));
    const char *both = args->cache_type ? args->cache_type : "f32";
    const char *k = args->cache_type_k ? args->cache_type_k : both;
    const char *v = args->cache_type_v ? args->cache_type_v : both;
    size_t at = strlen(spec);
    if (args->gpus) at += (size_t)snprintf(spec + at, 256 - at, "+gpus=%s", args->gpus);
    if (at >= 256) return fd_fail(err, FD_ERR_INPUT, "GPUs \"%.40s…\": too long", args->gpus);
    if (!args->cache_type && k == v) return FD_OK;
    size_t room = 256 - at;
    int size = strcmp(k, v) == 0 ? snprintf(spec + at, room, "+cache-type=%s", k)
                                 : snprintf(spec + at, room, "+cache-type=%s/%s", k, v);
    return (size_t)size < room ? FD_OK : fd_fail(err, FD_ERR_INPUT, "cache type \"%.40s…\": too long", k);
}

fd_code fd_run_range(const char *what, const char *text, int32_t *first, int32_t *last, fd_error *err) {
    if (!text) return FD_OK;
    char *end;
    long a = strtol(text, &end, 10), b = a;
    if (end != text && *end == '-' && end[1]) b = strtol(end + 1, &end, 10);
    if (end == text || *end || a < 0 || b < a || b > INT32_MAX)
        return fd_fail(err, FD_ERR_INPUT, "%s \"%s\": expected A-B with 0 <= A <= B", what, text);
    *first = (int32_t)a;
    *last = (int32_t)b;
    return FD_OK;
}
