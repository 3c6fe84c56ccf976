/* firstdiff run: prefill, decode with sampling, and a trace of it. */
#include "cli/cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dumpers/trace.h"
#include "fd_sources.h" /* made by the build: FD_SOURCES_DIGEST */
#include "model/sampler.h"

typedef struct arguments {
    const char *model, *backend, *numerics, *trace, *level, *tensors, *layers, *steps, *fault;
    fd_cli_prompt prompt;
    fd_sampler_options sampler;
    int32_t n_generate, n_thread, n_ctx;
    bool compress, ids_only, ignore_eos, quiet;
} arguments;

enum { KEY_BACKEND = 256, KEY_NUMERICS, KEY_LEVEL, KEY_TENSORS, KEY_LAYERS, KEY_STEPS, KEY_COMPRESS, KEY_FAULT, KEY_TEMP,
       KEY_TOP_K, KEY_TOP_P, KEY_MIN_P, KEY_PENALTY, KEY_LAST, KEY_SEED, KEY_IDS, KEY_IGNORE_EOS };

static const struct argp_option options[] = {
    {0, 'n', "N", 0, "Tokens to generate (default 32; 0: prefill only)", 2},
    {"backend", KEY_BACKEND, "cpu|gpu", 0, "Where to run (default cpu)", 2},
    {"numerics", KEY_NUMERICS, "exact|f64", 0, "exact: the contract's bits; f64: binary64 on the CPU (default exact)", 2},
    {"threads", 'j', "N", 0, "CPU threads (default: all cores; never changes a bit)", 2},
    {"ctx", 'c', "N", 0, "Positions at most (default: what the model was trained for)", 2},
    {"fault", KEY_FAULT, "NAME[@LAYER]", 0, "Inject a fault; several joined by +", 2},
    {"output", 'o', "TRACE.h5", 0, "Record a trace", 3},
    {"level", KEY_LEVEL, "full|stats|fingerprint", 0, "How much of it (default full)", 3},
    {"tensors", KEY_TENSORS, "GLOB", 0, "Only tensors whose name matches", 3},
    {"layers", KEY_LAYERS, "A-B", 0, "Only these layers", 3},
    {"steps", KEY_STEPS, "A-B", 0, "Only these forward calls at full level", 3},
    {"compress", KEY_COMPRESS, 0, 0, "Compress tensors (slower)", 3},
    {"temperature", KEY_TEMP, "T", 0, "0: greedy (default)", 4},
    {"top-k", KEY_TOP_K, "K", 0, "Best K tokens only (0: off)", 4},
    {"top-p", KEY_TOP_P, "P", 0, "Smallest set of tokens with probability P (1: off)", 4},
    {"min-p", KEY_MIN_P, "P", 0, "Tokens at least P times as probable as the best (0: off)", 4},
    {"repeat-penalty", KEY_PENALTY, "R", 0, "Penalty of repeated tokens (1: off)", 4},
    {"repeat-last", KEY_LAST, "N", 0, "Tokens the penalty looks at (-1: all)", 4},
    {"seed", KEY_SEED, "S", 0, "Seed of the draws (default 0)", 4},
    {"ids", KEY_IDS, 0, 0, "Print token ids instead of text", 5},
    {"ignore-eos", KEY_IGNORE_EOS, 0, 0, "Do not stop at an end token", 5},
    {"quiet", 'q', 0, 0, "No text and no summary", 5},
    {0},
};

static double number(const char *arg, struct argp_state *state) {
    char *end;
    double value = strtod(arg, &end);
    if (end == arg || *end) argp_error(state, "\"%s\" is no number", arg);
    return value;
}

static int32_t integer(const char *arg, long low, struct argp_state *state) {
    char *end;
    errno = 0;
    long value = strtol(arg, &end, 10);
    if (end == arg || *end || errno || value < low || value > INT32_MAX)
        argp_error(state, "\"%s\": expected an integer from %ld", arg, low);
    return (int32_t)value;
}

