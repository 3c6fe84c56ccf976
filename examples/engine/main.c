/* engine MODEL.gguf TOKENS [-n GENERATE] [--prefill N] [--bug NAME]
 *
 * Feeds TOKENS ("1,2,3") to the model, the first N of them at once (all of them by default), then one at a time, and
 * prints the tokens it would go on with. FIRSTDIFF_TRACE=FILE.h5 records what it computes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"

enum { MAX_TOKENS = 4096 };

static bug parse_bug(const char *name) {
    for (int i = 0; i < N_BUG; i++)
        if (strcmp(bug_names[i], name) == 0) return (bug)i;
    fprintf(stderr, "no bug %s; there are:", name);
    for (int i = 0; i < N_BUG; i++) fprintf(stderr, " %s", bug_names[i]);
    die(" ");
}

int main(int argc, char **argv) {
    static int tokens[MAX_TOKENS];
    int n = 0, n_generate = 0, n_prefill = 0;
    bug which = BUG_NONE;
    if (argc < 3 || argc % 2 == 0) die("usage: engine MODEL.gguf TOKENS [-n GENERATE] [--prefill N] [--bug NAME]");
    for (char *at = argv[2]; n < MAX_TOKENS && *at; n++) {
        tokens[n] = (int)strtol(at, &at, 10);
        if (*at == ',')
            at++;
        else if (*at)
            die("TOKENS: \"%s\" is no list like 1,2,3", argv[2]);
    }
    for (int i = 3; i < argc; i += 2) {
        if (strcmp(argv[i], "-n") == 0)
            n_generate = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--prefill") == 0)
            n_prefill = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--bug") == 0)
            which = parse_bug(argv[i + 1]);
        else
            die("unknown option %s", argv[i]);
    }
    if (n < 1 || n_generate < 0 || n + n_generate > MAX_TOKENS) die("expected 1 to %d tokens in all", MAX_TOKENS);
    if (n_prefill < 1 || n_prefill > n) n_prefill = n;

    fd_tracer_options options = {
        .engine = "examples/engine", .numerics = "f32", .kv_type = "f32", .model_file = argv[1]};
    fd_tracer *trace = fd_tracer_open(NULL, &options);
    model m = model_load(argv[1], n + n_generate, which, trace);
    const float *logits = forward(&m, tokens, n_prefill, 0);
    for (int i = n_prefill; i < n + n_generate; i++) {
        if (i >= n) { /* the most probable one */
            tokens[i] = 0;
            for (int t = 1; t < m.n_vocab; t++)
                if (logits[t] > logits[tokens[i]]) tokens[i] = t;
            printf("%s%d", i > n ? "," : "", tokens[i]);
        }
        logits = forward(&m, &tokens[i], 1, i);
    }
    if (n_generate) printf("\n");
    char message[1024];
    if (fd_tracer_close(trace, message, sizeof message)) die("no trace: %s", message);
    return 0;
}
