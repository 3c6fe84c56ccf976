/* firstdiff run: prefill, decode with sampling, and a trace of it. */
#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "cli/explain_runs.h"
#include "cli/first_nan.h"
#include "cli/run_args.h"
#include "dumpers/trace.h"

typedef struct run {
    const fd_run_args *args;
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
    bool undecided;   /* the logits allow no choice: the run ends, its trace is whole */
} run;

static fd_code open_trace(run *r, fd_error *err) {
    const fd_run_args *a = r->args;
    fd_trace_options to = fd_trace_defaults(a->trace);
    if (!a->level || strcmp(a->level, "full") == 0) to.level = FD_TRACE_FULL;
    else if (strcmp(a->level, "stats") == 0) to.level = FD_TRACE_STATS;
    else if (strcmp(a->level, "fingerprint") == 0) to.level = FD_TRACE_FINGERPRINT;
    else return fd_fail(err, FD_ERR_INPUT, "level \"%s\": expected full, stats or fingerprint", a->level);
    int store = a->store ? fd_dtype_parse(a->store) : FD_F32;
    if (store != FD_F32 && store != FD_F16 && store != FD_BF16)
        return fd_fail(err, FD_ERR_INPUT, "store \"%s\": expected f32, f16 or bf16", a->store);
    to.store = (uint32_t)store;
    to.tensors = a->tensors;
    to.compress = a->compress;
    to.weights = a->no_weights ? NULL : r->model.graph;
    FD_TRY(fd_run_range("--layers", a->layers, &to.layer_first, &to.layer_last, err));
    FD_TRY(fd_run_range("--steps", a->steps, &to.step_first, &to.step_last, err));
    fd_trace_info info;
    fd_cli_trace_info(&r->model, &r->exec, &info);
    info.prompt = r->prompt_text;
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
    double start = fd_cli_seconds();
    FD_TRY(step(r, FD_STEP_PREFILL, 0, r->n_prompt, err));
    r->prefill_s = fd_cli_seconds() - start;
    for (int32_t i = 0; i < r->n_prompt; i++) print_token(r, r->tokens[i]);

    fd_cli_progress progress = fd_cli_progress_start("decode", r->args->n_generate);
    bool silent = r->args->quiet; /* streamed text is its own progress */
    start = fd_cli_seconds();
    for (int32_t i = 0; i < r->args->n_generate; i++) {
        int32_t *next = &r->tokens[r->n_token];
        r->undecided = fd_sample(r->sampler, r->logits, r->tokens, r->n_token, next, err) != FD_OK;
        if (r->undecided) return err->code;
        r->n_token++;
        if (r->model.tokenizer && !r->args->ignore_eos && fd_tokenizer_is_end(r->model.tokenizer, *next)) break;
        print_token(r, *next);
        if (i + 1 == r->args->n_generate) break; /* the last token is not fed */
        FD_TRY(step(r, FD_STEP_DECODE, r->n_token - 1, 1, err));
        r->n_decode++;
        if (silent) fd_cli_progress_to(&progress, i + 1);
    }
    fd_cli_progress_end(&progress);
    r->decode_s = fd_cli_seconds() - start;
    if (!r->args->quiet) printf("\n"), fflush(stdout); /* before what summary() says elsewhere */
    return FD_OK;
}

static fd_code prepare(run *r, fd_error *err) {
    const fd_run_args *a = r->args;
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
    FD_TRY(fd_cli_spec(a->backend, a->numerics, a->fault, spec, err));
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

/* The trace of a run that ended for want of a next token is finished too: it is what shows why. */
static fd_code end_trace(run *r, fd_code code, fd_error *err) {
    if (code == FD_OK) return fd_trace_finish(r->trace, err);
    fd_error other = {0};
    if (!r->undecided)
        fd_trace_abandon(r->trace);
    else if (fd_trace_finish(r->trace, &other) == FD_OK)
        fd_cli_add_first_nan(r->args->trace, err);
    return code;
}

int fd_cmd_run(int argc, char **argv) {
    fd_run_args args = fd_run_parse(argc, argv);
    run r = {.args = &args};
    fd_error err = {0};
    fd_code code = prepare(&r, &err);
    if (code == FD_OK) code = generate(&r, &err);
    if (r.trace) code = end_trace(&r, code, &err);
    if (code == FD_OK && !args.quiet) summary(&r);
    free(r.logits);
    free(r.tokens);
    free(r.prompt_text);
    fd_sampler_free(r.sampler);
    fd_cli_exec_close(&r.exec);
    fd_cli_model_close(&r.model);
    return code == FD_OK ? FD_EXIT_SAME : fd_cli_fail("run", &err);
}
