/* firstdiff diff: two executors, or an executor and a trace, in lockstep over one model. */
#include "cli/arguments.h"
#include "cli/compare/replay.h"
#include "cli/compare/explain_runs.h"
#include "cli/import/mapped_trace.h"
#include "cli/open_trace.h"
#include "cli/output.h"

#include <stdlib.h>
#include <string.h>

#include "compare/compare.h"
#include "compare/diff/lockstep.h"

typedef struct arguments {
    const char *model, *spec[2]; /* [reference, candidate] */
    fd_cli_prompt prompt;
    int32_t n_generate, n_thread, n_ctx; /* n_generate -1: not given */
    bool bits_only;
    const char *candidate, *map;
    fd_cli_globs allow_missing;
    fd_cli_output output;
} arguments;

enum { KEY_A = 256, KEY_B, KEY_ALLOW, KEY_BITS, KEY_CANDIDATE, KEY_MAP, DEFAULT_GENERATE = 8 };

static const struct argp_option options[] = {
    {"a", KEY_A, "SPEC", 0, "The reference (default cpu:exact)", 2},
    {"b", KEY_B, "SPEC", 0, "The candidate (default gpu:exact)", 2},
    {0, 'n', "N", 0, "Tokens to generate after the prompt (default 8; the last is not fed); with a trace: at most N",
     2},
    {"threads", 'j', "N", 0, "CPU threads (default: all cores; never changes a bit)", 2},
    {"ctx", 'c', "N", 0, "Maximum number of positions (default: what the model was trained for)", 2},
    {"allow-missing", KEY_ALLOW, "GLOB", 0, "Tensors whose names match may be missing in a trace (repeatable)", 2},
    {"candidate", KEY_CANDIDATE, "CLASS", 0, "Where the candidate rounds, as in firstdiff compare", 2},
    {"map", KEY_MAP, "NAME|FILE", 0,
     "Map of a trace's foreign names, as in firstdiff compare; of --b where both are traces", 2},
    {"bits", KEY_BITS, 0, 0, "Stop at the first bit that differs: no replay, no name", 2},
    {0},
};

static error_t parse_diff_option(int key, char *arg, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->prompt;
        state->child_inputs[1] = &a->output;
        return 0;
    case KEY_A: a->spec[0] = arg; return 0;
    case KEY_B: a->spec[1] = arg; return 0;
    case 'n': a->n_generate = fd_cli_integer(arg, 0, state); return 0;
    case 'j': a->n_thread = fd_cli_integer(arg, 0, state); return 0;
    case 'c': a->n_ctx = fd_cli_integer(arg, 1, state); return 0;
    case KEY_BITS: a->bits_only = true; return 0;
    case KEY_CANDIDATE: a->candidate = arg; return 0;
    case KEY_MAP: a->map = arg; return 0;
    case KEY_ALLOW: fd_cli_add_glob(&a->allow_missing, arg, state); return 0;
    default: return fd_cli_one_model(key, arg, state, &a->model);
    }
}

static const struct argp_child children[] = {{&fd_cli_prompt_argp, 0, NULL, 0}, {&fd_cli_output_argp, 0, NULL, 0}, {0}};
const struct argp fd_cmd_diff_argp = {
    options,
    parse_diff_option,
    "MODEL.gguf",
    "Runs one model on two executors step by step, compares every tensor before anything reads it, and stops both at "
    "the "
    "first that differs. Both are then run again up to there (to the end, where rounding may differ) and recorded, and "
    "every op is replayed as in firstdiff compare --model: noise, or a bug and its name.\v"
    "SPEC is cpu:exact, gpu:exact, gpu:fast, cpu:f64 or cpu:emulate-CLASS, each may end in "
    "+fault=NAME[@LAYER], a GPU's in +gpus=N|LIST; or trace:FILE.h5, whose tokens are then fed unless a prompt is "
    "given. Tokens after the "
    "prompt are the reference's greedy choice, fed to both.\n\n"
    "Exit status: 0 identical in every bit, or different by rounding alone, 1 diverged, 2 unusable input, 3 "
    "incomplete.",
    children,
    NULL,
    NULL};

