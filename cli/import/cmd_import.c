/* firstdiff import: what another engine dumped, as a trace. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/import/propose.h"
#include "cli/import/mapped_trace.h"
#include "cli/output.h"
#include "dumpers/import/ranks/ranks.h"

typedef struct arguments {
    const char *source, *output, *map, *model, *tokens, *tokens_file, *steps, *cache_type, *ref, *weights;
    fd_name_map_list allow; /* borrowed strings */
    bool quiet, ranks;
} arguments;

enum {
    KEY_MAP = 256,
    KEY_MODEL,
    KEY_TOKENS,
    KEY_TOKENS_FILE,
    KEY_STEPS,
    KEY_CACHE_TYPE,
    KEY_ALLOW,
    KEY_REF,
    KEY_WEIGHTS,
    KEY_RANKS
};

static const struct argp_option options[] = {
    {"output", 'o', "TRACE.h5", 0, "The trace to write", 1},
    {"map", KEY_MAP, "NAME|FILE", 0,
     "Built-in map (gguf, llama.cpp, llama2.c, transformers, vllm, onnx) or map file (default: what the source says, "
     "else gguf); "
     "auto: writes no trace, but proposes a map on standard output, to be read, edited and given here",
     1},
    {"model", KEY_MODEL, "MODEL.gguf", 0, "The model that ran: names and shapes are checked against its graph", 1},
    {"ref", KEY_REF, "REF.h5", 0, "With --map auto: a trace of the model on these tokens (default: the model is run)",
     1},
    {"weights", KEY_WEIGHTS, "DIR|FILE", 0,
     "Arrays of weights as the engine loaded them, by their names in the GGUF or by the map: hashes of their rows are "
     "recorded, and compare looks for a loader's bug in them first (default: those in DIR|FILE that have such names)",
     1},
    {"ranks", KEY_RANKS, 0, 0,
     "The dumps of a tensor-parallel engine's ranks (folders rank0/, rank1/, …, or names as vLLM and SGLang write "
     "them): "
     "puts each tensor together by how it is sharded, and says where ranks contradict each other; needs --model",
     1},
    {"tokens", KEY_TOKENS, "1,2,3", 0, "Tokens fed, in order (default: tokens.txt or tokens.npy there)", 2},
    {"tokens-file", KEY_TOKENS_FILE, "FILE", 0, "The tokens from a file", 2},
    {"steps", KEY_STEPS, "13,1,1", 0, "Tokens of each forward call (default: from the shapes)", 2},
    {"cache-type", KEY_CACHE_TYPE, "TYPE[/TYPE]", 0,
     "Blocks of the K/V cache, of K and of V: q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl, else f32 (default: what a trace "
     "says; "
     "binary16 is a class)",
     2},
    {"allow", KEY_ALLOW, "PATTERN", 0, "Tensors that may stay unmatched (repeatable); they are still listed", 3},
    {"quiet", 'q', 0, 0, "No summary", 3},
    {0},
};

static bool is_auto(const arguments *a) {
    return a->map && strcmp(a->map, "auto") == 0;
}