static error_t parse(int key, char *arg, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &a->prompt; return 0;
    case 'n': a->n_generate = integer(arg, 0, state); return 0;
    case KEY_BACKEND: a->backend = arg; return 0;
    case KEY_NUMERICS: a->numerics = arg; return 0;
    case 'j': a->n_thread = integer(arg, 0, state); return 0;
    case 'c': a->n_ctx = integer(arg, 1, state); return 0;
    case KEY_FAULT: a->fault = arg; return 0;
    case 'o': a->trace = arg; return 0;
    case KEY_LEVEL: a->level = arg; return 0;
    case KEY_TENSORS: a->tensors = arg; return 0;
    case KEY_LAYERS: a->layers = arg; return 0;
    case KEY_STEPS: a->steps = arg; return 0;
    case KEY_COMPRESS: a->compress = true; return 0;
    case KEY_TEMP: a->sampler.temperature = (float)number(arg, state); return 0;
    case KEY_TOP_K: a->sampler.top_k = integer(arg, 0, state); return 0;
    case KEY_TOP_P: a->sampler.top_p = (float)number(arg, state); return 0;
    case KEY_MIN_P: a->sampler.min_p = (float)number(arg, state); return 0;
    case KEY_PENALTY: a->sampler.repeat_penalty = (float)number(arg, state); return 0;
    case KEY_LAST: a->sampler.repeat_last = integer(arg, -1, state); return 0;
    case KEY_SEED: a->sampler.seed = strtoull(arg, NULL, 10); return 0;
    case KEY_IDS: a->ids_only = true; return 0;
    case KEY_IGNORE_EOS: a->ignore_eos = true; return 0;
    case 'q': a->quiet = true; return 0;
    case ARGP_KEY_ARG:
        if (a->model) argp_error(state, "one model expected, \"%s\" is one too many", arg);
        a->model = arg;
        return 0;
    case ARGP_KEY_END:
        if (!a->model) argp_error(state, "no model given");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{&fd_cli_prompt_argp, 0, NULL, 0}, {0}};
static const struct argp argp = {options, parse, "MODEL.gguf", "Runs a model, prints its text and records a trace.",
                                 children, NULL, NULL};