typedef struct diff {
    const arguments *args;
    fd_cli_model model;
    fd_cli_exec exec[2];
    fd_trace *trace[2];
    fd_cli_globs allow_missing; /* those given, and those that the traces' engines cannot record */
    char absent[2][sizeof((fd_trace_info *)0)->absent];
    fd_cli_unmatched unmatched;
    int32_t *tokens;
    int32_t n_token, n_generate;
    fd_trace_step *steps;
    int32_t n_step;
    char *prompt_text;
    fd_cli_progress progress;
} diff;

static bool is_trace(const char *spec) {
    return strncmp(spec, "trace:", 6) == 0;
}

static fd_code open_trace(diff *d, int side, fd_error *err) {
    FD_TRY(fd_cli_open_trace(d->args->spec[side] + 6, SIZE_MAX, &d->trace[side], err));
    FD_TRY(fd_cli_check_trace_model(&d->model, d->args->model, d->trace[side], err));
    bool mapped = side == 1 || !is_trace(d->args->spec[1]);
    FD_TRY(fd_cli_map_trace(mapped ? d->args->map : NULL, d->model.graph, &d->trace[side], &d->unmatched, err));
    strcpy(d->absent[side], fd_trace_get_info(d->trace[side])->absent);
    fd_cli_allow_absent(&d->allow_missing, d->absent[side]);
    if (fd_trace_n_pos(d->trace[side]) == 0 || !fd_trace_tokens(d->trace[side]))
        return fd_fail(err, FD_ERR_INCOMPLETE, "%s holds no positions", fd_trace_path(d->trace[side]));
    return FD_OK;
}

/* With a trace: its tokens, split into its steps, as far as asked for. A prompt replaces the first ones; where it
 * is not what the trace was fed, the verdict says so. */
static fd_code tokens_of_trace(diff *d, const fd_trace *trace, fd_error *err) {
    int32_t n_pos = fd_trace_n_pos(trace), n_asked = n_pos;
    int32_t *prompt = d->tokens, n_prompt = d->n_token;
    bool same = true;
    for (int32_t i = 0; i < n_prompt && i < n_pos; i++) same &= prompt[i] == fd_trace_tokens(trace)[i];
    if (prompt && d->args->n_generate >= 0 && d->args->n_generate < n_pos - n_prompt)
        n_asked = n_prompt + (d->args->n_generate > 0 ? d->args->n_generate - 1 : 0);
    d->n_generate = 0;
    d->steps = malloc(sizeof *d->steps * (size_t)(fd_trace_n_step(trace) + 1));
    if (!d->steps) return fd_fail(err, FD_ERR_MEMORY, "out of memory");
    if (!same || n_prompt > n_pos) n_asked = n_prompt;
    if (same && n_prompt <= n_pos) {
        int32_t *all = malloc(sizeof *all * (size_t)n_asked);
        if (!all) return fd_fail(err, FD_ERR_MEMORY, "out of memory");
        memcpy(all, fd_trace_tokens(trace), sizeof *all * (size_t)n_asked);
        free(d->tokens);
        d->tokens = all;
        d->n_token = n_asked;
    }
    int32_t at = 0;
    for (int32_t i = 0; i < fd_trace_n_step(trace) && at < n_asked; i++) {
        fd_trace_step step = fd_trace_steps(trace)[i];
        if (step.n_pos > n_asked - step.pos0) step.n_pos = n_asked - step.pos0;
        d->steps[d->n_step++] = step;
        at = step.pos0 + step.n_pos;
    }
    if (at < n_asked) d->steps[d->n_step++] = (fd_trace_step){at, n_asked - at, at ? FD_STEP_DECODE : FD_STEP_PREFILL};
    return FD_OK;
}

static bool prompt_given(const fd_cli_prompt *prompt) {
    return prompt->text || prompt->tokens || prompt->file;
}

