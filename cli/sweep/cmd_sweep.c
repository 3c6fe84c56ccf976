/* firstdiff sweep: the same tokens split in different configurations must give the same bits. */
#include "cli/arguments.h"
#include "cli/sweep/sweep.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "cli/compare/explain_runs.h"
#include "cli/output.h"
#include "cli/record.h"
#include "dumpers/store/golden.h"
#include "exec/sampler.h"

enum { KEY_BACKEND = 256, KEY_NUMERICS, KEY_FAULT, KEY_JSON };

static const struct argp_option options[] = {
    {0, 'n', "N", 0, "Tokens to generate greedily after the prompt, before the sweep (default 8; the last is not fed)",
     2},
    {"backend", KEY_BACKEND, "cpu|gpu", 0, "Where to run (default cpu); gpu is also compared with the CPU", 2},
    {"numerics", KEY_NUMERICS, "exact|q8act|fast|f64|emulate-CLASS", 0, "Default exact", 2},
    {"fault", KEY_FAULT, "NAME[@LAYER]", 0,
     "Inject a fault into the swept runs, not into the baseline, to see the check fail; several joined by +", 2},
    {"json", KEY_JSON, 0, 0, "The result as JSON", 3},
    {0},
};

static error_t parse_sweep_option(int key, char *arg, struct argp_state *state) {
    fd_sweep_args *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &a->prompt; return 0;
    case 'n': a->n_generate = fd_cli_integer(arg, 0, state); return 0;
    case KEY_BACKEND: a->backend = arg; return 0;
    case KEY_NUMERICS: a->numerics = arg; return 0;
    case KEY_FAULT: a->fault = arg; return 0;
    case KEY_JSON: a->json = true; return 0;
    default: return fd_cli_one_model(key, arg, state, &a->model);
    }
}

static const struct argp_child children[] = {{&fd_cli_prompt_argp, 0, NULL, 0}, {0}};
const struct argp fd_cmd_sweep_argp = {
    options,
    parse_sweep_option,
    "MODEL.gguf",
    "Runs the same tokens split into forward calls in different configurations and compares every tensor at every "
    "position with "
    "one batch of them all: batches of 1, 2, 8, 9 and 32, prefill then decode, the same twice, 1 to 3 threads, without "
    "an observer.\v"
    "Fingerprints are compared, without any tolerance. An engine whose numerics are not exact may sum batches in other "
    "orders than single tokens (emulate-llama-cuda does): its lines are then DIVERGED. The first line that diverges is "
    "recorded again and replayed, and its verdict printed: noise, or a bug and its name.\n\n"
    "Exit status: 0 identical in every bit, 1 diverged, 2 unusable input, 3 incomplete.",
    children,
    NULL,
    NULL};

static fd_sweep_configuration *add_split(fd_sweep *s, int32_t first, int32_t batch) {
    assert(s->n_configuration < FD_SWEEP_MAX_CONFIGURATIONS);
    fd_sweep_configuration *c = &s->configurations[s->n_configuration++];
    c->split = (fd_sweep_split){.first = first, .batch = batch};
    return c;
}

/* Sizes: 1 is decode's path; 2 the smallest batch; 8 and 9 lie on both sides of a row tile, 32 fills several. */
static void list_configurations(fd_sweep *s) {
    static const int32_t sizes[] = {1, 2, 8, 9, 32};
    int32_t n = s->n_pos, prefill = s->n_prompt < n ? s->n_prompt : n / 2; /* all of it given: half is decoded */
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i] < n) snprintf(add_split(s, sizes[i], sizes[i])->name, 64, "batches of %d", sizes[i]);
    snprintf(add_split(s, n, 1)->name, 64, "one batch of %d", n);
    snprintf(add_split(s, n, 1)->name, 64, "the same again");
    snprintf(add_split(s, prefill, 1)->name, 64, "prefill %d, decode %d", prefill, n - prefill);
    fd_sweep_configuration *c = add_split(s, prefill, 1);
    c->split.unobserved = true;
    snprintf(c->name, sizeof c->name, "prefill %d, decode %d, no observer", prefill, n - prefill);
    c = add_split(s, n, 1);
    c->split.unobserved = c->split.all_logits = true;
    snprintf(c->name, sizeof c->name, "one batch of %d, no observer", n);
    bool gpu = strcmp(s->args->backend, "gpu") == 0;
    for (int32_t threads = gpu ? 0 : 1; threads <= (gpu ? 0 : 3); threads++) {
        c = add_split(s, prefill, 1);
        c->n_thread = threads;
        c->on_cpu = gpu;
        snprintf(c->name, sizeof c->name,
                 gpu ? "cpu exact, prefill %d, decode %d" : "prefill %d, decode %d, %d thread%s", prefill, n - prefill,
                 threads, threads == 1 ? "" : "s");
    }
}

