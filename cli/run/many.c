#include "cli/run/many.h"

#include <stdlib.h>
#include <string.h>

#include "cli/prompt_list.h"
#include "cli/guard.h"
#include "cli/run/text.h"
#include "exec/generate.h"

typedef struct many many;

/* One prompt's place in the batch. */
typedef struct member {
    many *of;
    bool ended; /* by an end token, which is not printed */
} member;

struct many {
    const fd_run_args *args;
    fd_cli_model model;
    fd_cli_prompts prompts;
    fd_cli_exec exec;
    fd_generation *runs; /* [prompts.n] */
    member *members;     /* likewise */
    int32_t *n_done;     /* likewise */
    int64_t n_heard;
    double seconds;
    fd_cli_progress progress;
};

static fd_code on_token(void *user, int32_t token, fd_error *err) {
    member *m = user;
    (void)err;
    fd_cli_progress_to(&m->of->progress, ++m->of->n_heard);
    const fd_tokenizer *tokenizer = m->of->model.tokenizer;
    m->ended = tokenizer && !m->of->args->ignore_eos && fd_tokenizer_is_end(tokenizer, token);
    return m->ended ? FD_STOP : FD_OK;
}

static fd_code check_args(const fd_run_args *a, fd_error *err) {
    if (a->prompt.text || a->prompt.tokens || a->prompt.file)
        return fd_fail(err, FD_ERR_INPUT, "--prompts-file and another prompt given, expected one of them");
    if (a->trace) return fd_fail(err, FD_ERR_INPUT, "--prompts-file with -o: a trace holds one prompt");
    if (a->n_generate < 1) return fd_fail(err, FD_ERR_INPUT, "--prompts-file with -n 0: nothing to generate");
    return fd_sampler_check(&a->sampler, err);
}

/* The longest of the prompts with what follows it. */
static fd_code room(const many *m, int32_t *n_ctx, fd_error *err) {
    const fd_run_args *a = m->args;
    int32_t limit = a->n_ctx ? a->n_ctx : m->model.graph->hparams.n_ctx_train;
    *n_ctx = 1;
    for (int32_t i = 0; i < m->prompts.n; i++) {
        int64_t total = (int64_t)m->prompts.items[i].n_id + a->n_generate;
        if (total > limit)
            return fd_fail(err, FD_ERR_INPUT,
                           "context: the %d tokens of %s line %d and %d more need %lld positions, the limit is %d%s",
                           m->prompts.items[i].n_id, a->prompts, m->prompts.items[i].line, a->n_generate,
                           (long long)total, limit,
                           a->n_ctx ? "" : " (what the model was trained for; --ctx overrides)");
        if (total > *n_ctx) *n_ctx = (int32_t)total;
    }
    fd_graph_set_context(m->model.graph, a->n_ctx ? a->n_ctx : *n_ctx);
    return FD_OK;
}

static fd_code make_runs(many *m, fd_error *err) {
    size_t n = (size_t)m->prompts.n;
    m->runs = calloc(n, sizeof *m->runs);
    m->members = calloc(n, sizeof *m->members);
    m->n_done = calloc(n, sizeof *m->n_done);
    if (!m->runs || !m->members || !m->n_done) return fd_fail(err, FD_ERR_MEMORY, "out of memory");
    for (int32_t i = 0; i < m->prompts.n; i++) {
        const fd_cli_prompt_line *prompt = &m->prompts.items[i];
        fd_generation *run = &m->runs[i];
        m->members[i].of = m;
        *run = (fd_generation){.n_token = prompt->n_id, .n_new = m->args->n_generate, .on_token = on_token};
        run->user = &m->members[i];
        run->tokens = malloc(sizeof *run->tokens * (size_t)(prompt->n_id + m->args->n_generate));
        if (!run->tokens) return fd_fail(err, FD_ERR_MEMORY, "out of memory");
        memcpy(run->tokens, prompt->ids, sizeof *run->tokens * (size_t)prompt->n_id);
        FD_TRY(fd_sampler_new(&m->args->sampler, m->model.graph->hparams.n_vocab, &run->sampler, err));
    }
    return FD_OK;
}

static fd_code run_all(many *m, fd_error *err) {
    const fd_run_args *a = m->args;
    int32_t n_ctx;
    char spec[256], memory[2048];
    FD_TRY(check_args(a, err));
    FD_TRY(fd_cli_model_open(a->model, &m->model, err));
    FD_TRY(fd_cli_prompts_read(a->prompts, &m->model, &m->prompts, err));
    FD_TRY(room(m, &n_ctx, err));
    FD_TRY(fd_run_spec(a, spec, err));
    fd_cli_exec_memory(spec, m->model.graph, n_ctx, m->prompts.n, memory, sizeof memory);
    if (!a->quiet && memory[0]) fprintf(stderr, "%s memory: %s\n", a->backend, memory);
    FD_TRY(fd_cli_exec_open_many(spec, m->model.graph, n_ctx, m->prompts.n, a->n_thread, &m->exec, err));
    FD_TRY(make_runs(m, err));
    double start = fd_cli_seconds();
    m->progress = fd_cli_progress_start("tokens", (int64_t)m->prompts.n * a->n_generate);
    fd_code code = fd_exec_generate_many(m->exec.exec, m->runs, m->prompts.n, m->n_done, err);
    fd_cli_progress_end(&m->progress);
    m->seconds = fd_cli_seconds() - start;
    return code;
}

static fd_code print_all(const many *m, fd_error *err) {
    for (int32_t i = 0; i < m->prompts.n; i++) {
        const fd_generation *run = &m->runs[i];
        int32_t n = run->n_token + m->n_done[i] - m->members[i].ended;
        fprintf(fd_cli_generated(), "== prompt %d\n", i + 1);
        fd_cli_text text = fd_cli_text_begin(fd_cli_generated(), m->args->ids_only ? NULL : m->model.tokenizer,
                                             m->prompts.items[i].text);
        for (int32_t k = 0; k < n; k++) FD_TRY(fd_cli_text_token(&text, run->tokens[k], err));
        fd_cli_text_end(&text);
    }
    return FD_OK;
}

static void print_summary(const many *m) {
    int64_t n_prompt = 0, n_new = 0;
    for (int32_t i = 0; i < m->prompts.n; i++) {
        n_prompt += m->runs[i].n_token;
        n_new += m->n_done[i];
    }
    fprintf(stderr, "%s on %s: %d prompts, %lld tokens, %lld generated, %.1f tok/s in all\n", m->exec.exec->backend,
            m->exec.exec->device, m->prompts.n, (long long)n_prompt, (long long)n_new, (double)n_new / m->seconds);
}

int fd_run_many(const fd_run_args *args) {
    many m = {.args = args};
    fd_error err = {0};
    fd_code code = run_all(&m, &err);
    if (code == FD_OK && !args->quiet) code = print_all(&m, &err);
    if (code == FD_OK && !args->quiet) print_summary(&m);
    for (int32_t i = 0; m.runs && i < m.prompts.n; i++) {
        fd_sampler_free(m.runs[i].sampler);
        free(m.runs[i].tokens);
    }
    free(m.runs);
    free(m.members);
    free(m.n_done);
    fd_cli_exec_close(&m.exec);
    fd_cli_prompts_free(&m.prompts);
    fd_cli_model_close(&m.model);
    return code == FD_OK ? FD_EXIT_SAME : fd_cli_fail("run", &err);
}