static fd_code choose_tokens(diff *d, fd_error *err) {
    const arguments *a = d->args;
    fd_trace *trace = d->trace[0] ? d->trace[0] : d->trace[1];
    d->n_generate = a->n_generate < 0 ? DEFAULT_GENERATE : a->n_generate;
    if (!trace || prompt_given(&a->prompt))
        FD_TRY(fd_cli_prompt_ids(&a->prompt, &d->model, &d->tokens, &d->n_token, &d->prompt_text, err));
    if (trace) FD_TRY(tokens_of_trace(d, trace, err));
    int64_t total = (int64_t)d->n_token + d->n_generate;
    int32_t limit = a->n_ctx ? a->n_ctx : d->model.graph->hparams.n_ctx_train;
    if (total > limit)
        return fd_fail(err, FD_ERR_INPUT, "context: %d tokens and %d more need %lld positions, the limit is %d%s",
                       d->n_token, d->n_generate, (long long)total, limit,
                       a->n_ctx ? "" : " (what the model was trained for; --ctx overrides)");
    if (trace)
        fd_cli_set_context_of(&d->model, trace);
    else
        fd_graph_set_context(d->model.graph, a->n_ctx ? a->n_ctx : (int32_t)total);
    return FD_OK;
}

static fd_code check_outputs(const arguments *a, fd_error *err) {
    const char *inputs[] = {a->model, a->prompt.file, a->map, is_trace(a->spec[0]) ? a->spec[0] + 6 : NULL,
                            is_trace(a->spec[1]) ? a->spec[1] + 6 : NULL};
    return fd_cli_check_reports_not_overwriting(&a->output, inputs, sizeof inputs / sizeof *inputs, err);
}

static fd_code open_sides(diff *d, fd_error *err) {
    const arguments *a = d->args;
    FD_TRY(check_outputs(a, err));
    if (a->map && !is_trace(a->spec[0]) && !is_trace(a->spec[1]))
        return fd_fail(err, FD_ERR_INPUT, "--map %s: neither side is a trace", a->map);
    d->allow_missing = a->allow_missing;
    FD_TRY(fd_cli_model_open(a->model, &d->model, err));
    for (int side = 0; side < 2; side++)
        if (is_trace(a->spec[side])) FD_TRY(open_trace(d, side, err));
    if (d->trace[0] && d->trace[1]) {
        if (!prompt_given(&a->prompt)) return FD_OK;
        return fd_fail(err, FD_ERR_INPUT, "a prompt is given, but both sides are traces: nothing runs");
    }
    FD_TRY(choose_tokens(d, err));
    for (int side = 0; side < 2; side++)
        if (!d->trace[side])
            FD_TRY(fd_cli_exec_open(a->spec[side], d->model.graph, d->n_token + d->n_generate, a->n_thread,
                                    &d->exec[side], err));
    return FD_OK;
}

/* Next: record the candidate up to the divergence. The same command with the other spec records the reference. */
static void suggest_next(const diff *d, fd_verdict *v) {
    const char *spec = d->args->spec[1];
    if (v->status != FD_DIVERGED || v->divergence.kind != FD_DIVERGED_VALUES || is_trace(spec)) return;
    size_t colon = strcspn(spec, ":"), plus = strcspn(spec, "+");
    if (colon > plus) return;
    int32_t n = v->divergence.pos + 1;
    char ids[256] = "…";
    size_t at = 0;
    for (int32_t i = 0; d->tokens && i < n && n <= d->n_token && at < sizeof ids; i++)
        at += (size_t)snprintf(ids + at, sizeof ids - at, "%s%d", i ? "," : "", d->tokens[i]);
    if (at >= sizeof ids) snprintf(ids, sizeof ids, "…");
    char fault[256] = "";
    if (d->exec[1].fault[0]) snprintf(fault, sizeof fault, " --fault %s", d->exec[1].fault);
    snprintf(v->next, sizeof v->next,
             "firstdiff run %s --tokens %s -n 0 --backend %.*s --numerics %.*s%s -o CAND.h5, then firstdiff inspect "
             "CAND.h5 '%s[%d]'",
             d->args->model, ids, (int)colon, spec, (int)(plus - colon - 1), spec + colon + 1, fault,
             v->divergence.node, v->divergence.pos);
}

