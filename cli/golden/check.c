/* firstdiff golden check: runs the recorded prompts again, or takes another engine's run of one, and reports, as text,
 * JSON or JUnit. */
#include <stdlib.h>
#include <string.h>

#include "cli/check/candidate.h"
#include "cli/github.h"
#include "cli/golden/golden.h"
#include "compare/diff/golden.h"
#include "compare/diff/golden_near.h"
#include "compare/report/report.h"

typedef struct check {
    const fd_golden_args *args;
    const fd_cli_model *model;
    fd_golden *golden;
    fd_golden_size size;
    fd_trace_info head; /* of the first prompt; `prompt` is not kept */
    bool near;
    const char *numerics; /* near: that the limit is for */
    fd_cli_exec exec;
    fd_golden_outcome *prompts; /* [n_outcome] */
    int32_t n_outcome;          /* all of the golden's, or the one of another engine's run */
    int32_t n_failed;
    fd_golden_totals totals;
} check;

static fd_code open_prompt(const check *c, int32_t prompt, fd_trace **out, fd_error *err) {
    FD_TRY(fd_golden_prompt(c->golden, prompt, out, err));
    if (fd_golden_usable(*out, c->model->graph, fd_cli_model_hash(c->model), err) == FD_OK) return FD_OK;
    fd_trace_close(*out);
    *out = NULL;
    return fd_error_prefix(err, "%s", c->args->file);
}

static void name_prompt(const fd_trace *golden, int32_t prompt, char *to, size_t size) {
    const char *text = fd_trace_get_info(golden)->prompt;
    if (text)
        snprintf(to, size, "prompt %d: %.60s", prompt + 1, text);
    else
        snprintf(to, size, "prompt %d: %d tokens", prompt + 1, fd_trace_steps(golden)[0].n_pos);
    for (char *p = to; *p; p++)
        if ((unsigned char)*p < 0x20) *p = ' '; /* a line */
}

static fd_golden_limit limit_of(const check *c) {
    const fd_golden_tolerances *measured = fd_golden_measured(c->golden);
    fd_golden_limit limit = {.nmse = c->args->limit, .given = c->args->limit >= 0, .n_run = measured->n_run};
    if (limit.given) return limit;
    limit.nmse = fd_golden_measured_limit(measured, c->numerics, limit.class_);
    if (limit.nmse >= 0 || limit.nmse != limit.nmse) return limit; /* a NaN is near nothing */
    limit.class_[0] = '\0';
    limit.nmse = fd_golden_near_limit(c->numerics);
    return limit;
}

static fd_code check_prompt(check *c, int32_t prompt, fd_error *err) {
    fd_golden_outcome *out = &c->prompts[prompt];
    fd_trace *golden;
    FD_TRY(open_prompt(c, prompt, &golden, err));
    name_prompt(golden, prompt, out->name, sizeof out->name);
    fd_golden_limit limit = limit_of(c);
    fd_code code = c->near ? fd_golden_check_logits(c->exec.exec, golden, prompt, &limit, out, &c->totals, err)
                           : fd_golden_check_exact(c->exec.exec, golden, prompt, out, &c->totals, err);
    fd_trace_close(golden);
    c->n_failed += out->failed;
    return code;
}

static fd_code check_prompts(check *c, fd_error *err) {
    fd_cli_progress progress = fd_cli_progress_start("prompt", c->size.n_prompt);
    fd_code code = FD_OK;
    for (int32_t i = 0; i < c->size.n_prompt && code == FD_OK; i++) {
        code = check_prompt(c, i, err);
        fd_cli_progress_to(&progress, i + 1);
    }
    fd_cli_progress_end(&progress);
    return code;
}

/* ---- another engine's run ---- */

/* The tokens that a run and a prompt begin with alike. */
static int32_t n_common(const fd_trace *run, const fd_trace *golden) {
    int32_t n = fd_trace_n_pos(run) < fd_trace_n_pos(golden) ? fd_trace_n_pos(run) : fd_trace_n_pos(golden), i = 0;
    while (i < n && fd_trace_tokens(run)[i] == fd_trace_tokens(golden)[i]) i++;
    return i;
}

