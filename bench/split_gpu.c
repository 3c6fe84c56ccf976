/* split_gpu [--gpus N|LIST] [-n N] [-p N] [-r N] [--tensors N] MODEL.gguf: a model on several GPUs against the same
 * model on the first of them, in one run: is every tensor equal, and how much faster is it?
 *
 * Equal: the fingerprint of every node and position of a prompt of --tensors tokens and as many decode steps, then
 * the logits of the measured prompt and the generated tokens. Rates are medians of rounds that take turns. With
 * --alone the model is on the several GPUs only (it may not fit on one), and nothing is compared. Exit status: 0
 * equal, 1 a difference, 77 no device. */
#include "bench/generate_gpu.h"
#include "bench/gpu.h"
#include "engine/devices.h"

enum { MAX_ROUND = 25 };

typedef struct options {
    const char *path;
    fd_engine_devices gpus;
    fd_numerics numerics;
    int n_decode, n_prefill, n_round, n_tensor;
    bool alone;
} options;

static error_t parse(int key, char *arg, struct argp_state *state) {
    options *o = state->input;
    fd_error err = {0};
    int *number = key == 'n'   ? &o->n_decode
                  : key == 'p' ? &o->n_prefill
                  : key == 'r' ? &o->n_round
                  : key == 't' ? &o->n_tensor
                               : NULL;
    if (number) {
        *number = atoi(arg);
        return 0;
    }
    switch (key) {
    case 'g':
        if (fd_engine_parse_devices(arg, &o->gpus, &err) != FD_OK) argp_error(state, "%s", err.message);
        return 0;
    case 'a': o->alone = true; return 0;
    case 'N': o->numerics = parse_numerics(arg, state); return 0;
    case ARGP_KEY_ARG: o->path = arg; return 0;
    case ARGP_KEY_END:
        if (!o->path || o->n_decode < 1 || o->n_prefill < 1 || o->n_round < 0 || o->n_round > MAX_ROUND ||
            o->n_tensor < 0)
            argp_usage(state);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* An engine, what it left of its tensors, and its rates. */
typedef struct side {
    fd_exec *exec;
    fd_fingerprint *prints; /* [n_print] in the order they were shown */
    int64_t n_print, room;
    float *logits;   /* [n_vocab] of the prompt */
    int32_t *tokens; /* [WARM + n_decode + 1] */
    double prefill[MAX_ROUND], decode[MAX_ROUND];
} side;

static fd_code take_prints(void *user, const fd_observation *seen, fd_error *err) {
    side *s = user;
    if (s->n_print + seen->n_pos > s->room) {
        s->room = 2 * (s->n_print + seen->n_pos);
        s->prints = realloc(s->prints, sizeof *s->prints * (size_t)s->room);
        if (!s->prints) return fd_fail(err, FD_ERR_MEMORY, "out of memory for fingerprints");
    }
    for (int32_t i = 0; i < seen->n_pos; i++) s->prints[s->n_print++] = seen->fingerprints[i];
    return FD_OK;
}

static void observe(side *s, int n) {
    fd_exec_reset(s->exec);
    fd_exec_set_observer(s->exec, (fd_observer){.observe = take_prints, .wants = fd_want_fingerprints, .user = s});
    feed(s->exec, n, n, NULL);
    feed(s->exec, n, 1, NULL);
    fd_exec_set_observer(s->exec, (fd_observer){0});
}

/* The prompt's logits, then greedy tokens sampled on the device. */
static void measure(side *s, const options *o, int at) {
    fd_sampler_options greedy = {.top_p = 1, .repeat_penalty = 1};
    fd_exec_reset(s->exec);
    s->prefill[at] = o->n_prefill / feed(s->exec, o->n_prefill, o->n_prefill, s->logits);
    s->decode[at] = o->n_decode / generate(s->exec, o->n_decode, false, &greedy, s->tokens);
}

static side open_side(const fd_graph *graph, const options *o, fd_engine_devices gpus) {
    fd_error err = {0};
    int32_t longest = o->n_prefill > o->n_decode + WARM + 1 ? o->n_prefill : o->n_decode + WARM + 1;
    if (2 * o->n_tensor > longest) longest = 2 * o->n_tensor;
    fd_engine_options of = {.n_ctx = longest, .numerics = o->numerics, .devices = gpus};
    side s = {.logits = malloc(sizeof *s.logits * (size_t)graph->hparams.n_vocab),
              .tokens = malloc(sizeof *s.tokens * (size_t)longest)};
    if (!s.logits || !s.tokens) exit(2);
    double start = now();
    must(fd_engine_new(graph, &of, &s.exec, &err), &err);
    printf("%s: set up in %.2f s\n", s.exec->device, now() - start);
    return s;
}

static void close_side(side *s) {
    fd_exec_free(s->exec);
    free(s->prints);
    free(s->logits);
    free(s->tokens);
}

static bool same(const side *a, const side *b, const options *o, int32_t n_vocab) {
    bool prints = a->n_print == b->n_print &&
                  (!a->n_print || memcmp(a->prints, b->prints, sizeof *a->prints * (size_t)a->n_print) == 0);
    if (o->n_tensor)
        printf("%lld tensors of a prompt of %d and %d decode steps: %s\n", (long long)a->n_print, o->n_tensor,
               o->n_tensor, prints ? "equal" : "DIFFERENT");
    if (o->n_round == 0) return prints;
    bool logits = memcmp(a->logits, b->logits, sizeof *a->logits * (size_t)n_vocab) == 0;
    bool tokens = memcmp(a->tokens, b->tokens, sizeof *a->tokens * (size_t)(WARM + o->n_decode + 1)) == 0;
    printf("logits of a prompt of %d: %s; %d generated tokens: %s\n", o->n_prefill, logits ? "equal" : "DIFFERENT",
           o->n_decode + 1, tokens ? "equal" : "DIFFERENT");
    return prints && logits && tokens;
}

static void show(const char *what, double *one, double *several, const options *o) {
    double fast = median(several, o->n_round);
    printf("%-24s", what);
    if (!o->alone) printf(" %10.1f on one", median(one, o->n_round));
    printf(" %10.1f on %d [%.1f – %.1f]", fast, o->gpus.n, several[0], several[o->n_round - 1]);
    if (!o->alone) printf("   %.2f times", fast / median(one, o->n_round));
    printf("\n");
}

int main(int argc, char **argv) {
    static const struct argp_option known[] = {
        {"gpus", 'g', "N|LIST", 0, "the GPUs (2)", 0},
        {"decode", 'n', "N", 0, "tokens to generate (64)", 0},
        {"prefill", 'p', "N", 0, "tokens of a prompt (512)", 0},
        {"rounds", 'r', "N", 0, "rounds (5; 0: nothing is measured)", 0},
        {"tensors", 't', "N", 0, "tokens of a prompt and decode steps whose tensors are compared (8)", 0},
        {"numerics", 'N', "exact|q8act|fast", 0, "(exact)", 0},
        {"alone", 'a', NULL, 0, "on the several GPUs only", 0},
        {0}};
    static const struct argp parser = {known, parse, "MODEL.gguf", "A model on several GPUs, and on one.", 0, 0, 0};
    options o = {.n_decode = 64, .n_prefill = 512, .n_round = 5, .n_tensor = 8, .gpus = {.id = {0, 1}, .n = 2}};
    argp_parse(&parser, argc, argv, 0, NULL, &o);
    if (!fd_devices_differ(o.gpus.id, o.gpus.n)) /* a kernel is not loaded while another waits on its GPU */
        setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    fd_gguf *gguf;
    fd_graph *graph;
    open_model_or_skip(o.path, &gguf, &graph);

    side one = {0}, several = open_side(graph, &o, o.gpus);
    if (!o.alone) one = open_side(graph, &o, (fd_engine_devices){.id = {o.gpus.id[0]}, .n = 1});
    printf("%s (%s), %s, %s\n", several.exec->device, several.exec->driver, o.path, fd_numerics_name(o.numerics));
    if (o.n_tensor && !o.alone) {
        observe(&several, o.n_tensor);
        observe(&one, o.n_tensor);
    }
    for (int round = -1; round < o.n_round && o.n_round > 0; round++) { /* round -1 warms up */
        measure(&several, &o, round < 0 ? 0 : round);
        if (!o.alone) measure(&one, &o, round < 0 ? 0 : round);
    }
    bool equal = o.alone || same(&one, &several, &o, graph->hparams.n_vocab);
    if (o.n_round > 0) {
        show("prefill, tokens/s", one.prefill, several.prefill, &o);
        show("decode, tokens/s", one.decode, several.decode, &o);
    }
    show_command(argc, argv);
    close_side(&several);
    if (!o.alone) close_side(&one);
    fd_graph_free(graph);
    fd_gguf_close(gguf);
    return equal ? 0 : 1;
}
