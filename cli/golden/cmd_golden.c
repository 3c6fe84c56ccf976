/* firstdiff golden: record exact goldens of a model, and check a build against them. */
#include <stdlib.h>
#include <string.h>

#include "cli/arguments.h"
#include "cli/golden/golden.h"

enum { KEY_BACKEND = 256, KEY_NUMERICS, KEY_TOLERANCES, KEY_TOLERANCE, KEY_MAP, KEY_FAULT, KEY_JSON, KEY_JUNIT };

static const struct argp_option options[] = {
    {"output", 'o', "GOLDEN.h5", 0, "record: the golden to write", 1},
    {0, 'n', "N", 0, "record: tokens to generate after each prompt (default 8; 0: prefill only)", 1},
    {"backend", KEY_BACKEND, "cpu|gpu", 0, "Where to run (default cpu); both give the same bits", 2},
    {"numerics", KEY_NUMERICS, "exact|q8act|fast|emulate-CLASS", 0,
     "record: exact (default) or q8act, which fix every bit. check: the golden's (default); of other numerics only the "
     "logits are compared, within a tolerance. With a DUMP or TRACE.h5: where that engine rounds, f16, bf16, q8, …",
     2},
    {"tolerances", KEY_TOLERANCES, "CLASS,…|all", 0,
     "record: also measure how far sound runs that round as these classes do are from the exact logits, at each prompt "
     "(f32, f16, bf16, q8, hf-bf16, …); each class costs four runs",
     2},
    {"tolerance", KEY_TOLERANCE, "NMSE", 0,
     "check: limit of a position's logits, for numerics that are not the golden's (default: 8 times what was measured; "
     "not measured: 1e-4, 1e-3 with int8 activations)",
     2},
    {"map", KEY_MAP, "NAME|FILE", 0, "check: map of the names in DUMP, as in firstdiff check", 2},
    {"threads", 'j', "N", 0, "CPU threads (default: all cores; never changes a bit)", 2},
    {"fault", KEY_FAULT, "NAME[@LAYER]", 0, "check: inject a fault, to see the check fail; several joined by +", 2},
    {"yes", 'y', 0, 0, "update: write the golden; without it only what would change is shown", 2},
    {"json", KEY_JSON, 0, 0, "check: the result as JSON", 3},
    {"junit", KEY_JUNIT, "FILE", 0, "check: also write JUnit XML, a test case for each prompt", 3},
    {0},
};

static void take_argument(fd_golden_args *a, const char *arg, struct argp_state *state) {
    switch (a->n_arg++) {
    case 0:
        if (strcmp(arg, "record") != 0 && strcmp(arg, "check") != 0 && strcmp(arg, "update") != 0)
            argp_error(state, "\"%s\": expected record or check, or update", arg);
        a->update = arg[0] == 'u';
        a->check = arg[0] != 'r';
        break;
    case 1: a->model = arg; break;
    case 2: a->file = arg; break;
    case 3: a->run = arg; break;
    default: argp_error(state, "\"%s\" is one argument too many", arg);
    }
}

static void check_arguments(const fd_golden_args *a, struct argp_state *state) {
    if (a->n_arg == 0) argp_error(state, "record or check expected, or update");
    if (a->yes && !a->update) argp_error(state, "--yes goes with update");
    if (a->update && (a->numerics || a->fault)) argp_error(state, "--numerics and --fault do not go with update");
    if (a->n_arg < 3)
        argp_error(state, a->check ? "check: a model and a golden expected" : "record: a model and prompts expected");
    if (!a->check && !a->output) argp_error(state, "record: -o GOLDEN.h5 missing");
    if (a->check && (a->output || a->n_given)) argp_error(state, "-o and -n go with record");
    if (!a->check && a->fault) argp_error(state, "--fault goes with check: a golden records a sound run");
    if (!a->check && (a->report.json || a->report.junit)) argp_error(state, "--json and --junit go with check");
    if (!a->check && a->numerics && strcmp(a->numerics, "exact") != 0 && strcmp(a->numerics, "q8act") != 0)
        argp_error(state, "record: numerics \"%s\": a golden is exact or q8act, in every bit", a->numerics);
    if ((!a->check || a->update) && a->run) argp_error(state, "\"%s\" is one argument too many", a->run);
    if (a->check && a->tolerances) argp_error(state, "--tolerances goes with record: check has what it measured");
    if (a->map && !a->run) argp_error(state, "--map goes with check of a dump");
    if (a->run && a->fault) argp_error(state, "--fault goes with a run of our own, not with %s", a->run);
    if (a->check && !a->numerics && !a->run && a->limit >= 0)
        argp_error(state, "--tolerance goes with --numerics: the golden's own numerics have no tolerance");
    if (strcmp(a->backend, "cpu") != 0 && strcmp(a->backend, "gpu") != 0)
        argp_error(state, "backend \"%s\": expected cpu or gpu", a->backend);
}