/* The prompt that the run is of, from 0: it has all of its tokens, and of such the most. */
static fd_code find_prompt(const check *c, const fd_trace *run, int32_t *prompt, fd_error *err) {
    int32_t best = 0;
    *prompt = -1;
    if (!fd_trace_tokens(run)) return fd_fail(err, FD_ERR_INPUT, "%s: it holds no tokens", fd_trace_path(run));
    for (int32_t i = 0; i < c->size.n_prompt; i++) {
        fd_trace *golden;
        FD_TRY(open_prompt(c, i, &golden, err));
        int32_t n = n_common(run, golden), n_prompt = fd_trace_steps(golden)[0].n_pos;
        if (n > best && n >= n_prompt) {
            best = n;
            *prompt = i;
        }
        fd_trace_close(golden);
    }
    if (*prompt >= 0) return FD_OK;
    return fd_fail(err, FD_ERR_INPUT,
                   "%s: its tokens begin with none of the golden's %d prompts (firstdiff inspect %s)",
                   fd_trace_path(run), c->size.n_prompt, c->args->file);
}

static fd_code check_opened_run(check *c, const fd_trace *run, fd_error *err) {
    fd_golden_outcome *out = &c->prompts[0];
    const char *says = fd_trace_get_info(run)->numerics;
    fd_trace *golden;
    int32_t prompt;
    c->numerics = c->args->numerics ? c->args->numerics : says;
    if (!c->numerics[0] && c->args->limit < 0)
        return fd_fail(err, FD_ERR_INPUT,
                       "%s does not say where the engine rounds: --numerics f32, f16, bf16, q8, … or --tolerance NMSE",
                       c->args->run);
    FD_TRY(find_prompt(c, run, &prompt, err));
    FD_TRY(open_prompt(c, prompt, &golden, err));
    name_prompt(golden, prompt, out->name, sizeof out->name);
    fd_golden_limit limit = limit_of(c);
    fd_code code = fd_golden_check_run(run, golden, prompt, &limit, out, &c->totals, err);
    fd_trace_close(golden);
    c->n_failed += out->failed;
    return code;
}

static fd_code check_run(check *c, fd_error *err) {
    const fd_golden_args *a = c->args;
    fd_check_input input = {.model_path = a->model, .path = a->run, .map = a->map};
    fd_check_reference reference = {.model = c->model, .backend = a->backend, .n_thread = a->n_thread};
    fd_candidate candidate = {0};
    fd_trace *unused = NULL;
    fd_code code = fd_candidate_open(&input, &reference, &candidate, &unused, err);
    if (code == FD_OK) code = check_opened_run(c, candidate.trace, err);
    fd_trace_close(candidate.trace);
    fd_trace_close(unused);
    return code;
}

/* ---- reports ---- */

static fd_code print_json(check *c, fd_error *err) {
    json_t *list = json_array();
    for (int32_t i = 0; i < c->n_outcome; i++) {
        json_array_append_new(list, c->prompts[i].json);
        c->prompts[i].json = NULL;
    }
    if (c->near)
        return fd_cli_print_json(json_pack("{s:s, s:s, s:s, s:f, s:i, s:o}", "schema", "firstdiff-golden-near 1",
                                           "status", c->n_failed ? "diverged" : "near", "numerics",
                                           c->args->numerics ? c->args->numerics : c->numerics, "limit",
                                           c->totals.limit.nmse, "failed", c->n_failed, "prompts", list),
                                 err);
    return fd_cli_print_json(json_pack("{s:s, s:s, s:s, s:i, s:i, s:o}", "schema", "firstdiff-golden-check 1", "status",
                                       c->n_failed ? "diverged" : "identical", "model_hash", c->head.model_hash,
                                       "contract", c->head.contract, "failed", c->n_failed, "prompts", list),
                             err);
}

static void print_passed(const check *c) {
    const fd_golden_totals *t = &c->totals;
    const char *plural = c->n_outcome == 1 ? "" : "s";
    char limit[96];
    if (c->near)
        printf("NEAR        %d prompt%s, %lld positions: logits within NMSE %.3g (limit %.3g: %s), %lld greedy token%s "
               "differ%s\n",
               c->n_outcome, plural, (long long)t->n_pos, t->worst, t->limit.nmse,
               fd_golden_limit_text(&t->limit, limit), (long long)t->n_flip, t->n_flip == 1 ? "" : "s",
               t->n_flip == 1 ? "s" : "");
    else
        printf("IDENTICAL   %d prompt%s, %lld positions, %lld tensors, every bit\n", c->n_outcome, plural,
               (long long)t->n_pos, (long long)t->n_same);
}

static void print_text(const check *c) {
    for (int32_t i = 0; i < c->n_outcome; i++)
        if (c->prompts[i].failed) printf("DIVERGED    %s\n            %s\n", c->prompts[i].name, c->prompts[i].message);
    if (c->n_failed)
        printf("%d of %d prompts diverged\n", c->n_failed, c->n_outcome);
    else
        print_passed(c);
}

