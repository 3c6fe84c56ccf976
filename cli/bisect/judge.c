#include "cli/bisect/judge.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/bisect/process.h"
#include "cli/temporary.h"

static fd_code shell(const fd_bisect_how *how, const char *command, const char *folder, const char *variable,
                     int *status, fd_error *err) {
    const char *argv[] = {"sh", "-c", command, NULL};
    return fd_process_run(&(fd_process){.argv = argv, .folder = folder, .variable = variable, .quiet = !how->verbose},
                          status, err);
}

static void copy(char *to, size_t size, const json_t *from) {
    snprintf(to, size, "%s", json_is_string(from) ? json_string_value(from) : "");
}

static void add_bug(fd_bisect_result *out, const json_t *name, const json_t *node, const json_t *summary) {
    if (out->n_bug == FD_BISECT_MAX_BUGS) return;
    fd_bisect_bug *bug = &out->bugs[out->n_bug++];
    copy(bug->name, sizeof bug->name, name);
    copy(bug->node, sizeof bug->node, node);
    copy(bug->summary, sizeof bug->summary, summary);
}

/* The JSON report's weights, causes and divergence. */
static void take_bugs(const json_t *report, fd_bisect_result *out) {
    const json_t *weights = json_object_get(report, "weights"), *causes = json_object_get(report, "causes");
    const json_t *divergence = json_object_get(report, "divergence");
    if (json_integer_value(json_object_get(weights, "differ")) > 0)
        add_bug(out, json_object_get(weights, "name"), json_object_get(weights, "first"),
                json_object_get(weights, "summary"));
    for (size_t i = 0; i < json_array_size(causes); i++) {
        const json_t *cause = json_array_get(causes, i);
        add_bug(out, json_object_get(cause, "name"), json_object_get(cause, "node"), json_object_get(cause, "summary"));
    }
    if (!out->n_bug && json_is_object(divergence)) add_bug(out, NULL, json_object_get(divergence, "node"), NULL);
}

static fd_code compare_trace(const fd_bisect_how *how, const char *trace, const char *folder, fd_bisect_result *out,
                             fd_error *err) {
    enum { MOST = 4 << 20 };
    const char *argv[16] = {"/proc/self/exe"};
    int n = 1, status;
    char *text = malloc(MOST);
    if (!text) return fd_fail(err, FD_ERR_MEMORY, "verdict: out of memory");
    argv[n++] = how->model ? "check" : "compare";
    argv[n++] = how->model ? how->model : how->ref;
    argv[n++] = trace;
    argv[n++] = "--json";
    const char *const options[][2] = {{"--candidate", how->candidate}, {"--map", how->map}, {"--tokens", how->tokens}};
    for (int i = 0; i < 3; i++)
        if (options[i][1]) argv[n++] = options[i][0], argv[n++] = options[i][1];
    fd_code code = fd_process_run(
        &(fd_process){.argv = argv, .folder = folder, .quiet = !how->verbose, .output = text, .size = MOST}, &status,
        err);
    json_t *report = code == FD_OK ? json_loads(text, 0, NULL) : NULL;
    free(text);
    if (code != FD_OK) return code;
    copy(out->status, sizeof out->status, json_object_get(report, "status"));
    if (status == 1 && report) take_bugs(report, out);
    out->judged = report && (status == 0 || (status == 1 && out->n_bug > 0));
    if (!out->judged)
        snprintf(out->why, sizeof out->why, "no verdict (%s, status %d)", report ? out->status : "no report", status);
    json_decref(report);
    return FD_OK;
}

static fd_code build_and_run(const fd_bisect_how *how, const char *folder, const char *trace, fd_bisect_result *out,
                             fd_error *err) {
    int status = 0;
    char variable[4200];
    snprintf(variable, sizeof variable, "FIRSTDIFF_TRACE=%s", trace);
    if (how->build) FD_TRY(shell(how, how->build, folder, NULL, &status, err));
    if (status != 0) {
        snprintf(out->why, sizeof out->why, "does not build (status %d)", status);
        return FD_OK;
    }
    /* an engine may fail after it has recorded its trace: the trace decides */
    FD_TRY(shell(how, how->run, folder, how->trace ? NULL : variable, &status, err));
    FD_TRY(compare_trace(how, how->trace ? how->trace : trace, folder, out, err));
    if (!out->judged && status != 0) snprintf(out->why, sizeof out->why, "does not run (status %d)", status);
    return FD_OK;
}

fd_code fd_bisect_judge(const fd_bisect_how *how, const char *folder, fd_bisect_result *out, fd_error *err) {
    char trace[4096];
    *out = (fd_bisect_result){0};
    FD_TRY(fd_cli_temporary(trace, err));
    unlink(trace); /* the engine makes it */
    fd_code code = build_and_run(how, folder, trace, out, err);
    unlink(trace);
    return code;
}

/* "blk.3.attn_q" and "blk.7.attn_q": "attn_q". */
static const char *suffix(const char *node) {
    const char *dot = strncmp(node, "blk.", 4) == 0 ? strchr(node + 4, '.') : NULL;
    return dot ? dot + 1 : node;
}

bool fd_bisect_has(const fd_bisect_result *result, const fd_bisect_bug *bug) {
    for (int32_t i = 0; i < result->n_bug; i++) {
        const fd_bisect_bug *here = &result->bugs[i];
        if (bug->name[0] ? strcmp(here->name, bug->name) == 0 : strcmp(suffix(here->node), suffix(bug->node)) == 0)
            return true;
    }
    return false;
}