/* The prompt and what a clean executor says after it, greedily: the tokens of every run. */
static fd_code generate_tokens(fd_sweep *s, fd_exec *exec, fd_error *err) {
    int32_t n_vocab = s->model.graph->hparams.n_vocab;
    fd_sampler_options greedy = fd_sampler_defaults();
    fd_sampler *sampler;
    FD_TRY(fd_sampler_new(&greedy, n_vocab, &sampler, err));
    float *logits = malloc(sizeof *logits * (size_t)n_vocab);
    fd_code code = logits ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "out of memory");
    for (int32_t pos = 0; code == FD_OK && pos < s->n_pos && s->n_pos > s->n_prompt;) {
        int32_t n = pos == 0 ? s->n_prompt : 1;
        fd_batch batch = {.tokens = s->tokens + pos, .n_tok = n, .pos0 = pos, .logits = logits};
        code = fd_exec_forward(exec, &batch, err);
        pos += n;
        if (code == FD_OK && pos < s->n_pos) code = fd_sample(sampler, logits, s->tokens, pos, &s->tokens[pos], err);
    }
    free(logits);
    fd_sampler_free(sampler);
    return code;
}

static fd_code choose_tokens(fd_sweep *s, fd_error *err) {
    int32_t *ids;
    char *text;
    FD_TRY(fd_cli_prompt_ids(&s->args->prompt, &s->model, &ids, &s->n_prompt, &text, err));
    free(text);
    s->tokens = ids;
    int64_t n_pos = (int64_t)s->n_prompt + (s->args->n_generate > 0 ? s->args->n_generate - 1 : 0);
    if (n_pos > s->model.graph->hparams.n_ctx_train)
        return fd_fail(err, FD_ERR_INPUT, "context: %lld positions, the model was trained for %d", (long long)n_pos,
                       s->model.graph->hparams.n_ctx_train);
    if (n_pos < 2) return fd_fail(err, FD_ERR_INCOMPLETE, "1 position cannot be split, expected at least 2");
    int32_t *grown = realloc(ids, sizeof *ids * (size_t)n_pos);
    if (!grown) return fd_fail(err, FD_ERR_MEMORY, "out of memory");
    s->tokens = grown;
    s->n_pos = (int32_t)n_pos;
    fd_graph_set_context(s->model.graph, s->n_pos);
    return FD_OK;
}

static fd_cli_exec_choice baseline_choice(const fd_sweep *s) {
    return (fd_cli_exec_choice){.backend = s->args->backend, .numerics = s->args->numerics, .n_ctx = s->n_pos};
}

/* One batch of all tokens. */
static fd_code record_baseline(fd_sweep *s, const fd_cli_exec *exec, fd_error *err) {
    fd_recording run = {.tokens = s->tokens, .n_token = s->n_pos, .n_pos = s->n_pos};
    return fd_cli_record_temporary(&s->model, exec, fd_golden_options(NULL, s->n_pos), &run, &s->baseline, err);
}

static fd_code run_baseline(fd_sweep *s, fd_error *err) {
    fd_cli_exec exec;
    FD_TRY(fd_cli_exec_choose(baseline_choice(s), s->model.graph, &exec, err));
    fd_code code = generate_tokens(s, exec.exec, err);
    if (code == FD_OK) code = record_baseline(s, &exec, err);
    fd_cli_exec_close(&exec);
    return code;
}

/* Records the configuration and the baseline's executor in full and replays both: which op, and which bug. What differs
 * only without an observer cannot be recorded. */
