/* firstdiff run: prefill, decode with sampling, and a trace of it. */
#include "cli/cli.h"
#include "cli/ranks.h"
#include "cli/record.h"

#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "cli/run/first_nan.h"
#include "cli/output.h"
#include "cli/run/args.h"
#include "cli/chat.h"
#include "cli/run/many.h"
#include "cli/guard.h"
#include "cli/run/text.h"
#include "dumpers/store/trace.h"
#include "exec/generate.h"

typedef struct run {
    const fd_run_args *args;
    fd_cli_model model;
    fd_cli_exec exec;
    fd_sampler *sampler;
    fd_trace_writer *trace;
    char *prompt_text;
    char *rendered;  /* --chat: the prompt in the form of the template */
    int32_t *tokens; /* prompt and generated */
    int32_t n_prompt, n_token;
    float *logits; /* [n_vocab] */
    double started, prefill_s, decode_s;
    int32_t n_decode; /* decode steps run */
    fd_cli_text text;
    fd_cli_progress prompt, progress;
    bool undecided; /* the logits allow no choice: the run ends, its trace is whole */
} run;

/* A misspelt name would make an empty trace. */
static fd_code check_filters(const fd_trace_options *to, const fd_graph *graph, const fd_run_args *a, fd_error *err) {
    if (a->layers && to->layer_first >= graph->hparams.n_layer)
        return fd_fail(err, FD_ERR_INPUT, "--layers %s: the model has layers 0 to %d", a->layers,
                       graph->hparams.n_layer - 1);
    for (int32_t i = 0; i < graph->n_node; i++)
        if (fd_trace_selects(to, &graph->nodes[i])) return FD_OK;
    return fd_fail(err, FD_ERR_INPUT,
                   "%s%s%s%s: no tensor of the model has such a name; `firstdiff model --graph` lists the names",
                   a->tensors ? "--tensors " : "", a->tensors ? a->tensors : "", a->layers ? " --layers " : "",
                   a->layers ? a->layers : "");
}

static fd_code open_trace(run *r, fd_error *err) {
    const fd_run_args *a = r->args;
    fd_trace_options to = fd_trace_defaults(a->trace);
    if (!a->level || strcmp(a->level, "full") == 0)
        to.level = FD_TRACE_FULL;
    else if (strcmp(a->level, "stats") == 0)
        to.level = FD_TRACE_STATS;
    else if (strcmp(a->level, "fingerprint") == 0)
        to.level = FD_TRACE_FINGERPRINT;
    else
        return fd_fail(err, FD_ERR_INPUT, "level \"%s\": expected full, stats or fingerprint", a->level);
    int store = a->store ? fd_dtype_parse(a->store) : FD_F32;
    if (store != FD_F32 && store != FD_F16 && store != FD_BF16)
        return fd_fail(err, FD_ERR_INPUT, "store \"%s\": expected f32, f16 or bf16", a->store);
    to.store = (uint32_t)store;
    to.tensors = a->tensors;
    to.compress = a->compress;
    to.weights = a->no_weights ? NULL : r->model.graph;
    FD_TRY(fd_run_range("--layers", a->layers, &to.layer_first, &to.layer_last, err));
    FD_TRY(fd_run_range("--steps", a->steps, &to.step_first, &to.step_last, err));
    FD_TRY(check_filters(&to, r->exec.exec->graph, a, err));
    fd_trace_info info;
    fd_cli_trace_info(&r->model, &r->exec, &info);
    info.prompt = r->prompt_text;
    FD_TRY(fd_trace_create(&to, &info, r->exec.exec->graph, r->exec.exec->numerics, &r->trace, err));
    fd_exec_set_observer(r->exec.exec, fd_trace_run_observer(r->trace));
    return FD_OK;
}

static fd_code forward_step(run *r, int32_t pos0, int32_t n, fd_error *err) {
    fd_batch batch = {.tokens = r->tokens + pos0, .n_tok = n, .pos0 = pos0, .logits = r->logits};
    return fd_exec_forward(r->exec.exec, &batch, err);
}