static fd_code explain_divergence(diff *d, fd_verdict *verdict, fd_error *err) {
    fd_trace_step all = {0, d->n_token, FD_STEP_PREFILL};
    fd_cli_rerun how = {.model = &d->model,
                        .tokens = d->tokens,
                        .n_token = d->n_token,
                        .n_generate = d->n_generate,
                        .allow_missing = d->allow_missing.items,
                        .n_allow_missing = d->allow_missing.n,
                        .class_name = d->args->candidate};
    for (int side = 0; side < 2; side++)
        how.side[side] = (fd_cli_rerun_side){.exec = d->trace[side] ? NULL : &d->exec[side],
                                             .trace = d->trace[side],
                                             .label = d->args->spec[side],
                                             .steps = d->steps ? d->steps : &all,
                                             .n_step = d->steps ? d->n_step : 1};
    return fd_cli_explain_runs(&how, verdict, err);
}

static fd_code run_sides(diff *d, fd_verdict *verdict, fd_error *err) {
    const arguments *a = d->args;
    d->progress = fd_cli_progress_start("position", d->n_token);
    if (d->trace[0] && d->trace[1]) {
        fd_compare_options how = {.allow_missing = d->allow_missing.items,
                                  .n_allow_missing = d->allow_missing.n,
                                  .graph = d->model.graph,
                                  .progress = fd_cli_progress_callback,
                                  .progress_user = &d->progress};
        fd_code compared = fd_compare_traces(d->trace[0], d->trace[1], &how, verdict, err);
        fd_cli_progress_end(&d->progress);
        if (compared == FD_OK && !a->bits_only)
            compared = fd_cli_replay(&d->model, d->trace[0], d->trace[1], a->candidate, false, verdict, err);
        return compared;
    }
    fd_lockstep_options how = {.tokens = d->tokens,
                               .n_token = d->n_token,
                               .steps = d->steps,
                               .n_step = d->n_step,
                               .n_generate = d->n_generate,
                               .allow_missing = d->allow_missing.items,
                               .n_allow_missing = d->allow_missing.n,
                               .progress = fd_cli_progress_callback,
                               .progress_user = &d->progress};
    for (int side = 0; side < 2; side++)
        *(side ? &how.cand : &how.ref) =
            (fd_lockstep_side){d->exec[side].exec, d->trace[side], a->spec[side], d->exec[side].fault};
    fd_code code = fd_lockstep_run(&how, verdict, err);
    fd_cli_progress_end(&d->progress);
    if (code == FD_OK && !a->bits_only) code = explain_divergence(d, verdict, err);
    if (code == FD_OK) suggest_next(d, verdict);
    return code;
}

static void close_sides(diff *d) {
    for (int side = 0; side < 2; side++) {
        fd_cli_exec_close(&d->exec[side]);
        if (d->trace[side]) fd_trace_close(d->trace[side]);
    }
    free(d->tokens);
    free(d->steps);
    free(d->prompt_text);
    fd_cli_model_close(&d->model);
}

int fd_cmd_diff(int argc, char **argv) {
    arguments args = {.spec = {"cpu:exact", "gpu:exact"}, .n_generate = -1};
    fd_cli_keep_freed_memory();
    argp_parse(&fd_cmd_diff_argp, argc, argv, 0, NULL, &args);
    diff d = {.args = &args};
    fd_error err = {0};
    fd_verdict verdict = {0};
    fd_code code = open_sides(&d, &err);
    if (code == FD_OK) code = run_sides(&d, &verdict, &err);
    int status = code == FD_OK ? fd_cli_print_verdict("diff", &verdict, &args.output) : fd_cli_fail("diff", &err);
    fd_verdict_free(&verdict);
    close_sides(&d);
    /* tensors that the map does not name were not compared */
    return status == FD_EXIT_SAME && d.unmatched.n > 0 ? FD_EXIT_INCOMPLETE : status;
}