static fd_code write_junit(const check *c, const char *path, fd_error *err) {
    fd_junit_case *cases = calloc((size_t)c->n_outcome, sizeof *cases);
    FILE *file;
    if (!cases) return fd_fail(err, FD_ERR_MEMORY, "out of memory");
    for (int32_t i = 0; i < c->n_outcome; i++) {
        const fd_golden_outcome *prompt = &c->prompts[i];
        snprintf(cases[i].name, sizeof cases[i].name, "%s", prompt->name);
        if (!prompt->failed) continue;
        cases[i].result = FD_JUNIT_FAILED;
        snprintf(cases[i].message, sizeof cases[i].message, "%s", prompt->message);
    }
    fd_code code = fd_cli_output_open(path, &file, err);
    if (code == FD_OK) {
        fd_junit_write(file, "firstdiff golden", cases, c->n_outcome);
        code = fd_cli_output_close(file, path, err);
    }
    free(cases);
    return code;
}

static void tell_github(const check *c) {
    char *text = NULL, title[64];
    size_t size;
    FILE *to = open_memstream(&text, &size);
    if (!to) return;
    for (int32_t i = 0; i < c->n_outcome; i++) {
        const fd_golden_outcome *prompt = &c->prompts[i];
        if (prompt->failed) fd_cli_github_annotate(true, prompt->name, prompt->message);
        fprintf(to, "%s  %s%s%s\n", prompt->failed ? "DIVERGED " : "as before", prompt->name,
                prompt->failed ? "\n           " : "", prompt->failed ? prompt->message : "");
    }
    snprintf(title, sizeof title, "Golden: %d of %d prompts diverged", c->n_failed, c->n_outcome);
    if (fclose(to) == 0) fd_cli_github_summarise(title, text);
    free(text);
}

/* ---- all of it ---- */

static fd_code read_head(check *c, fd_error *err) {
    fd_trace *first;
    FD_TRY(fd_golden_open(c->args->file, &c->golden, &c->size, err));
    FD_TRY(open_prompt(c, 0, &first, err));
    c->head = *fd_trace_get_info(first);
    c->head.prompt = NULL;
    fd_trace_close(first);
    return FD_OK;
}

static fd_code run_check(check *c, fd_error *err) {
    const fd_golden_args *a = c->args;
    const char *inputs[] = {a->model, a->file, a->run, a->map};
    FD_TRY(fd_cli_check_not_overwriting(a->report.junit, inputs, sizeof inputs / sizeof *inputs, err));
    FD_TRY(read_head(c, err));
    const char *numerics = a->numerics ? a->numerics : c->head.numerics;
    c->near = a->run || strcmp(numerics, c->head.numerics) != 0;
    c->n_outcome = a->run ? 1 : c->size.n_prompt;
    c->prompts = calloc((size_t)c->n_outcome, sizeof *c->prompts);
    if (!c->prompts) return fd_fail(err, FD_ERR_MEMORY, "out of memory");
    if (a->run) return check_run(c, err);
    fd_graph_set_context(c->model->graph, c->size.n_pos);
    fd_cli_exec_choice choice = {a->backend, numerics, a->fault, c->size.n_pos, a->n_thread};
    FD_TRY(fd_cli_exec_choose(choice, c->model->graph, &c->exec, err));
    c->numerics = fd_exec_numerics_name(c->exec.exec);
    return check_prompts(c, err);
}

static fd_code report(check *c, fd_error *err) {
    const fd_golden_args *a = c->args;
    if (a->report.json)
        FD_TRY(print_json(c, err));
    else
        print_text(c);
    tell_github(c);
    return a->report.junit ? write_junit(c, a->report.junit, err) : FD_OK;
}

int fd_golden_check_command(const fd_golden_args *args, const fd_cli_model *model) {
    fd_error err = {0};
    check c = {.args = args, .model = model};
    fd_code code = run_check(&c, &err);
    if (code == FD_OK) code = report(&c, &err);
    for (int32_t i = 0; c.prompts && i < c.n_outcome; i++) json_decref(c.prompts[i].json);
    free(c.prompts);
    fd_golden_close(c.golden);
    fd_cli_exec_close(&c.exec);
    if (code != FD_OK) return fd_cli_fail("golden", &err);
    return c.n_failed ? FD_EXIT_DIVERGED : FD_EXIT_SAME;
}