static error_t parse_golden_option(int key, char *arg, struct argp_state *state) {
    fd_golden_args *a = state->input;
    switch (key) {
    case 'o': a->output = arg; return 0;
    case 'n':
        a->n_generate = fd_cli_integer(arg, 0, state);
        a->n_given = true;
        return 0;
    case 'j': a->n_thread = fd_cli_integer(arg, 0, state); return 0;
    case KEY_BACKEND: a->backend = arg; return 0;
    case KEY_NUMERICS: a->numerics = arg; return 0;
    case KEY_TOLERANCE: {
        char *end;
        a->limit = strtod(arg, &end);
        if (end == arg || *end || !(a->limit >= 0)) argp_error(state, "--tolerance %s: expected a number from 0", arg);
        return 0;
    }
    case KEY_TOLERANCES: a->tolerances = arg; return 0;
    case KEY_MAP: a->map = arg; return 0;
    case KEY_FAULT: a->fault = arg; return 0;
    case 'y': a->yes = true; return 0;
    case KEY_JSON: a->report.json = true; return 0;
    case KEY_JUNIT: a->report.junit = arg; return 0;
    case ARGP_KEY_ARG: take_argument(a, arg, state); return 0;
    case ARGP_KEY_END: check_arguments(a, state); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

const struct argp fd_cmd_golden_argp = {
    options,
    parse_golden_option,
    "record MODEL.gguf PROMPTS.txt\ncheck MODEL.gguf GOLDEN.h5 [DUMP|TRACE.h5]\nupdate MODEL.gguf GOLDEN.h5",
    "Records what a model computes, and checks that a build or a device still computes "
    "it: the tokens, the logits and a fingerprint of every tensor at every position. "
    "There is no tolerance. In other numerics (check --numerics), and of what another engine left of one of the "
    "prompts "
    "(DUMP, TRACE.h5), only the logits are compared, within a tolerance.\v"
    "PROMPTS has one prompt per line. Empty lines and lines that begin with # are skipped; "
    "\"tokens: 1,2,3\" gives ids. In a file *.jsonl each line is {\"prompt\": \"…\"} or {\"tokens\": [1, 2]}.\n\n"
    "Exit status: 0 identical in every bit (or near, or updated), 1 diverged, 2 unusable input (another model's "
    "golden too), 3 not comparable "
    "(another version of the numerics contract; logits or positions that a dump lacks).",
    NULL,
    NULL,
    NULL};

int fd_cmd_golden(int argc, char **argv) {
    fd_golden_args args = {.backend = "cpu", .limit = -1, .n_generate = 8};
    argp_parse(&fd_cmd_golden_argp, argc, argv, 0, NULL, &args);
    fd_error err = {0};
    fd_cli_model model;
    if (fd_cli_model_open(args.model, &model, &err) != FD_OK) return fd_cli_fail("golden", &err);
    int status = args.update  ? fd_golden_update_command(&args, &model)
                 : args.check ? fd_golden_check_command(&args, &model)
                              : fd_golden_record_command(&args, &model);
    fd_cli_model_close(&model);
    return status;
}