static fd_code explain_configuration(fd_sweep *s, const fd_sweep_configuration *c, const fd_cli_exec *exec,
                                     fd_error *err) {
    fd_cli_exec baseline = {0};
    int32_t n_step;
    fd_trace_step all = {0, s->n_pos, FD_STEP_PREFILL}, *steps = fd_sweep_steps(&c->split, s->n_pos, &n_step);
    fd_verdict v = {.divergence = {.kind = FD_DIVERGED_VALUES, .step = c->result.step}};
    v.ref.contract = v.cand.contract = -1; /* every step is recorded: the two are cut differently */
    fd_code code = steps ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "%d positions: out of memory", s->n_pos);
    if (code == FD_OK) code = fd_cli_exec_choose(baseline_choice(s), s->model.graph, &baseline, err);
    if (code == FD_OK) {
        fd_cli_rerun how = {.model = &s->model, .tokens = s->tokens, .n_token = s->n_pos};
        how.side[0] = (fd_cli_rerun_side){.exec = &baseline, .label = "baseline", .steps = &all, .n_step = 1};
        how.side[1] = (fd_cli_rerun_side){.exec = exec, .label = c->name, .steps = steps, .n_step = n_step};
        code = fd_cli_explain_runs(&how, &v, err);
    }
    fd_cli_exec_close(&baseline);
    free(steps);
    s->explained = c;
    s->verdict = v;
    return code;
}

static bool same_executor(const fd_sweep_configuration *a, const fd_sweep_configuration *b) {
    return a->on_cpu == b->on_cpu && a->n_thread == b->n_thread;
}

static fd_code run_configurations(fd_sweep *s, fd_error *err) {
    const fd_sweep_args *a = s->args;
    fd_cli_exec exec = {0};
    fd_cli_progress progress = fd_cli_progress_start("run", s->n_configuration);
    fd_code code = FD_OK;
    for (int32_t i = 0; i < s->n_configuration && code == FD_OK; i++) {
        fd_sweep_configuration *c = &s->configurations[i];
        if (i == 0 || !same_executor(c, c - 1)) {
            fd_cli_exec_choice choice = {c->on_cpu ? "cpu" : a->backend, a->numerics, a->fault, s->n_pos, c->n_thread};
            fd_cli_exec_close(&exec);
            code = fd_cli_exec_choose(choice, s->model.graph, &exec, err);
            if (code != FD_OK) break;
        }
        code = fd_sweep_run(exec.exec, s->baseline, &c->split, &c->result, err);
        if (code != FD_OK) fd_error_prefix(err, "%s", c->name);
        s->n_diverged += c->result.diverged;
        if (code == FD_OK && c->result.diverged && !c->split.unobserved && !s->explained)
            code = explain_configuration(s, c, &exec, err);
        s->seconds += c->result.seconds;
        fd_cli_progress_to(&progress, i + 1);
    }
    fd_cli_progress_end(&progress);
    fd_cli_exec_close(&exec);
    return code;
}

int fd_cmd_sweep(int argc, char **argv) {
    fd_sweep_args args = {.backend = "cpu", .numerics = "exact", .n_generate = 8};
    argp_parse(&fd_cmd_sweep_argp, argc, argv, 0, NULL, &args);
    fd_sweep s = {.args = &args};
    fd_error err = {0};
    fd_code code = fd_cli_model_open(args.model, &s.model, &err);
    if (code == FD_OK) code = choose_tokens(&s, &err);
    if (code == FD_OK) code = run_baseline(&s, &err);
    if (code == FD_OK) {
        list_configurations(&s);
        code = run_configurations(&s, &err);
    }
    if (code == FD_OK && args.json) code = fd_sweep_print_json(&s, &err);
    if (code == FD_OK && !args.json) fd_sweep_print_text(&s);
    int32_t n_diverged = s.n_diverged;
    fd_verdict_free(&s.verdict);
    fd_trace_close(s.baseline);
    free(s.tokens);
    fd_cli_model_close(&s.model);
    if (code != FD_OK) return fd_cli_fail("sweep", &err);
    return n_diverged ? FD_EXIT_DIVERGED : FD_EXIT_SAME;
}