/* The prompt is in the cache and the first token is known. */
static fd_code begin_text(run *r, fd_error *err) {
    fd_cli_progress_end(&r->prompt);
    r->prefill_s = fd_cli_seconds() - r->started;
    r->started = fd_cli_seconds();
    for (int32_t i = 0; i < r->n_prompt && !r->args->quiet; i++) FD_TRY(fd_cli_text_token(&r->text, r->tokens[i], err));
    return FD_OK;
}

static bool ends(const run *r, int32_t token) {
    return r->model.tokenizer && !r->args->ignore_eos && fd_tokenizer_is_end(r->model.tokenizer, token);
}

static fd_code on_token(void *user, int32_t token, fd_error *err) {
    run *r = user;
    if (r->n_token == r->n_prompt) FD_TRY(begin_text(r, err));
    r->n_token++;
    if (ends(r, token)) return FD_STOP;
    if (!r->args->quiet) return fd_cli_text_token(&r->text, token, err);
    fd_cli_progress_to(&r->progress, r->n_token - r->n_prompt); /* text is its own progress */
    return FD_OK;
}

/* A trace records each step; the token sampled last is not fed. */
static fd_code generate_traced(run *r, fd_error *err) {
    FD_TRY(forward_step(r, 0, r->n_prompt, err));
    if (r->args->n_generate == 0) return begin_text(r, err);
    for (int32_t i = 0; i < r->args->n_generate; i++) {
        int32_t *next = &r->tokens[r->n_token];
        if (i > 0) FD_TRY(forward_step(r, r->n_token - 1, 1, err));
        r->undecided = fd_sample(r->sampler, r->logits, r->tokens, r->n_token, next, err) != FD_OK;
        if (r->undecided) return err->code;
        fd_code code = on_token(r, *next, err);
        if (code == FD_STOP) return FD_OK;
        FD_TRY(code);
    }
    return FD_OK;
}

static fd_code generate_text(run *r, fd_error *err) {
    fd_generation generation = {.tokens = r->tokens,
                                .n_token = r->n_prompt,
                                .n_new = r->args->n_generate,
                                .sampler = r->sampler,
                                .on_token = on_token,
                                .user = r};
    int32_t n_done;
    r->text = fd_cli_text_begin(fd_cli_generated(), r->args->ids_only ? NULL : r->model.tokenizer, r->prompt_text);
    r->prompt = fd_cli_progress_start("prompt", r->n_prompt);
    fd_exec_set_progress(r->exec.exec, fd_cli_progress_callback, &r->prompt);
    r->progress = fd_cli_progress_start("decode", r->args->n_generate);
    r->started = fd_cli_seconds();
    if (r->args->trace || r->args->n_generate == 0)
        FD_TRY(generate_traced(r, err));
    else
        FD_TRY(fd_exec_generate(r->exec.exec, &generation, &n_done, err));
    fd_cli_progress_end(&r->progress);
    FD_TRY(fd_exec_flush(r->exec.exec, err)); /* the last step's tensors */
    r->decode_s = fd_cli_seconds() - r->started;
    if (r->n_token > r->n_prompt) r->n_decode = r->n_token - r->n_prompt - 1;
    if (!r->args->quiet) fd_cli_text_end(&r->text); /* before the summary on stderr */
    return FD_OK;
}

static fd_code render_chat(run *r, bool *whole, fd_error *err) {
    char *said;
    size_t size;
    FD_TRY(fd_cli_prompt_text(&r->args->prompt, &said, &size, err));
    fd_code code = fd_cli_chat(&r->model, r->args->system, said, &r->rendered, whole, err);
    free(said);
    return code;
}

static fd_code look_away(void *user, const fd_observation *observation, fd_error *err) {
    (void)user, (void)observation, (void)err;
    return FD_OK;
}

static unsigned want_nothing(void *user, const fd_node *node) {
    (void)user, (void)node;
    return 0;
}