static error_t parse_import_option(int key, char *arg, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case 'o': a->output = arg; return 0;
    case 'q': a->quiet = true; return 0;
    case KEY_MAP: a->map = arg; return 0;
    case KEY_MODEL: a->model = arg; return 0;
    case KEY_TOKENS: a->tokens = arg; return 0;
    case KEY_TOKENS_FILE: a->tokens_file = arg; return 0;
    case KEY_STEPS: a->steps = arg; return 0;
    case KEY_CACHE_TYPE: a->cache_type = arg; return 0;
    case KEY_REF: a->ref = arg; return 0;
    case KEY_WEIGHTS: a->weights = arg; return 0;
    case KEY_RANKS: a->ranks = true; return 0;
    case KEY_ALLOW:
        a->allow.items = realloc(a->allow.items, (a->allow.n + 1) * sizeof *a->allow.items);
        if (!a->allow.items) argp_failure(state, FD_EXIT_UNUSABLE, ENOMEM, "--allow");
        a->allow.items[a->allow.n++] = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (a->source) argp_error(state, "one folder or file expected, \"%s\" is one too many", arg);
        a->source = arg;
        return 0;
    case ARGP_KEY_END:
        if (!a->source) argp_error(state, "no folder or file given");
        if (is_auto(a) && !a->model) argp_error(state, "--map auto needs --model MODEL.gguf");
        if (is_auto(a) && a->output) argp_error(state, "--map auto prints a map and writes no trace: no -o");
        if (is_auto(a) && a->weights) argp_error(state, "--weights needs a map: not with --map auto");
        if (!is_auto(a) && a->ref) argp_error(state, "--ref is for --map auto");
        if (!is_auto(a) && !a->output) argp_error(state, "no -o TRACE.h5 given");
        if (a->ranks && !a->model)
            argp_error(state, "--ranks needs --model MODEL.gguf: sizes say how tensors are sharded");
        if (a->tokens && a->tokens_file) argp_error(state, "--tokens and --tokens-file: one of them");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

const struct argp fd_cmd_import_argp = {
    options,
    parse_import_option,
    "DIR|FILE -o TRACE.h5\nDIR|FILE --map auto --model MODEL.gguf",
    "Makes a trace of tensors that another engine dumped: a folder of .npy files or raw numbers, an .npz, .safetensors "
    "or .pt file, a "
    "folder of transformers' model debugger, or a trace with foreign names. docs/mapping.md describes maps.\v"
    "Exit status: 0 every tensor has its node, 1 ranks contradict each other, 2 unusable input or usage, 3 some "
    "tensors are not named by the map (they are listed, and the trace is still written), or --map auto could not "
    "decide.",
    NULL,
    NULL,
    NULL};

static void summarise(const arguments *a, const fd_import_plan *plan) {
    printf("%zu nodes, %d position%s in %d step%s, from %zu tensors with the map %s: %s\n", plan->n_node, plan->n_token,
           plan->n_token == 1 ? "" : "s", plan->n_step, plan->n_step == 1 ? "" : "s", fd_source_count(plan->source),
           plan->map->name, a->output);
    if (plan->n_weight) printf("%zu weights, as hashes of their rows\n", plan->n_weight);
    if (plan->n_skipped || plan->n_allowed || plan->n_unmatched)
        printf("%zu skipped, %zu allowed, %zu unmatched\n", plan->n_skipped, plan->n_allowed, plan->n_unmatched);
}

static fd_code write_trace(const arguments *a, const fd_source *source, const fd_import_options *how, int *status,
                           fd_error *err) {
    fd_import_plan plan;
    FD_TRY(fd_import_make_plan(source, how, &plan, err));
    fd_code code = fd_import_write(&plan, a->output, err);
    if (code == FD_OK && !a->quiet) summarise(a, &plan);
    if (code == FD_OK) fd_cli_list_unmatched(stderr, &plan);
    *status = plan.n_unmatched + plan.n_unmatched_weight + how->map->ask.n > 0 ? FD_EXIT_INCOMPLETE : FD_EXIT_SAME;
    fd_import_plan_free(&plan);
    return code;
}

static fd_code propose_map(const arguments *a, const fd_source *source, const fd_import_options *how,
                           const fd_cli_model *model, int *status, fd_error *err) {
    fd_proposal found;
    FD_TRY(fd_cli_propose_map(source, how, model, a->ref, stdout, &found, err));
    if (!a->quiet)
        fprintf(stderr,
                "%zu names are sure, %zu by name alone, %zu are to be decided (ask), %zu unmatched; %zu nodes have no "
                "name\n",
                found.n_sure, found.n_by_name, found.n_ask, found.n_unmatched, found.n_missing);
    if (!a->quiet && found.n_differ)
        fprintf(stderr, "%zu fit another rule than most other layers (\"# ask\"): the engine's layout, or its bug?\n",
                found.n_differ);
    *status = found.n_ask + found.n_unmatched > 0 ? FD_EXIT_INCOMPLETE : FD_EXIT_SAME;
    return FD_OK;
}

/* The names of the nodes of each kind, as many as fit a line. */
static void print_sharding(const fd_rank_report *report) {
    for (int shard = 0; shard < FD_SHARD_COUNT; shard++) {
        size_t shown = 0;
        for (size_t i = 0; i < report->n_kind; i++) {
            const fd_rank_kind *kind = &report->kinds[i];
            if ((int)kind->shard != shard) continue;
            if (shown++ == 0) printf("  %-11s %s:", fd_shard_name((fd_shard)shard), fd_shard_summary((fd_shard)shard));
            printf(" %s", kind->name);
        }
        if (shown) printf("\n");
    }
}

enum { FINDINGS_SHOWN = 3 };

/* What the ranks' dumps show without a reference. Returns true where they contradict each other. */
static bool print_ranks(const arguments *a, const fd_source *source) {
    const fd_rank_report *report = fd_ranks_report_of(source);
    if (!report) return false;
    if (!a->quiet) {
        printf("%d rank%s\n", report->n_rank, report->n_rank == 1 ? "" : "s");
        print_sharding(report);
        if (report->rounding > 0)
            printf("  copies on different ranks differ by rounding, at most %.3g\n", sqrt(report->rounding));
    }
    for (size_t i = 0; i < report->n_finding && i < FINDINGS_SHOWN; i++) {
        const fd_rank_finding *f = &report->findings[i];
        printf("%s %s      step %d · position %d\n  %s\n", i ? "then at" : "RANKS DISAGREE at", f->node, f->step,
               f->position, f->text);
    }
    if (report->n_finding > FINDINGS_SHOWN) printf("then at %zu more\n", report->n_finding - FINDINGS_SHOWN);
    return report->n_finding > 0;
}

/* The ranks' dumps become one source; `how` is complete but for it. */
static fd_code join_ranks(fd_source **source, const fd_import_options *how, fd_error *err) {
    fd_source *whole;
    FD_TRY(fd_ranks_join(*source, how, &whole, err));
    *source = whole;
    return FD_OK;
}

static fd_code import_source(const arguments *a, fd_source **dumps, const fd_name_map *map, const fd_cli_model *model,
                             int *status, fd_error *err) {
    const fd_graph *graph = model->graph;
    fd_import_options how = {.map = map, .graph = graph, .allow = &a->allow};
    fd_source *weights = NULL;
    int32_t *tokens = NULL, *steps = NULL, n_vocab = graph ? graph->hparams.n_vocab : INT32_MAX;
    fd_code code = fd_cli_token_list(a->tokens, a->tokens_file, n_vocab, &tokens, &how.n_token, err);
    if (code == FD_OK && a->steps &&
        (code = fd_cli_parse_ids(a->steps, INT32_MAX, &steps, &how.n_step_size, err)) != FD_OK)
        code = fd_error_prefix(err, "--steps");
    uint32_t k, v;
    if (code == FD_OK && a->cache_type && (code = fd_kv_types_parse(a->cache_type, &k, &v, err)) != FD_OK)
        code = fd_error_prefix(err, "--cache-type");
    how.tokens = tokens;
    how.step_sizes = steps;
    how.cache_type = a->cache_type;
    if (code == FD_OK && a->weights) code = fd_source_open(a->weights, &weights, err);
    how.weights = weights;
    if (code == FD_OK) code = fd_cli_prepare_source(*dumps, &how, err);
    if (code == FD_OK && a->ranks) code = join_ranks(dumps, &how, err);
    const fd_source *source = *dumps;
    if (code == FD_OK)
        code = map ? write_trace(a, source, &how, status, err) : propose_map(a, source, &how, model, status, err);
    if (code == FD_OK && map && print_ranks(a, source)) *status = FD_EXIT_DIVERGED;
    fd_source_close(weights);
    free(tokens);
    free(steps);
    return code;
}

static fd_code open_and_import(const arguments *a, int *status, fd_error *err) {
    fd_source *source = NULL;
    fd_name_map *map = NULL;
    fd_cli_model model = {0};
    const char *inputs[] = {a->source, a->map, a->model, a->tokens_file, a->weights};
    FD_TRY(fd_cli_check_not_overwriting(a->output, inputs, sizeof inputs / sizeof *inputs, err));
    fd_code code = (a->ranks ? fd_source_open_ranks : fd_source_open)(a->source, &source, err);
    if (code == FD_OK && !is_auto(a)) {
        const char *names = fd_source_names(source);
        if (names && !a->map) code = fd_cli_check_names(a->source, names, err);
        if (code == FD_OK) code = fd_name_map_open(a->map ? a->map : names ? names : "gguf", &map, err);
    }
    if (code == FD_OK && a->model) code = fd_cli_model_open(a->model, &model, err);
    if (code == FD_OK && a->model && fd_source_trace(source))
        code = fd_cli_check_trace_model(&model, a->model, fd_source_trace(source), err);
    if (code == FD_OK) code = import_source(a, &source, map, &model, status, err);
    if (a->model) fd_cli_model_close(&model);
    fd_name_map_free(map);
    fd_source_close(source);
    return code;
}

static void suggest_ranks(const arguments *a) {
    fd_source *source = NULL;
    fd_error none;
    bool of_ranks = false;
    if (!a->ranks && fd_source_open_any(a->source, &source, &of_ranks, &none) == FD_OK && of_ranks)
        fprintf(stderr, "%s: the names say that these are dumps of several ranks: --ranks puts them together\n",
                a->source);
    fd_source_close(source);
}

int fd_cmd_import(int argc, char **argv) {
    arguments args = {0};
    argp_parse(&fd_cmd_import_argp, argc, argv, 0, NULL, &args);
    fd_error err = {0};
    int status = FD_EXIT_SAME;
    fd_code code = open_and_import(&args, &status, &err);
    free(args.allow.items);
    if (code == FD_ERR_INCOMPLETE || (code == FD_OK && status == FD_EXIT_INCOMPLETE)) suggest_ranks(&args);
    if (code == FD_ERR_INCOMPLETE && !is_auto(&args)) /* no name is known */
        fprintf(stderr, "firstdiff check %s %s finds out from the values which tensor is which\n",
                args.model ? args.model : "MODEL.gguf", args.source);
    return code == FD_OK ? status : fd_cli_fail("import", &err);
}
