/* firstdiff check: from a dump or a trace of an engine and its model to the verdict, in one command. */
#include <errno.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "cli/check/candidate.h"
#include "cli/check/reference.h"
#include "cli/compare/chat_prompt.h"
#include "cli/compare/compare_pair.h"
#include "cli/compare/replay.h"
#include "cli/output.h"

typedef struct arguments {
    const char *class_name, *backend, *keep, *chat;
    int32_t n_thread;
    bool replay_gpu;
    fd_cli_globs allow_missing;
    fd_check_input input;
    fd_cli_output output;
} arguments;

enum {
    KEY_MAP = 256,
    KEY_CANDIDATE,
    KEY_TOKENS_FILE,
    KEY_STEPS,
    KEY_CACHE_TYPE,
    KEY_WEIGHTS,
    KEY_BACKEND,
    KEY_KEEP,
    KEY_ALLOW,
    KEY_CHAT,
    KEY_REPLAY
};

static const struct argp_option options[] = {
    {"candidate", KEY_CANDIDATE, "CLASS", 0,
     "Where the engine rounds, as in firstdiff compare: f32, f16, bf16, ggml-cpu, …; ? lists all (default: what its "
     "trace says, else inferred)",
     1},
    {"tokens", 't', "1,2,3", 0, "Tokens that the engine was fed (default: what the dump holds)", 1},
    {"tokens-file", KEY_TOKENS_FILE, "FILE", 0, "These tokens from a file", 1},
    {"steps", KEY_STEPS, "13,1,1", 0, "Tokens of each of its forward calls (default: from the shapes)", 1},
    {"cache-type", KEY_CACHE_TYPE, "TYPE[/TYPE]", 0,
     "Type of its K/V cache, of K and of V: q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl, bf16, else f32 or f16, which are the "
     "class's (default: what a trace says)",
     1},
    {"chat", KEY_CHAT, "MESSAGES.json", 0,
     "Is its prompt what the model's chat template makes of these messages? Rendered as run --chat does (docs/chat.md)",
     1},
    {"map", KEY_MAP, "NAME|FILE", 0,
     "Map of its names to the GGUF's: gguf, llama.cpp, llama2.c, transformers, vllm, onnx or a file (default: the one "
     "that names most tensors, values for the rest; else all from the values)",
     1},
    {"weights", KEY_WEIGHTS, "DIR|FILE", 0, "Its weights as loaded, as in firstdiff import", 1},
    {"allow-missing", KEY_ALLOW, "GLOB", 0, "Tensors whose names match may be missing (repeatable)", 1},
    {"backend", KEY_BACKEND, "cpu|gpu", 0, "Where the reference runs (default cpu)", 2},
    {"replay", KEY_REPLAY, "cpu|gpu", 0,
     "Where large matrix products of replay are computed (default cpu); the verdict is the same (docs/verdicts.md)", 2},
    {"threads", 'j', "N", 0, "CPU threads (default: all cores; never changes a bit)", 2},
    {"keep", KEY_KEEP, "DIR", 0, "Keep ref.h5, cand.h5 and a map that was found (found.map) there", 2},
    {0},
};

static error_t take_path(char *arg, struct argp_state *state) {
    arguments *a = state->input;
    const char **to = !a->input.model_path ? &a->input.model_path : &a->input.path;
    if (*to) argp_error(state, "a model and a dump or trace expected, \"%s\" is one too many", arg);
    *to = arg;
    return 0;
}

