#include "cli/cli.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/limits.h"
#include "cli/guard.h"
#include "cli/ranks.h"

#include "numerics/contract.h"
#ifdef FD_HAVE_CUDA
#include "engine/engine.h"
#endif

static const fd_cli_command commands[] = {
    {"check", fd_cmd_check, false, true,
     "whether an engine computes what its model says, from what it dumped, in one command", &fd_cmd_check_argp,
     "firstdiff check model.gguf dump/ --candidate f16\n"
     "firstdiff check model.gguf mine.h5 --html report.html"},
    {"diff", fd_cmd_diff, false, true, "run two executors in lockstep and stop at the first tensor that diverges",
     &fd_cmd_diff_argp,
     "firstdiff diff model.gguf -p \"In the beginning\" --a cpu:exact --b gpu:exact\n"
     "firstdiff diff model.gguf --b trace:mine.h5"},
    {"compare", fd_cmd_compare, true, false, "the same verdict from two recorded traces", &fd_cmd_compare_argp,
     "firstdiff compare ref.h5 mine.h5 --model model.gguf\n"
     "firstdiff compare ref.h5 mine.h5 --model model.gguf -v --html report.html"},
    {"run", fd_cmd_run, true, true, "run a model, print its text, record a trace", &fd_cmd_run_argp,
     "firstdiff run model.gguf -p \"In the beginning\" -n 16\n"
     "firstdiff run model.gguf --tokens 1,300,45,261 -n 0 -o ref.h5"},
    {"inspect", fd_cmd_inspect, false, false,
     "look into a trace: tree, statistics, health, slices; list a golden's prompts", &fd_cmd_inspect_argp,
     "firstdiff inspect trace.h5\n"
     "firstdiff inspect trace.h5 'blk.0.attn_q[3:5, 2, :8]'"},
    {"import", fd_cmd_import, false, true, "make a trace of the tensors that another engine dumped",
     &fd_cmd_import_argp,
     "firstdiff import dump/ -o mine.h5 --map llama.cpp\n"
     "firstdiff import dump/ --map auto --model model.gguf > my.map"},
    {"golden", fd_cmd_golden, false, true, "record exact goldens of a model, and check against them",
     &fd_cmd_golden_argp,
     "firstdiff golden record model.gguf prompts.txt -o golden.h5\n"
     "firstdiff golden check model.gguf golden.h5 --backend gpu --junit golden.xml"},
    {"sweep", fd_cmd_sweep, false, true, "run the same tokens in different splits: every bit must stay",
     &fd_cmd_sweep_argp, "firstdiff sweep model.gguf -p \"In the beginning\" --backend gpu"},
    {"model", fd_cmd_model, false, false, "show what a GGUF holds and the graph it makes; --verify checks the file",
     &fd_cmd_model_argp, "firstdiff model model.gguf --verify"},
    {"make-model", fd_cmd_make_model, false, false, "write a GGUF of random weights, of any supported architecture",
     &fd_cmd_make_model_argp,
     "firstdiff make-model -a qwen3moe -o tiny.gguf\n"
     "firstdiff make-model -p tinyllama-1.1b -t Q8_0 -o tinyllama.gguf"},
    {"bisect", fd_cmd_bisect, false, false, "find the commit of an engine's repository that brought a bug in",
     &fd_cmd_bisect_argp,
     "firstdiff bisect --model model.gguf --build make --run './engine model.gguf' v1.0\n"
     "firstdiff bisect --model model.gguf --run ./run.sh --trace dump --candidate f16 GOOD BAD"},
    {"man", fd_cmd_man, false, false, "print the manual page of a command: firstdiff man run | man -l -", NULL,
     "firstdiff man run | man -l -"},
    {"completion", fd_cmd_completion, false, false, "print what makes bash, zsh or fish complete commands and options",
     NULL,
     "source <(firstdiff completion bash)\nfirstdiff completion fish > ~/.config/fish/completions/firstdiff.fish"},
};

const fd_cli_command *fd_cli_commands(size_t *n) {
    *n = sizeof commands / sizeof *commands;
    return commands;
}

static void print_help(FILE *to) {
    fprintf(to, "firstdiff finds the first tensor where two runs of the same language model diverge.\n\n"
                "Usage: firstdiff COMMAND [OPTION...]\n\n");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        fprintf(to, "  %-10s  %s\n", commands[i].name, commands[i].summary);
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

/* A mapped file was cut short by somebody else while it was read. What is being written stays under its .part name, as
 * after a kill. */
static void end_cut_short(int number, siginfo_t *info, void *context) {
    (void)context;
    if (info->si_code != BUS_ADRERR) { /* another fault: it ends the program as it would have */
        signal(number, SIG_DFL);
        raise(number);
        return;
    }
    const char *path = fd_file_mapped_at(info->si_addr);
    fd_cli_say_at_once("firstdiff: ");
    fd_cli_say_at_once(path ? path : "a file");
    fd_cli_say_at_once(": damaged: it was cut short while it was read\n");
    _exit(FD_EXIT_UNUSABLE);
}

static void print_version(void) {
    printf("firstdiff " FD_VERSION "\nnumerics contract %d\n", FD_CONTRACT_VERSION);
#ifdef FD_HAVE_CUDA
    char why[256];
    bool available = fd_engine_available(why, sizeof why);
    printf("GPU engine: %s\n", available ? "available" : why);
#else
    printf("GPU engine: not in this build\n");
#endif
    printf("built by " FD_BUILD "\n");
}

/* argp prints the rest. */
static void print_example(const fd_cli_command *command, int argc, char **argv) {
    for (int i = 2; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (command->example && (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-?") == 0)) {
            printf("For example:\n\n");
            for (const char *line = command->example; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
                printf("  %.*s\n", (int)strcspn(line, "\n"), line);
            printf("\n");
            return;
        }
}

int main(int argc, char **argv) {
    fd_cli_keep_arguments(argc, argv);
    fd_cli_guard_streams();
    atexit(check_stdout);
    sigaction(SIGBUS, &(struct sigaction){.sa_sigaction = end_cut_short, .sa_flags = SA_SIGINFO}, NULL);
    signal(SIGXFSZ, SIG_IGN); /* a limit on the size of files is an error of the write */
    argp_err_exit_status = FD_EXIT_UNUSABLE;
    static char help[] = "--help";
    if (argc < 2) {
        print_help(stderr);
        return FD_EXIT_UNUSABLE;
    }
    if (strcmp(argv[1], "help") == 0 && argc > 2) { /* help run: run --help */
        argv[1] = argv[2];
        argv[2] = help;
        argc = 3;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return FD_EXIT_SAME;
    }
    if (strcmp(argv[1], "--version") == 0) {
        print_version();
        return FD_EXIT_SAME;
    }
    fd_error err = {0};
    if (take_limits(&argc, argv, &err) != FD_OK) return fd_cli_fail(argv[1], &err);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(argv[1], commands[i].name) == 0) {
            if (fd_cli_ranks_begin(argv[1], commands[i].shared, &err) != FD_OK) return fd_cli_fail(argv[1], &err);
            if (commands[i].limits_spin) fd_cli_limit_openmp_spin();
            print_example(&commands[i], argc, argv);
            char name[32];
            snprintf(name, sizeof name, "firstdiff %s", commands[i].name);
            argv[1] = name; /* so that --help and usage errors say "firstdiff run" */
            return fd_cli_ranks_end(commands[i].run(argc - 1, argv + 1));
        }
    fprintf(stderr, "firstdiff: unknown command \"%s\"; `firstdiff --help` lists the commands\n", argv[1]);
    return FD_EXIT_UNUSABLE;
}
