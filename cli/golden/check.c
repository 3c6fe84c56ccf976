/* firstdiff golden check: runs the recorded prompts again and reports, as text, JSON or JUnit. */
#include <stdlib.h>
#include <string.h>

#include "cli/golden/golden.h"
#include "compare/diff/golden_run.h"
#include "compare/report/report.h"

static void describe_result(const fd_golden_result *r, char *to, size_t size) {
    size_t at = 0;
    char was[40], is[40];
    to[0] = '\0';
    if (r->kind == FD_GOLDEN_TENSOR || r->kind == FD_GOLDEN_LOGITS)
        at += (size_t)snprintf(to, size, "%s differs at step %d, position %d; %lld tensors before it identical",
                               r->node, r->step, r->pos, (long long)r->n_same);
    if (r->logits_differ && at < size) {
        fd_value_text((double)r->logit_golden, was, sizeof was);
        fd_value_text((double)r->logit_now, is, sizeof is);
        at += (size_t)snprintf(to + at, size - at, "; logit %d at position %d: golden %s, now %s (%lld differ)",
                               r->logit_id, r->logit_pos, was, is, (long long)r->n_logit_differ);
    } else if (r->kind == FD_GOLDEN_TENSOR && at < size) {
        at += (size_t)snprintf(to + at, size - at, "; the logits of that step are identical");
    }
    if (r->choice_differs && at < size)
        snprintf(to + at, size - at, "%sgreedy token: golden %d, now %d", at ? "; " : "", r->choice_golden,
                 r->choice_now);
}

static bool failure(const void *results, int32_t prompt, char *message, size_t size) {
    const fd_golden_result *r = (const fd_golden_result *)results + prompt;
    if (r->kind != FD_GOLDEN_SAME) describe_result(r, message, size);
    return r->kind != FD_GOLDEN_SAME;
}

static json_t *result_json(const fd_golden *golden, const fd_golden_result *r, int32_t i) {
    static const char *const kinds[] = {"identical", "tensor", "logits", "choice"};
    const fd_golden_prompt *p = &golden->prompts[i];
    char message[1024];
    describe_result(r, message, sizeof message);
    json_t *item = json_pack("{s:i, s:s?, s:i, s:s, s:I}", "prompt", i + 1, "text", p->text, "positions", p->n_pos,
                             "result", kinds[r->kind], "identical_before", (json_int_t)r->n_same);
    if (r->kind != FD_GOLDEN_SAME)
        json_object_update_new(item, json_pack("{s:s, s:i, s:i, s:s}", "node", r->node, "step", r->step, "position",
                                               r->pos, "message", message));
    return item;
}

static fd_code print_json(const fd_golden *golden, const fd_golden_result *results, int32_t n_failed, fd_error *err) {
    json_t *list = json_array();
    for (int32_t i = 0; i < golden->n_prompt; i++) json_array_append_new(list, result_json(golden, &results[i], i));
    json_t *root = json_pack("{s:s, s:s, s:s, s:i, s:i, s:o}", "schema", "firstdiff-golden-check 1", "status",
                             n_failed ? "diverged" : "identical", "model_hash", golden->model_hash, "contract",
                             golden->contract, "failed", n_failed, "prompts", list);
    return fd_cli_print_json(root, err);
}

static void print_text(const fd_golden *golden, const fd_golden_result *results, int32_t n_failed) {
    int64_t n_same = 0, n_pos = 0;
    for (int32_t i = 0; i < golden->n_prompt; i++) {
        n_same += results[i].n_same;
        n_pos += golden->prompts[i].n_pos;
    }
    fd_golden_print_failures(golden, failure, results);
    if (!n_failed)
        printf("IDENTICAL   %d prompt%s, %lld positions, %lld tensors, every bit\n", golden->n_prompt,
               golden->n_prompt == 1 ? "" : "s", (long long)n_pos, (long long)n_same);
}

static fd_code check_all(const fd_golden_args *a, const fd_golden *golden, fd_exec *exec, int32_t *n_failed,
                         fd_error *err) {
    fd_golden_result *results = calloc((size_t)golden->n_prompt, sizeof *results);
    if (!results) return fd_fail(err, FD_ERR_MEMORY, "out of memory");
    fd_cli_progress progress = fd_cli_progress_start("prompt", golden->n_prompt);
    fd_code code = FD_OK;
    for (int32_t i = 0; i < golden->n_prompt && code == FD_OK; i++) {
        code = fd_golden_check(exec, golden, i, &results[i], err);
        *n_failed += results[i].kind != FD_GOLDEN_SAME;
        fd_cli_progress_to(&progress, i + 1);
    }
    fd_cli_progress_end(&progress);
    if (code == FD_OK && a->report.json) code = print_json(golden, results, *n_failed, err);
    if (code == FD_OK && !a->report.json) print_text(golden, results, *n_failed);
    if (code == FD_OK && a->report.junit) code = fd_golden_write_junit(a->report.junit, golden, failure, results, err);
    free(results);
    return code;
}

int fd_golden_check_command(const fd_golden_args *a, const fd_cli_model *model) {
    fd_error err = {0};
    fd_golden *golden = NULL;
    fd_cli_exec exec = {0};
    int32_t n_ctx = 1, n_failed = 0;
    const char *inputs[] = {a->model, a->file};
    fd_code code = fd_cli_spare_inputs(a->report.junit, inputs, sizeof inputs / sizeof *inputs, &err);
    if (code == FD_OK) code = fd_golden_read(a->file, &golden, &err);
    if (code == FD_OK) {
        code = fd_golden_usable(golden, model->graph, model->hash, &err);
        if (code != FD_OK) fd_error_prefix(&err, "%s", a->file);
    }
    for (int32_t i = 0; code == FD_OK && i < golden->n_prompt; i++)
        if (golden->prompts[i].n_pos > n_ctx) n_ctx = golden->prompts[i].n_pos;
    const char *numerics = code == FD_OK && !a->numerics ? golden->numerics : a->numerics;
    if (code == FD_OK) code = fd_golden_executor(a, numerics, model, n_ctx, &exec, &err);
    if (code == FD_OK)
        code = strcmp(numerics, golden->numerics) == 0
                   ? check_all(a, golden, exec.exec, &n_failed, &err)
                   : fd_golden_check_all_near(a, golden, exec.exec, &n_failed, &err);
    fd_cli_exec_close(&exec);
    if (golden) fd_golden_free(golden);
    if (code != FD_OK) return fd_cli_fail("golden", &err);
    return n_failed ? FD_EXIT_DIVERGED : FD_EXIT_SAME;
}