/* "3-7" or "3" */
static fd_code parse_range(const char *what, const char *text, int32_t *first, int32_t *last, fd_error *err) {
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

typedef struct run {
    const arguments *args;
    fd_cli_model model;
    fd_cli_exec exec;
    fd_sampler *sampler;
    fd_trace_writer *trace;
    char *prompt_text;
    int32_t *tokens; /* prompt and generated */
    int32_t n_prompt, n_token;
    float *logits;   /* [n_vocab] */
    double prefill_s, decode_s;
    int32_t n_decode; /* decode steps run */
    bool printed;     /* something of the text is out */
} run;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void trace_info(const run *r, fd_trace_info *info) {
    memset(info, 0, sizeof *info);
    const fd_exec *e = r->exec.exec;
    snprintf(info->producer, sizeof info->producer, "firstdiff " FD_VERSION);
    snprintf(info->numerics, sizeof info->numerics, "%s", fd_numerics_name(e->numerics));
    info->contract = e->numerics == FD_NUMERICS_EXACT ? FD_CONTRACT_VERSION : 0;
    snprintf(info->backend, sizeof info->backend, "%s", e->backend);
    snprintf(info->device, sizeof info->device, "%s", e->device);
    snprintf(info->driver, sizeof info->driver, "%s", e->driver);
    snprintf(info->build, sizeof info->build, "%s", FD_BUILD);
    snprintf(info->model_name, sizeof info->model_name, "%s", r->model.graph->hparams.name);
    snprintf(info->model_hash, sizeof info->model_hash, "%s", r->model.hash);
    snprintf(info->arch, sizeof info->arch, "%s", r->model.graph->hparams.arch);
    snprintf(info->kv_type, sizeof info->kv_type, "%s", e->numerics == FD_NUMERICS_F64 ? "f64" : "f32");
    snprintf(info->fusion, sizeof info->fusion, "none");
    snprintf(info->fault, sizeof info->fault, "%s", r->exec.fault);
    snprintf(info->sources, sizeof info->sources, "%s", FD_SOURCES_DIGEST);
    if (r->model.tokenizer)
        snprintf(info->tokenizer, sizeof info->tokenizer, "%s", fd_tokenizer_name(r->model.tokenizer));
    info->prompt = r->prompt_text;
}

static fd_code open_trace(run *r, fd_error *err) {
    const arguments *a = r->args;
    fd_trace_options to = fd_trace_defaults(a->trace);
    if (!a->level || strcmp(a->level, "full") == 0) to.level = FD_TRACE_FULL;
    else if (strcmp(a->level, "stats") == 0) to.level = FD_TRACE_STATS;
    else if (strcmp(a->level, "fingerprint") == 0) to.level = FD_TRACE_FINGERPRINT;
    else return fd_fail(err, FD_ERR_INPUT, "level \"%s\": expected full, stats or fingerprint", a->level);
    to.tensors = a->tensors;
    to.compress = a->compress;
    FD_TRY(parse_range("--layers", a->layers, &to.layer_first, &to.layer_last, err));
    FD_TRY(parse_range("--steps", a->steps, &to.step_first, &to.step_last, err));
    fd_trace_info info;
    trace_info(r, &info);
    FD_TRY(fd_trace_create(&to, &info, r->exec.exec->graph, r->exec.exec->numerics, &r->trace, err));
    fd_exec_set_observer(r->exec.exec, fd_trace_observer(r->trace));
    return FD_OK;
}

static fd_code step(run *r, fd_step_kind kind, int32_t pos0, int32_t n, fd_error *err) {
    fd_batch batch = {.tokens = r->tokens + pos0, .n_tok = n, .pos0 = pos0, .logits = r->logits};
    if (r->trace) FD_TRY(fd_trace_begin_step(r->trace, kind, batch.tokens, n, pos0, err));
    FD_TRY(fd_exec_forward(r->exec.exec, &batch, err));
    if (r->trace) FD_TRY(fd_trace_end_step(r->trace, err));
    return FD_OK;
}

/* SentencePiece puts a space before the text; the first piece is printed without it when the prompt had none. */
static void print_token(run *r, int32_t token) {
    if (r->args->quiet) return;
    if (r->args->ids_only || !r->model.tokenizer) {
        printf("%d ", token);
    } else {
        char piece[256];
        int32_t size = fd_token_bytes(r->model.tokenizer, token, false, piece, sizeof piece);
        if (size > (int32_t)sizeof piece) size = sizeof piece;
        bool own_space = size > 0 && piece[0] == ' ' && (!r->prompt_text || r->prompt_text[0] == ' ');
        int32_t skip = !r->printed && size > 0 && piece[0] == ' ' && !own_space;
        if (size > skip) fwrite(piece + skip, 1, (size_t)(size - skip), stdout);
        r->printed = r->printed || size > 0;
    }
    fflush(stdout);
}

static fd_code generate(run *r, fd_error *err) {
    double start = now();
    FD_TRY(step(r, FD_STEP_PREFILL, 0, r->n_prompt, err));
    r->prefill_s = now() - start;
    for (int32_t i = 0; i < r->n_prompt; i++) print_token(r, r->tokens[i]);

    fd_cli_progress progress = fd_cli_progress_start("decode", r->args->n_generate);
    bool silent = r->args->quiet; /* streamed text is its own progress */
    start = now();
    for (int32_t i = 0; i < r->args->n_generate; i++) {
        int32_t *next = &r->tokens[r->n_token];
        FD_TRY(fd_sample(r->sampler, r->logits, r->tokens, r->n_token, next, err));
        r->n_token++;
        if (r->model.tokenizer && !r->args->ignore_eos && fd_tokenizer_is_end(r->model.tokenizer, *next)) break;
        print_token(r, *next);
        if (i + 1 == r->args->n_generate) break; /* the last token is not fed */
        FD_TRY(step(r, FD_STEP_DECODE, r->n_token - 1, 1, err));
        r->n_decode++;
        if (silent) fd_cli_progress_to(&progress, i + 1);
    }
    fd_cli_progress_end(&progress);
    r->decode_s = now() - start;
    if (!r->args->quiet) printf("\n");
    return FD_OK;
}

static fd_code prepare(run *r, fd_error *err) {
    const arguments *a = r->args;
    FD_TRY(fd_sampler_check(&a->sampler, err));
    FD_TRY(fd_cli_model_open(a->model, &r->model, err));
    int32_t *ids;
    FD_TRY(fd_cli_prompt_ids(&a->prompt, &r->model, &ids, &r->n_prompt, &r->prompt_text, err));
    int64_t total = (int64_t)r->n_prompt + a->n_generate;
    int32_t limit = a->n_ctx ? a->n_ctx : r->model.graph->hparams.n_ctx_train;
    r->tokens = total < (1 << 28) ? realloc(ids, sizeof *ids * (size_t)total) : NULL;
    if (!r->tokens) {
        free(ids);
        return fd_fail(err, FD_ERR_INPUT, "%lld positions: too many", (long long)total);
    }
    r->n_token = r->n_prompt;
    if (total > limit)
        return fd_fail(err, FD_ERR_INPUT, "context: the prompt's %d tokens and %d more need %lld positions, the limit is %d%s",
                       r->n_prompt, a->n_generate, (long long)total, limit,
                       a->n_ctx ? "" : " (what the model was trained for; --ctx overrides)");
    char spec[256];
    snprintf(spec, sizeof spec, "%s:%s", a->backend ? a->backend : "cpu", a->numerics ? a->numerics : "exact");
    for (const char *p = a->fault; p && *p;) { /* "x+y" to "+fault=x+fault=y" */
        size_t size = strcspn(p, "+"), at = strlen(spec);
        snprintf(spec + at, sizeof spec - at, "+fault=%.*s", (int)size, p);
        p += size + (p[size] == '+');
    }
    FD_TRY(fd_cli_exec_open(spec, r->model.graph, (int32_t)total, a->n_thread, &r->exec, err));
    FD_TRY(fd_sampler_new(&a->sampler, r->model.graph->hparams.n_vocab, &r->sampler, err));
    r->logits = malloc(sizeof *r->logits * (size_t)r->model.graph->hparams.n_vocab);
    if (!r->logits) return fd_fail(err, FD_ERR_MEMORY, "out of memory");
    return a->trace ? open_trace(r, err) : FD_OK;
}

static void summary(const run *r) {
    fprintf(stderr, "%s on %s: prefill %d tokens %.1f tok/s", r->exec.exec->backend, r->exec.exec->device, r->n_prompt,
            r->n_prompt / r->prefill_s);
    if (r->n_decode > 0) fprintf(stderr, ", decode %d tokens %.1f tok/s", r->n_decode, r->n_decode / r->decode_s);
    fprintf(stderr, "%s%s\n", r->args->trace ? ", trace " : "", r->args->trace ? r->args->trace : "");
}

int fd_cmd_run(int argc, char **argv) {
    arguments args = {.n_generate = 32, .sampler = fd_sampler_defaults()};
    argp_parse(&argp, argc, argv, 0, NULL, &args);
    run r = {.args = &args};
    fd_error err = {0};
    fd_code code = prepare(&r, &err);
    if (code == FD_OK) code = generate(&r, &err);
    if (r.trace) {
        if (code == FD_OK) code = fd_trace_finish(r.trace, &err);
        else fd_trace_abandon(r.trace);
    }
    if (code == FD_OK && !args.quiet) summary(&r);
    free(r.logits);
    free(r.tokens);
    free(r.prompt_text);
    fd_sampler_free(r.sampler);
    fd_cli_exec_close(&r.exec);
    fd_cli_model_close(&r.model);
    return code == FD_OK ? FD_EXIT_SAME : fd_cli_fail("run", &err);
}
