/* firstdiff compare: the first tensor in which two recorded traces differ. */
#include "cli/arguments.h"
#include "cli/compare/chat_prompt.h"
#include "cli/compare/compare_pair.h"
#include "cli/compare/replay.h"
#include "cli/import/mapped_trace.h"
#include "cli/open_trace.h"
#include "cli/output.h"
#include "cli/ranks.h"
#include "compare/compare.h"
#include "compare/report/baseline.h"

typedef struct arguments {
    const char *traces[2], *model, *candidate, *map, *since, *chat;
    int n_trace;
    bool replay_gpu;
    size_t memory;
    fd_cli_globs allow_missing;
    fd_cli_output output;
} arguments;

enum { KEY_ALLOW = 256, KEY_MODEL, KEY_CANDIDATE, KEY_MEMORY, KEY_MAP, KEY_SINCE, KEY_CHAT, KEY_REPLAY };

static const struct argp_option options[] = {
    {"model", KEY_MODEL, "MODEL.gguf", 0,
     "The model both ran: every op is replayed on the candidate's own inputs, and rounding is told from errors", 1},
    {"candidate", KEY_CANDIDATE, "CLASS", 0,
     "With --model, where the candidate rounds: f32, f16kv, ggml-cpu, f16, bf16, hf-bf16, …; ? lists all (default: "
     "what "
     "its trace says, else inferred)",
     1},
    {"replay", KEY_REPLAY, "cpu|gpu", 0,
     "With --model: Where large matrix products of replay are computed (default cpu); the verdict is the same "
     "(docs/verdicts.md)",
     1},
    {"since", KEY_SINCE, "VERDICT.json", 0,
     "An earlier verdict (of --json): say whether the first divergence has moved, as it does when one of several bugs "
     "is fixed",
     1},
    {"chat", KEY_CHAT, "MESSAGES.json", 0,
     "With --model: is the candidate's prompt what the model's chat template makes of these messages? Rendered as run "
     "--chat does (docs/chat.md)",
     1},
    {"map", KEY_MAP, "NAME|FILE", 0,
     "Map of the candidate's foreign names to the GGUF's: llama.cpp, llama2.c, transformers, or a file "
     "(docs/mapping.md; "
     "default: what the traces' attribute names says)",
     1},
    {"allow-missing", KEY_ALLOW, "GLOB", 0,
     "Tensors whose names match may be missing on either side (repeatable); they are still listed", 1},
    {"memory", KEY_MEMORY, "SIZE", 0,
     "Memory that may grow with the traces' length, 64M or more (default 512M); --model needs more", 1},
    {0},
};

static error_t parse_compare_option(int key, char *arg, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &a->output; return 0;
    case KEY_MODEL: a->model = arg; return 0;
    case KEY_CANDIDATE: a->candidate = arg; return 0;
    case KEY_SINCE: a->since = arg; return 0;
    case KEY_REPLAY: a->replay_gpu = fd_cli_is_replay_gpu(arg, state); return 0;
    case KEY_CHAT: a->chat = arg; return 0;
    case KEY_MAP: a->map = arg; return 0;
    case KEY_ALLOW: fd_cli_add_glob(&a->allow_missing, arg, state); return 0;
    case KEY_MEMORY: a->memory = fd_cli_bytes(arg, (size_t)64 << 20, state); return 0;
    case ARGP_KEY_ARG:
        if (a->n_trace == 2) argp_error(state, "two traces expected, \"%s\" is one too many", arg);
        a->traces[a->n_trace++] = arg;
        return 0;
    case ARGP_KEY_END:
        if (a->n_trace != 2) argp_error(state, "two traces expected, %d given", a->n_trace);
        if (a->chat && !a->model) argp_error(state, "--chat needs --model, whose template it renders");
        if (a->output.repro && !a->model) argp_error(state, "--repro needs --model: without it no op is judged");
        if (a->replay_gpu && !a->model) argp_error(state, "--replay gpu needs --model: without it nothing is replayed");
        if (a->candidate && !a->model) argp_error(state, "--candidate needs --model: without it nothing is replayed");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{&fd_cli_judged_output_argp, 0, NULL, 0}, {0}};
