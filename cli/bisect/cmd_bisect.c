/* firstdiff bisect: the commit of an engine's repository that brought a bug in. */
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/bisect/judge.h"
#include "cli/bisect/search.h"
#include "cli/cli.h"

typedef struct arguments {
    fd_bisect_how how;
    const char *releases, *good, *bad;
} arguments;

enum {
    KEY_BUILD = 256,
    KEY_RUN,
    KEY_TRACE,
    KEY_MODEL,
    KEY_REF,
    KEY_CANDIDATE,
    KEY_MAP,
    KEY_TOKENS,
    KEY_BUG,
    KEY_RELEASES
};

static const struct argp_option options[] = {
    {"build", KEY_BUILD, "COMMAND", 0, "Builds a version, in its folder (a shell's command)", 1},
    {"run", KEY_RUN, "COMMAND", 0,
     "Runs it, and leaves a trace in the file that $FIRSTDIFF_TRACE names, or whatever --trace says", 1},
    {"trace", KEY_TRACE, "PATH", 0, "What the run leaves in the version's folder: a trace or a dump, as for check", 1},
    {"model", KEY_MODEL, "MODEL.gguf", 0, "The model that it runs: every version is judged by firstdiff check", 1},
    {"ref", KEY_REF, "REF.h5", 0, "Without a model: a trace that it must agree with in every bit", 1},
    {"candidate", KEY_CANDIDATE, "CLASS", 0, "Where the engine rounds, as in firstdiff check", 2},
    {"map", KEY_MAP, "NAME|FILE", 0, "Map of its names, as in firstdiff check", 2},
    {"tokens", KEY_TOKENS, "1,2,3", 0, "Tokens that it is fed, as in firstdiff check", 2},
    {"bug", KEY_BUG, "NAME", 0, "Which of BAD's bugs to look for, by the name that check gives it (default: its first)",
     2},
    {"releases", KEY_RELEASES, "DIR", 0,
     "Not commits but the folders of DIR, in order of their version numbers; GOOD and BAD are two of them (default: "
     "the first and the last)",
     2},
    {"verbose", 'v', 0, 0, "Show what the commands print", 2},
    {0},
};

static error_t parse_bisect_option(int key, char *arg, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case KEY_BUILD: a->how.build = arg; return 0;
    case KEY_RUN: a->how.run = arg; return 0;
    case KEY_TRACE: a->how.trace = arg; return 0;
    case KEY_MODEL: a->how.model = arg; return 0;
    case KEY_REF: a->how.ref = arg; return 0;
    case KEY_CANDIDATE: a->how.candidate = arg; return 0;
    case KEY_MAP: a->how.map = arg; return 0;
    case KEY_TOKENS: a->how.tokens = arg; return 0;
    case KEY_BUG: a->how.bug = arg; return 0;
    case KEY_RELEASES: a->releases = arg; return 0;
    case 'v': a->how.verbose = true; return 0;
    case ARGP_KEY_ARG:
        if (a->bad) argp_error(state, "a good and a bad version expected, \"%s\" is one too many", arg);
        *(a->good ? &a->bad : &a->good) = arg;
        return 0;
    case ARGP_KEY_END:
        if (!a->how.run) argp_error(state, "no --run COMMAND given");
        if (!a->how.model == !a->how.ref) argp_error(state, "one of --model and --ref expected");
        if (!a->good && !a->releases) argp_error(state, "no good commit given: one that has not got the bug");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

const struct argp fd_cmd_bisect_argp = {
    options,
    parse_bisect_option,
    "GOOD [BAD]",
    "Finds the commit that brought a bug in: builds and runs the commits between GOOD and BAD (default HEAD) of the "
    "repository around this folder, in a work tree of their own, driven by git bisect. BAD's first bug is the one that "
    "is looked for; a commit with other bugs has not got it. Commits that do not build, run or get a verdict are "
    "skipped.\v"
    "Exit status: 0 found, 1 GOOD has the bug too or BAD has none, 2 unusable input or usage, 3 only skipped commits "
    "are left.",
    NULL,
    NULL,
    NULL};

/* What a version's folder is not: paths are given from here. */
static fd_code make_absolute(const char **path, char to[PATH_MAX], fd_error *err) {
    if (!*path) return FD_OK;
    if (!realpath(*path, to)) return fd_fail(err, FD_ERR_INPUT, "%s: not there", *path);
    *path = to;
    return FD_OK;
}

int fd_cmd_bisect(int argc, char **argv) {
    arguments args = {0};
    static char paths[4][PATH_MAX];
    fd_error err = {0};
    argp_parse(&fd_cmd_bisect_argp, argc, argv, 0, NULL, &args);
    int status = FD_EXIT_SAME;
    fd_code code = make_absolute(&args.how.model, paths[0], &err);
    if (code == FD_OK) code = make_absolute(&args.how.ref, paths[1], &err);
    if (code == FD_OK && args.how.map && access(args.how.map, F_OK) == 0)
        code = make_absolute(&args.how.map, paths[2], &err);
    if (code == FD_OK) code = make_absolute(&args.releases, paths[3], &err);
    if (code == FD_OK)
        code = args.releases ? fd_bisect_releases(&args.how, args.releases, args.good, args.bad, &status, &err)
                             : fd_bisect_commits(&args.how, args.good, args.bad ? args.bad : "HEAD", &status, &err);
    return code == FD_OK ? status : fd_cli_fail("bisect", &err);
}