static fd_code prepare_run(run *r, fd_error *err) {
    const fd_run_args *a = r->args;
    const char *inputs[] = {a->model, a->prompt.file};
    FD_TRY(fd_cli_check_not_overwriting(a->trace, inputs, sizeof inputs / sizeof *inputs, err));
    FD_TRY(fd_sampler_check(&a->sampler, err));
    FD_TRY(fd_cli_model_open(a->model, &r->model, err));
    int32_t *ids;
    fd_cli_prompt prompt = a->prompt;
    if (a->chat) {
        FD_TRY(render_chat(r, &prompt.whole, err));
        prompt.text = r->rendered;
        prompt.file = NULL;
    }
    FD_TRY(fd_cli_prompt_ids(&prompt, &r->model, &ids, &r->n_prompt, &r->prompt_text, err));
    int64_t total = (int64_t)r->n_prompt + a->n_generate;
    int32_t limit = a->n_ctx ? a->n_ctx : r->model.graph->hparams.n_ctx_train;
    r->tokens = total < (1 << 28) ? realloc(ids, sizeof *ids * (size_t)total) : NULL;
    if (!r->tokens) {
        free(ids);
        return fd_fail(err, FD_ERR_INPUT, "%lld positions are too many", (long long)total);
    }
    r->n_token = r->n_prompt;
    if (total > limit)
        return fd_fail(err, FD_ERR_INPUT,
                       "context: the prompt's %d tokens and %d more need %lld positions, the limit is %d%s",
                       r->n_prompt, a->n_generate, (long long)total, limit,
                       a->n_ctx ? "" : " (what the model was trained for; --ctx overrides)");
    fd_graph_set_context(r->model.graph, a->n_ctx ? a->n_ctx : (int32_t)total);
    char spec[256];
    FD_TRY(fd_run_spec(a, spec, err));
    char memory[2048];
    fd_cli_exec_memory(spec, r->model.graph, (int32_t)total, 1, memory, sizeof memory);
    if (!a->quiet && memory[0]) fprintf(stderr, "%s memory: %s\n", a->backend, memory);
    FD_TRY(fd_cli_exec_open(spec, r->model.graph, (int32_t)total, a->n_thread, &r->exec, err));
    FD_TRY(fd_sampler_new(&a->sampler, r->model.graph->hparams.n_vocab, &r->sampler, err));
    r->logits = malloc(sizeof *r->logits * (size_t)r->model.graph->hparams.n_vocab);
    if (!r->logits) return fd_fail(err, FD_ERR_MEMORY, "out of memory");
    if (a->trace && fd_cli_rank() > 0) /* rank 0 has every tensor and writes; the others take the same steps */
        fd_exec_set_observer(r->exec.exec, (fd_observer){.observe = look_away, .wants = want_nothing});
    else if (a->trace)
        FD_TRY(open_trace(r, err));
    return FD_OK;
}

static void print_summary(const run *r) {
    fprintf(stderr, "%s on %s: prefill %d tokens %.1f tok/s", r->exec.exec->backend, r->exec.exec->device, r->n_prompt,
            r->n_prompt / r->prefill_s);
    if (r->n_decode > 0) fprintf(stderr, ", decode %d tokens %.1f tok/s", r->n_decode, r->n_decode / r->decode_s);
    fprintf(stderr, "%s%s\n", r->args->trace ? ", trace " : "", r->args->trace ? r->args->trace : "");
}

/* A run that could not choose a next token has its trace finished too: the trace shows why. */
static fd_code end_trace(run *r, fd_code code, fd_error *err) {
    if (code == FD_OK) return fd_trace_finish(r->trace, err);
    fd_error other = {0};
    if (!r->undecided || fd_exec_flush(r->exec.exec, &other) != FD_OK)
        fd_trace_abandon(r->trace);
    else if (fd_trace_finish(r->trace, &other) == FD_OK)
        fd_cli_add_first_nan(r->args->trace, err);
    return code;
}

int fd_cmd_run(int argc, char **argv) {
    fd_run_args args = fd_run_parse(argc, argv);
    if (fd_cli_rank() > 0) args.quiet = true;
    if (args.prompts) return fd_run_many(&args);
    run r = {.args = &args};
    fd_error err = {0};
    fd_code code = prepare_run(&r, &err);
    if (code == FD_OK) code = generate_text(&r, &err);
    if (r.trace) code = end_trace(&r, code, &err);
    if (code == FD_OK && !args.quiet) print_summary(&r);
    free(r.logits);
    free(r.tokens);
    free(r.prompt_text);
    free(r.rendered);
    fd_sampler_free(r.sampler);
    fd_cli_exec_close(&r.exec);
    fd_cli_model_close(&r.model);
    return code == FD_OK ? FD_EXIT_SAME : fd_cli_fail("run", &err);
}
