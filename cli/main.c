#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    bool bounded; /* fd_cli_bound_spinning before it begins; compare decides itself */
    const char *summary;
} commands[] = {
    {"diff", fd_cmd_diff, true, "run two executors in lockstep and stop at the first tensor that diverges"},
    {"compare", fd_cmd_compare, false, "the same verdict from two recorded traces"},
    {"run", fd_cmd_run, true, "run a model, print its text, record a trace"},
    {"inspect", fd_cmd_inspect, false, "look into a trace: tree, statistics, health, slices"},
    {"import", fd_cmd_import, true, "make a trace of the tensors that another engine left"},
    {"golden", fd_cmd_golden, true, "record exact goldens of a model, and check against them"},
    {"sweep", fd_cmd_sweep, true, "the same tokens split in different ways: every bit must stay"},
    {"model", fd_cmd_model, false, "what a GGUF holds and the graph it makes; --verify checks the file"},
};

static void help(FILE *to) {
    fprintf(to, "firstdiff finds the first tensor where two runs of the same language model diverge.\n\n"
                "Usage: firstdiff COMMAND [OPTION...]\n\n");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        fprintf(to, "  %-8s  %s\n", commands[i].name, commands[i].summary);
    fprintf(to, "\n`firstdiff COMMAND --help` lists a command's options.\n"
                "Exit status: 0 no divergence, 1 diverged, 2 unusable input or usage, 3 incomplete.\n");
}

/* What was printed must have arrived: a full disk behind stdout is no success. */
static int checked(int status) {
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "firstdiff: writing to standard output failed\n");
        return FD_EXIT_UNUSABLE;
    }
    return status;
}

/* The arguments before main and argp rearrange them. */
static char **started_with;

static void keep_arguments(int argc, char **argv) {
    started_with = malloc(((size_t)argc + 1) * sizeof *argv);
    if (started_with) memcpy(started_with, argv, ((size_t)argc + 1) * sizeof *argv);
}

void fd_cli_bound_spinning(void) {
    if (!started_with || getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY")) return;
    if (setenv("GOMP_SPINCOUNT", "1000", 1) == 0)
        execv("/proc/self/exe", started_with); /* returns only on failure: go on */
}

int main(int argc, char **argv) {
    keep_arguments(argc, argv);
    argp_err_exit_status = FD_EXIT_UNUSABLE;
    if (argc < 2) {
        help(stderr);
        return FD_EXIT_UNUSABLE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        help(stdout);
        return checked(FD_EXIT_SAME);
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("firstdiff " FD_VERSION "\n");
        return checked(FD_EXIT_SAME);
    }
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(argv[1], commands[i].name) == 0) {
            if (commands[i].bounded) fd_cli_bound_spinning();
            char name[32];
            snprintf(name, sizeof name, "firstdiff %s", commands[i].name);
            argv[1] = name; /* so that --help and usage errors say "firstdiff run" */
            return checked(commands[i].run(argc - 1, argv + 1));
        }
    fprintf(stderr, "firstdiff: \"%s\" is no command; `firstdiff --help` lists them\n", argv[1]);
    return FD_EXIT_UNUSABLE;
}
