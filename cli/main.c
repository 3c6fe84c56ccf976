#include "cli/cli.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/limits.h"
#include "cli/guard.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    bool limits_spin; /* fd_cli_limit_openmp_spin before it begins; compare decides itself */
    const char *summary;
} commands[] = {
    {"diff", fd_cmd_diff, true, "run two executors in lockstep and stop at the first tensor that diverges"},
    {"compare", fd_cmd_compare, false, "the same verdict from two recorded traces"},
    {"run", fd_cmd_run, true, "run a model, print its text, record a trace"},
    {"inspect", fd_cmd_inspect, false, "look into a trace: tree, statistics, health, slices; list a golden's prompts"},
    {"import", fd_cmd_import, true, "make a trace of the tensors that another engine dumped"},
    {"golden", fd_cmd_golden, true, "record exact goldens of a model, and check against them"},
    {"sweep", fd_cmd_sweep, true, "run the same tokens in different splits: every bit must stay"},
    {"model", fd_cmd_model, false, "show what a GGUF holds and the graph it makes; --verify checks the file"},
};

static void print_help(FILE *to) {
    fprintf(to, "firstdiff finds the first tensor where two runs of the same language model diverge.\n\n"
                "Usage: firstdiff COMMAND [OPTION...]\n\n");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        fprintf(to, "  %-8s  %s\n", commands[i].name, commands[i].summary);
    fprintf(to, "\n`firstdiff COMMAND --help` lists a command's options. Every command also\n"
                "has --limit NAME=VALUE, which raises a limit on what files may ask for (docs/reliability.md).\n"
                "Exit status: 0 no divergence, 1 diverged, 2 unusable input or usage, 3 incomplete.\n");
}

/* Every command has --limit NAME=VALUE: taken out of the arguments here, so that what is left is the command's own. */
static fd_code take_limits(int *argc, char **argv, fd_error *err) {
    int kept = 2;
    bool ours = true; /* before "--" */
    for (int i = 2; i < *argc; i++) {
        const char *value = NULL;
        if (strcmp(argv[i], "--") == 0) ours = false;
        if (ours && strncmp(argv[i], "--limit=", 8) == 0) value = argv[i] + 8;
        if (ours && strcmp(argv[i], "--limit") == 0) value = i + 1 < *argc ? argv[++i] : "";
        if (value)
            FD_TRY(fd_limit_set(value, err));
        else
            argv[kept++] = argv[i];
    }
    *argc = kept;
    argv[kept] = NULL;
    return FD_OK;
}

/* What was printed must have arrived: a full disk under stdout is no success, however the program ends (argp prints
 * --help and exits). */
static void check_stdout(void) {
    if (fd_cli_finish_streams()) return;
    fprintf(stderr, "firstdiff: writing to standard output failed\n");
    _exit(FD_EXIT_UNUSABLE);
}

int main(int argc, char **argv) {
    fd_cli_keep_arguments(argc, argv);
    fd_cli_guard_streams();
    atexit(check_stdout);
    signal(SIGXFSZ, SIG_IGN); /* a limit on the size of files is an error of the write */
    argp_err_exit_status = FD_EXIT_UNUSABLE;
    if (argc < 2) {
        print_help(stderr);
        return FD_EXIT_UNUSABLE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return FD_EXIT_SAME;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("firstdiff " FD_VERSION "\n");
        return FD_EXIT_SAME;
    }
    fd_error err = {0};
    if (take_limits(&argc, argv, &err) != FD_OK) return fd_cli_fail(argv[1], &err);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(argv[1], commands[i].name) == 0) {
            if (commands[i].limits_spin) fd_cli_limit_openmp_spin();
            char name[32];
            snprintf(name, sizeof name, "firstdiff %s", commands[i].name);
            argv[1] = name; /* so that --help and usage errors say "firstdiff run" */
            return commands[i].run(argc - 1, argv + 1);
        }
    fprintf(stderr, "firstdiff: unknown command \"%s\"; `firstdiff --help` lists the commands\n", argv[1]);
    return FD_EXIT_UNUSABLE;
}