static error_t parse_check_option(int key, char *arg, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &a->output; return 0;
    case KEY_CANDIDATE: a->class_name = arg; return 0;
    case 't': a->input.tokens = arg; return 0;
    case KEY_TOKENS_FILE: a->input.tokens_file = arg; return 0;
    case KEY_STEPS: a->input.steps = arg; return 0;
    case KEY_CACHE_TYPE: a->input.cache_type = arg; return 0;
    case KEY_MAP: a->input.map = arg; return 0;
    case KEY_WEIGHTS: a->input.weights = arg; return 0;
    case KEY_ALLOW: fd_cli_add_glob(&a->allow_missing, arg, state); return 0;
    case KEY_BACKEND: a->backend = arg; return 0;
    case KEY_REPLAY: a->replay_gpu = fd_cli_is_replay_gpu(arg, state); return 0;
    case 'j': a->n_thread = fd_cli_integer(arg, 0, state); return 0;
    case KEY_KEEP: a->keep = arg; return 0;
    case KEY_CHAT: a->chat = arg; return 0;
    case ARGP_KEY_ARG: return take_path(arg, state);
    case ARGP_KEY_END:
        if (!a->input.model_path) argp_error(state, "no model given: MODEL.gguf, then the engine's dump or trace");
        if (!a->input.path) argp_error(state, "no dump or trace given");
        if (a->input.tokens && a->input.tokens_file) argp_error(state, "--tokens and --tokens-file: one of them");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{&fd_cli_judged_output_argp, 0, NULL, 0}, {0}};
const struct argp fd_cmd_check_argp = {
    options,
    parse_check_option,
    "MODEL.gguf DUMP|TRACE.h5",
    "Says whether an engine computes what the model says. DUMP is what it left of a run: a folder of .npy files or "
    "raw numbers (.bin is f32), an .npz, .safetensors or .pt file, a trace; of a tensor-parallel engine the dumps of "
    "all ranks. Names are mapped to "
    "the GGUF's, the reference is run on the same tokens, "
    "every op is replayed on the engine's own inputs: rounding, or a bug and its name.\v"
    "Exit status: 0 different by rounding alone, or in no bit, 1 diverged, 2 unusable input, 3 incomplete: tensors are "
    "missing or have no name in the model.",
    children,
    NULL,
    NULL};

/* What to type next where the verdict alone does not say it: how to accept what is missing, and, of files, how to keep the
 * trace that can be looked into. */
static void suggest_next(const arguments *a, bool of_files, fd_verdict *v) {
    static const char inspect[] = "firstdiff inspect ";
    char tensor[128] = "";
    bool missing = false, caches = true; /* a cache is a copy: what reads it shows whether it is right */
    for (int32_t i = 0; i < v->reasons.n && i < FD_MAX_REMARKS; i++)
        missing |= v->reasons.items[i].kind == FD_REASON_NOT_SEEN;
    for (int32_t i = 0; i < v->n_missing; i++) caches &= v->missing[i].allowed || strstr(v->missing[i].name, ".cache_");
    if (v->status == FD_INCOMPLETE && missing)
        snprintf(v->next, sizeof v->next,
                 "record these tensors too, or accept that they are missing: --allow-missing '%s'",
                 caches ? "*.cache_*" : "*");
    bool shows_candidate = strncmp(v->next, inspect, strlen(inspect)) == 0 && !v->replay.of_reference;
    if (!shows_candidate || !of_files || a->keep) return;
    const char *last = strrchr(v->next, '\'') ? strchr(v->next, '\'') : strrchr(v->next, ' ') + 1;
    snprintf(tensor, sizeof tensor, "%.120s", last);
    snprintf(v->next, sizeof v->next, "the same with --keep DIR, then firstdiff inspect DIR/cand.h5 %s", tensor);
}

static fd_code check_outputs(const arguments *a, fd_error *err) {
    if (fd_ends_with(a->input.path, ".gguf") && !fd_ends_with(a->input.model_path, ".gguf"))
        return fd_fail(err, FD_ERR_INPUT, "the model comes first: firstdiff check %s %s", a->input.path,
                       a->input.model_path);
    const char *inputs[] = {a->input.model_path,  a->input.path,    a->input.map,
                            a->input.tokens_file, a->input.weights, a->chat};
    if (a->keep && mkdir(a->keep, 0777) != 0 && errno != EEXIST)
        return fd_fail(err, FD_ERR_IO, "--keep %s: %s", a->keep, strerror(errno));
    return fd_cli_check_reports_not_overwriting(&a->output, inputs, sizeof inputs / sizeof *inputs, err);
}