const struct argp fd_cmd_compare_argp = {
    options,
    parse_compare_option,
    "REF.h5 CAND.h5",
    "Compares two traces of one model, node by node in the reference's order of "
    "execution, without tolerance, and stops "
    "explaining at the first tensor that differs. With --model, at the first that rounding "
    "does not explain.\v"
    "Exit status: 0 identical in every bit, or (with --model) different by rounding alone, 1 diverged, 2 unusable "
    "input, 3 incomplete: a "
    "trace is truncated, or tensors or "
    "positions are on one side only, and nothing that could be compared differs.",
    children,
    NULL,
    NULL};

/* Before anything is read: a comparison may take long. */
static fd_code check_outputs(const arguments *a, fd_error *err) {
    const char *inputs[] = {a->traces[0], a->traces[1], a->model, a->map, a->since, a->chat};
    return fd_cli_check_reports_not_overwriting(&a->output, inputs, sizeof inputs / sizeof *inputs, err);
}

static fd_code compare_files(arguments *a, fd_verdict *verdict, fd_cli_unmatched *unmatched, fd_error *err) {
    fd_trace *traces[2] = {NULL, NULL};
    fd_cli_model model = {0};
    fd_baseline since;
    fd_code code = a->since ? fd_baseline_read(a->since, &since, err) : FD_OK;
    size_t memory = a->model ? SIZE_MAX : a->memory / 4; /* replay reads everywhere */
    for (int i = 0; i < 2 && code == FD_OK; i++) code = fd_cli_open_trace(a->traces[i], memory, &traces[i], err);
    if (code == FD_OK && a->model) code = fd_cli_model_open(a->model, &model, err);
    if (code == FD_OK && a->model) fd_cli_set_context_of(&model, traces[0]);
    for (int i = 0; i < 2 && code == FD_OK && a->model; i++)
        code = fd_cli_check_trace_model(&model, a->model, traces[i], err);
    for (int i = 0; i < 2 && code == FD_OK; i++)
        code = fd_cli_map_trace(i == 1 ? a->map : NULL, model.graph, &traces[i], unmatched, err);
    fd_cli_pair pair = {.model = a->model ? &model : NULL,
                        .ref = traces[0],
                        .cand = traces[1],
                        .allow_missing = &a->allow_missing,
                        .class_name = a->candidate,
                        .repro = a->output.repro,
                        .memory = a->memory / 4,
                        .replay_gpu = a->replay_gpu};
    bool other_prompt = false;
    if (code == FD_OK && a->chat)
        code = fd_cli_check_chat_prompt(&model, a->chat, traces[1], verdict, &other_prompt, err);
    if (code == FD_OK && !other_prompt) code = fd_cli_compare_pair(&pair, verdict, err);
    if (code == FD_OK && a->since) fd_baseline_apply(&since, traces[0], verdict);
    if (a->model) fd_cli_model_close(&model);
    for (int i = 0; i < 2; i++)
        if (traces[i]) fd_trace_close(traces[i]);
    return code;
}

int fd_cmd_compare(int argc, char **argv) {
    arguments args = {.memory = FD_COMPARE_MEMORY};
    argp_parse(&fd_cmd_compare_argp, argc, argv, 0, NULL, &args);
    if (args.model) {
        fd_cli_limit_openmp_spin();
        fd_cli_keep_freed_memory();
    }
    fd_error err = {0};
    fd_verdict verdict = {0};
    fd_cli_unmatched unmatched = {0};
    if (fd_cli_rank() > 0) { /* one writes */
        args.output.junit = args.output.html = args.output.repro = NULL;
    }
    fd_code code = check_outputs(&args, &err);
    if (code == FD_OK) code = fd_cli_check_replay(args.replay_gpu, &err);
    if (code == FD_OK) code = fd_cli_ranks_join(&err);
    if (code == FD_OK) code = compare_files(&args, &verdict, &unmatched, &err);
    int status = code == FD_OK ? fd_cli_print_verdict("compare", &verdict, &args.output) : fd_cli_fail("compare", &err);
    fd_verdict_free(&verdict);
    /* tensors that the map does not name were not compared */
    return status == FD_EXIT_SAME && unmatched.n > 0 ? FD_EXIT_INCOMPLETE : status;
}
