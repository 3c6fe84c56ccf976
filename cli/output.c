#include "cli/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/fold.h"
#include "cli/github.h"
#include "compare/report/json_build.h"
#include "compare/report/report.h"

/* ---- options ---- */

enum { KEY_JSON = 256, KEY_JUNIT, KEY_HTML, KEY_REPRO, GROUP = 3 };

static const struct argp_option options[] = {
    {"verbose", 'v', 0, 0,
     "Also a map of layers and tensors, values side by side, a table of layers (z, NMSE, cosine) and one of tokens",
     GROUP},
    {"json", KEY_JSON, 0, 0, "The verdict as JSON", GROUP},
    {"junit", KEY_JUNIT, "FILE", 0, "Also write the verdict as JUnit XML", GROUP},
    {"html", KEY_HTML, "FILE", 0, "Also write it as a page: every tensor by layer, z by position and head", GROUP},
    {0},
};

static const struct argp_option judged_options[] = {
    {"repro", KEY_REPRO, "DIR", 0,
     "Also write the op that is wrong alone: its inputs and what it should give as .npy, a C program, a test for "
     "pytest, cases for ggml's test-backend-ops",
     GROUP},
    {0},
};

static error_t parse_output_option(int key, char *arg, struct argp_state *state) {
    fd_cli_output *output = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        if (state->child_inputs) state->child_inputs[0] = output;
        return 0;
    case 'v': output->verbose = true; return 0;
    case KEY_JSON: output->json = true; return 0;
    case KEY_JUNIT: output->junit = arg; return 0;
    case KEY_HTML: output->html = arg; return 0;
    case KEY_REPRO: output->repro = arg; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

const struct argp fd_cli_output_argp = {.options = options, .parser = parse_output_option};
static const struct argp_child children[] = {{&fd_cli_output_argp, 0, NULL, 0}, {0}};
const struct argp fd_cli_judged_output_argp = {
    .options = judged_options, .parser = parse_output_option, .children = children};

/* ---- files ---- */

fd_code fd_cli_output_open(const char *path, FILE **out, fd_error *err) {
    /* a FIFO that nobody reads is refused, not waited for */
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666);
    if (fd >= 0) fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    *out = fd < 0 ? NULL : fdopen(fd, "wb");
    if (*out) return FD_OK;
    fd_fail(err, FD_ERR_IO, "%s: %s", path, errno == ENXIO ? "a FIFO that nobody reads" : strerror(errno));
    if (fd >= 0) close(fd);
    return err->code;
}

fd_code fd_cli_output_close(FILE *file, const char *path, fd_error *err) {
    errno = 0;
    bool failed = fflush(file) != 0 || ferror(file);
    int why = errno;
    failed |= fclose(file) != 0;
    if (!failed) return FD_OK;
    return fd_fail(err, FD_ERR_IO, "%s: writing failed: %s", path, strerror(why ? why : errno));
}

fd_code fd_cli_check_not_overwriting(const char *output, const char *const *inputs, size_t n, fd_error *err) {
    struct stat to, from;
    if (!output || stat(output, &to) != 0 || !S_ISREG(to.st_mode)) return FD_OK;
    for (size_t i = 0; i < n; i++)
        if (inputs[i] && stat(inputs[i], &from) == 0 && from.st_dev == to.st_dev && from.st_ino == to.st_ino)
            return fd_fail(err, FD_ERR_INPUT, "%s: is an input and would be replaced: write to another file", output);
    return FD_OK;
}

fd_code fd_cli_check_reports_not_overwriting(const fd_cli_output *output, const char *const *inputs, size_t n,
                                             fd_error *err) {
    FD_TRY(fd_cli_check_not_overwriting(output->html, inputs, n, err));
    return fd_cli_check_not_overwriting(output->junit, inputs, n, err);
}

/* ---- verdicts ---- */

static fd_code write_junit(const fd_verdict *verdict, const char *path, fd_error *err) {
    FILE *file;
    FD_TRY(fd_cli_output_open(path, &file, err));
    fd_report_junit(file, verdict);
    return fd_cli_output_close(file, path, err);
}

static fd_code write_html(const fd_verdict *verdict, const char *path, fd_error *err) {
    FILE *file;
    FD_TRY(fd_cli_output_open(path, &file, err));
    fd_code code = fd_report_html(file, verdict, err);
    fd_error closing = {0};
    fd_code closed = fd_cli_output_close(file, path, &closing);
    if (code == FD_OK && closed != FD_OK) *err = closing;
    return code == FD_OK ? closed : code;
}

static void put_text(const fd_verdict *verdict, bool verbose) {
    FILE *folded = fd_cli_fold();
    fd_report_text(folded ? folded : stdout, verdict, fd_cli_colour(stdout));
    if (folded) fclose(folded);
    if (verbose) fd_report_details(stdout, verdict, fd_cli_colour(stdout));
}

int fd_cli_print_verdict(const char *command, const fd_verdict *verdict, const fd_cli_output *output) {
    fd_error err = {0};
    fd_code code = FD_OK;
    if (output->json)
        code = fd_report_json(stdout, verdict, &err);
    else
        put_text(verdict, output->verbose);
    fd_cli_github_verdict(command, verdict);
    if (code == FD_OK && output->junit) code = write_junit(verdict, output->junit, &err);
    if (code == FD_OK && output->html) code = write_html(verdict, output->html, &err);
    return code == FD_OK ? fd_verdict_exit_status(verdict) : fd_cli_fail(command, &err);
}

fd_code fd_cli_print_json(json_t *root, fd_error *err) {
    if (!root) return fd_fail(err, FD_ERR_MEMORY, "JSON: out of memory, or text that is not UTF-8");
    bool failed = !fd_json_write(stdout, root);
    json_decref(root);
    return failed ? fd_fail(err, FD_ERR_IO, "standard output: writing failed") : FD_OK;
}