/* The other ranks computed their parts from copies of their own, so these do not follow from the copy that is judged: findings
 * without a name are that. */
static void leave_named_causes(fd_causes *causes) {
    int32_t n = 0;
    for (int32_t i = 0; i < causes->n_also && i < FD_MAX_ALSO; i++)
        if (causes->also[i].name[0]) causes->also[n++] = causes->also[i];
    causes->n_also = n;
}

static void add_ranks(const fd_candidate *candidate, fd_verdict *verdict) {
    fd_verdict_late_reason(verdict, candidate->ranks);
    if (verdict->status != FD_DIVERGED) return;
    fd_verdict_note(verdict, candidate->ranks);
    if (candidate->copies_differ) leave_named_causes(&verdict->diagnosis.causes);
}

static fd_code check_engine(arguments *a, fd_verdict *verdict, fd_error *err) {
    fd_cli_model model = {0};
    fd_trace *ref = NULL;
    fd_candidate candidate = {0};
    fd_code code = fd_cli_model_open(a->input.model_path, &model, err);
    if (a->n_thread > 0) omp_set_num_threads(a->n_thread); /* of replay */
    fd_check_reference run = {.model = &model, .backend = a->backend, .n_thread = a->n_thread, .keep = a->keep};
    if (code == FD_OK) code = fd_candidate_open(&a->input, &run, &candidate, &ref, err);
    bool other_prompt = false;
    if (code == FD_OK && a->chat)
        code = fd_cli_check_chat_prompt(&model, a->chat, candidate.trace, verdict, &other_prompt, err);
    if (code == FD_OK && !ref && !other_prompt)
        code = fd_check_run_reference(&run, fd_trace_tokens(candidate.trace), fd_trace_n_pos(candidate.trace),
                                      fd_trace_steps(candidate.trace), fd_trace_n_step(candidate.trace), &ref, err);
    fd_cli_pair pair = {.model = &model,
                        .ref = ref,
                        .cand = candidate.trace,
                        .allow_missing = &a->allow_missing,
                        .class_name = a->class_name,
                        .repro = a->output.repro,
                        .replay_gpu = a->replay_gpu};
    if (code == FD_OK && !other_prompt) code = fd_cli_compare_pair(&pair, verdict, err);
    if (code == FD_OK && candidate.ranks_disagree) add_ranks(&candidate, verdict);
    if (code == FD_OK && candidate.unmatched.n > 0) {
        fd_remark unmatched = {FD_REASON_UNMATCHED, .n = {(int64_t)candidate.unmatched.n}};
        snprintf(unmatched.text, sizeof unmatched.text, "%s", candidate.unmatched.names);
        fd_verdict_late_reason(verdict, unmatched);
    }
    if (code == FD_OK && !other_prompt) suggest_next(a, candidate.of_files, verdict);
    fd_trace_close(candidate.trace);
    fd_trace_close(ref);
    if (model.graph) fd_cli_model_close(&model);
    return code;
}

int fd_cmd_check(int argc, char **argv) {
    arguments args = {.backend = "cpu"};
    fd_cli_keep_freed_memory();
    argp_parse(&fd_cmd_check_argp, argc, argv, 0, NULL, &args);
    args.input.keep = args.keep;
    fd_error err = {0};
    fd_verdict verdict = {0};
    fd_code code = check_outputs(&args, &err);
    if (code == FD_OK) code = fd_cli_check_replay(args.replay_gpu, &err);
    if (code == FD_OK) code = check_engine(&args, &verdict, &err);
    int status = code == FD_OK ? fd_cli_print_verdict("check", &verdict, &args.output) : fd_cli_fail("check", &err);
    fd_verdict_free(&verdict);
    return status;
}
