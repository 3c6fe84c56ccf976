/* decode_gpu MODEL.gguf: tokens per second of the GPU engine in exact numerics, with --numerics=fast or q8act beside
 * those of these, and the bytes it must read for a token and what the device's memory gives a plain copy in the same
 * run. The rows take turns, round by round; the table gives medians.
 *
 * GB/s counts each weight matrix once a token, as the file stores it, and the K/V rows read; the copy counts bytes read
 * and written. With --ablate the decode step also runs in its other forms, each in an executor of its own. */
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/generate_gpu.h"
#include "bench/gpu.h"

enum { MAX_ROUND = 64, MAX_DEEP = 4, MAX_DECODE = 1 << 16, COPY_BYTES = 1 << 30, COPIES = 4 };

typedef struct options {
    const char *path;
    int n_decode, n_prefill, n_round;
    int deep[MAX_DEEP], n_deep; /* rising */
    bool ablate;
    fd_numerics beside; /* exact: nothing */
    const char *cache;  /* the type of K and V */
} options;

typedef struct row {
    char name[64];
    double rate[MAX_ROUND]; /* tokens/s, GB/s for the copy */
    double bytes;           /* a token reads; 0: none shown */
} row;

/* "2048,8192": rising depths; "0": none. */
static void parse_depths(options *o, char *text, struct argp_state *state) {
    o->n_deep = 0;
    for (char *item = text; item; item = strchr(item, ',') ? strchr(item, ',') + 1 : NULL) {
        int depth = atoi(item), before = o->n_deep > 0 ? o->deep[o->n_deep - 1] + WARM + o->n_decode : 0;
        if (depth == 0) continue;
        if (o->n_deep == MAX_DEEP || depth < before) argp_error(state, "depths rise, and are %d at most", MAX_DEEP);
        o->deep[o->n_deep++] = depth;
    }
}

static error_t parse(int key, char *arg, struct argp_state *state) {
    options *o = state->input;
    int *number = key == 'n' ? &o->n_decode : key == 'p' ? &o->n_prefill : key == 'r' ? &o->n_round : NULL;
    if (number) {
        *number = atoi(arg);
        return 0;
    }
    switch (key) {
    case 'a': o->ablate = true; return 0;
    case 'd': parse_depths(o, arg, state); return 0;
    case 'c': o->cache = arg; return 0;
    case 'N': o->beside = parse_numerics(arg, state); return 0;
    case ARGP_KEY_ARG: o->path = arg; return 0;
    case ARGP_KEY_END:
        if (!o->path || o->n_decode < 1 || o->n_decode > MAX_DECODE || o->n_prefill < 1 || o->n_round < 1 ||
            o->n_round > MAX_ROUND)
            argp_usage(state);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* Bytes of the matrices that a token multiplies by, and of one position's K and V rows. */
static double weight_bytes(const fd_graph *graph) {
    double bytes = 0;
    for (int32_t i = 0; i < graph->n_node; i++)
        if (graph->nodes[i].op == FD_OP_MATMUL) bytes += (double)graph->weights[graph->nodes[i].weight[0]].bytes;
    return bytes;
}

/* Multiply-adds of a token's matrix products without the logits, which a prompt needs for its last token alone. */
static double weight_count(const fd_graph *graph) {
    double count = 0;
    for (int32_t i = 0; i < graph->n_node - 1; i++) {
        const fd_node *node = &graph->nodes[i];
        if (node->op != FD_OP_MATMUL) continue;
        count += (double)graph->weights[node->weight[0]].n_row * (double)graph->weights[node->weight[0]].n_col;
    }
    return count;
}

static double cache_row_bytes(const fd_graph *graph, bool fast) {
    double bytes = 0;
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        if (node->op != FD_OP_KV_WRITE) continue;
        bytes += (fast || node->kv_type == FD_F16 ? 2.0 : 4.0) * (double)fd_node_row_stride(node, 0);
    }
    return bytes;
}

static const struct {
    const char *name;
    fd_engine_options options;
} variants[] = {
    {"", {0}},
    {" without CUDA graph", {.no_graph = true}},
    {" without fusion", {.no_fusion = true}},
    {" without overlap", {.no_overlap = true}},
};
enum { N_VARIANT = sizeof variants / sizeof *variants };

static const struct {
    const char *name;
    fd_sampler_options options;
} samplers[] = {
    {"greedy", {.top_p = 1, .repeat_penalty = 1}},
    {"temperature 0.8, top-k 40, top-p 0.95",
     {.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .repeat_penalty = 1.1f, .repeat_last = 64}},
};
enum { N_SAMPLER = sizeof samplers / sizeof *samplers };

static void show(row *r, const options *o, double copy) {
    double rate = median(r->rate, o->n_round);
    printf("%-44s %10.1f [%.1f – %.1f]", r->name, rate, r->rate[0], r->rate[o->n_round - 1]);
    if (r->bytes > 0) printf("  %8.1f GB/s  %5.1f %%", 1e-9 * r->bytes * rate, 1e-7 * r->bytes * rate / copy);
    printf("\n");
}

/* What is measured of an engine. */
enum {
    PREFILL,
    LOGITS,
    DEEP,                     /* decode after each depth */
    PROMPT = DEEP + MAX_DEEP, /* the prompts that lead there */
    DECODE = PROMPT + MAX_DEEP,
    GENERATE,
    N_MEASURE = GENERATE + 2 * N_SAMPLER
};

static void name_rows(row rows[N_MEASURE], const options *o, const char *numerics, double weights, double cache) {
    for (int i = 0; i < 2 * N_SAMPLER; i++)
        snprintf(rows[GENERATE + i].name, sizeof rows->name, "%s%s, %s", numerics, samplers[i / 2].name,
                 i % 2 ? "host" : "device");
    snprintf(rows[PREFILL].name, sizeof rows->name, "%sprefill of %d, tokens/s", numerics, o->n_prefill);
    snprintf(rows[LOGITS].name, sizeof rows->name, "%sdecode with logits to the host, tokens/s", numerics);
    snprintf(rows[DECODE].name, sizeof rows->name, "%sdecode, tokens/s", numerics);
    for (int i = LOGITS; i < N_MEASURE; i++) rows[i].bytes = weights + cache * (WARM + o->n_decode / 2.0);
    for (int i = 0; i < o->n_deep; i++) {
        snprintf(rows[PROMPT + i].name, sizeof rows->name, "%sprefill of %d, tokens/s", numerics, o->deep[i]);
        snprintf(rows[DEEP + i].name, sizeof rows->name, "%sdecode after %d, tokens/s", numerics, o->deep[i]);
        rows[PROMPT + i].bytes = 0;
        rows[DEEP + i].bytes = weights + cache * (o->deep[i] + WARM + o->n_decode / 2.0);
    }
}

/* Decode after one depth after the other, and the prompts that lead there: each goes on where the one before ended. */
static void measure_deep(fd_exec *exec, const options *o, row rows[N_MEASURE], int at) {
    double prompt = 0;
    fd_exec_reset(exec);
    for (int i = 0, past = 0; i < o->n_deep; i++) {
        prompt += feed(exec, o->deep[i] - past, o->deep[i] - past, NULL);
        rows[PROMPT + i].rate[at] = o->deep[i] / prompt;
        feed(exec, WARM, 1, NULL);
        rows[DEEP + i].rate[at] = o->n_decode / feed(exec, o->n_decode, 1, NULL);
        past = o->deep[i] + WARM + o->n_decode;
    }
}

/* All but plain decode. */
static void measure(fd_exec *exec, const options *o, float *logits, row rows[N_MEASURE], int at) {
    static int32_t tokens[WARM + MAX_DECODE + 1];
    fd_exec_reset(exec);
    rows[PREFILL].rate[at] = o->n_prefill / feed(exec, o->n_prefill, o->n_prefill, logits);
    fd_exec_reset(exec);
    feed(exec, WARM, 1, NULL);
    rows[LOGITS].rate[at] = o->n_decode / feed(exec, o->n_decode, 1, logits);
    for (int i = 0; i < 2 * N_SAMPLER; i++)
        rows[GENERATE + i].rate[at] =
            o->n_decode / generate(exec, o->n_decode, i % 2 == 1, &samplers[i / 2].options, tokens);
}

static double decode(fd_exec *exec, const options *o) {
    fd_exec_reset(exec);
    feed(exec, WARM, 1, NULL);
    return o->n_decode / feed(exec, o->n_decode, 1, NULL);
}

static void show_measures(row rows[N_MEASURE], const options *o, double copy, double count) {
    show(&rows[LOGITS], o, copy);
    for (int i = 0; i < 2 * N_SAMPLER; i++) show(&rows[GENERATE + i], o, copy);
    for (int i = 0; i < o->n_deep; i++) show(&rows[DEEP + i], o, copy);
    for (int i = 0; i < o->n_deep; i++) show(&rows[PROMPT + i], o, copy);
    show(&rows[PREFILL], o, copy);
    printf("%-44s %10.1f TFLOP/s of matrix products\n", "", 2e-12 * median(rows[PREFILL].rate, o->n_round) * count);
}

int main(int argc, char **argv) {
    static const struct argp_option known[] = {{"decode", 'n', "N", 0, "tokens decoded one by one, a round (64)", 0},
                                               {"prefill", 'p', "N", 0, "tokens of a prompt (512)", 0},
                                               {"deep", 'd', "N,N,…", 0, "decode after N tokens too (2048; 0: not)", 0},
                                               {"rounds", 'r', "N", 0, "rounds (7)", 0},
                                               {"numerics", 'N', "exact|q8act|fast", 0, "those beside exact ones", 0},
                                               {"cache-type", 'c', "f32|f16", 0, "of exact K and V (f32)", 0},
                                               {"ablate", 'a', NULL, 0, "the decode step without its parts", 0},
                                               {0}};
    static const struct argp parser = {known, parse, "MODEL.gguf", "Tokens per second of the GPU engine.", 0, 0, 0};
    options o = {.n_decode = 64, .n_prefill = 512, .deep = {2048}, .n_deep = 1, .n_round = 7};
    argp_parse(&parser, argc, argv, 0, NULL, &o);

    fd_error err = {0};
    fd_gguf *gguf;
    fd_graph *graph;
    open_model_or_skip(o.path, &gguf, &graph);
    if (o.cache) must(fd_graph_set_kv_types(graph, o.cache, &err), &err);
    int n_ctx = (o.n_deep > 0 ? o.deep[o.n_deep - 1] : 0) + o.n_decode + WARM + 1;
    if (n_ctx < o.n_prefill) n_ctx = o.n_prefill;

    fd_exec *exec[N_VARIANT] = {0};
    int n_variant = o.ablate ? N_VARIANT : 1;
    void *from, *to;
    cuda(cudaMalloc(&from, COPY_BYTES)); /* CUDA itself has started before loading is timed */
    fd_engine_memory memory;
    must(fd_engine_memory_needed(graph, &(fd_engine_size){.n_ctx = n_ctx}, &memory, &err), &err);
    double set_up = 0;
    for (int v = 0; v < n_variant; v++) {
        fd_engine_options options_of = variants[v].options;
        options_of.n_ctx = n_ctx;
        double start = now();
        must(fd_engine_new(graph, &options_of, &exec[v], &err), &err);
        if (v == 0) set_up = now() - start;
    }
    fd_exec *other = NULL;
    if (o.beside != FD_NUMERICS_EXACT)
        must(fd_engine_new(graph, &(fd_engine_options){.n_ctx = n_ctx, .numerics = o.beside}, &other, &err), &err);
    cuda(cudaMalloc(&to, COPY_BYTES));
    cuda(cudaMemset(from, 0x5a, COPY_BYTES));
    gpu_clock clock = gpu_clock_on(NULL);
    float *logits = malloc(sizeof *logits * (size_t)graph->hparams.n_vocab);
    if (!logits) return 2;

    static row copies, exact_rows[N_MEASURE], other_rows[N_MEASURE], decode_rows[N_VARIANT];
    double weights = weight_bytes(graph);
    snprintf(copies.name, sizeof copies.name, "device-to-device copy, GB/s");
    name_rows(exact_rows, &o, "", weights, cache_row_bytes(graph, false));
    bool fast = o.beside == FD_NUMERICS_FAST; /* K and V in binary16 */
    name_rows(other_rows, &o, fast ? "fast: " : "q8act: ", weights, cache_row_bytes(graph, fast));
    for (int v = 0; v < n_variant; v++) {
        snprintf(decode_rows[v].name, sizeof decode_rows->name, "decode%s, tokens/s", variants[v].name);
        decode_rows[v].bytes = exact_rows[DECODE].bytes;
    }
    for (int round = -1; round < o.n_round; round++) { /* round -1 warms up */
        int at = round < 0 ? 0 : round;
        copies.rate[at] = gpu_copy_rate(&clock, from, to, COPY_BYTES, COPIES);
        for (int v = 0; v < n_variant; v++) decode_rows[v].rate[at] = decode(exec[v], &o);
        if (other) other_rows[DECODE].rate[at] = decode(other, &o);
        measure(exec[0], &o, logits, exact_rows, at);
        if (other) measure(other, &o, logits, other_rows, at);
        if (round < 0) continue;
        measure_deep(exec[0], &o, exact_rows, at);
        if (other) measure_deep(other, &o, other_rows, at);
    }

    double copy = median(copies.rate, o.n_round);
    printf("%s (%s), %s, exact; median of %d rounds [slowest – fastest]\n", exec[0]->device, exec[0]->driver, o.path,
           o.n_round);
    printf("%.3f GB of weights a token, %.1f kB of K and V a position; set up in %.2f s, %.1f GB/s of weights\n",
           1e-9 * weights, 1e-3 * cache_row_bytes(graph, false), set_up, 1e-9 * (double)memory.weights / set_up);
    for (int v = 0; v < n_variant; v++) show(&decode_rows[v], &o, copy);
    show_measures(exact_rows, &o, copy, weight_count(graph));
    if (other) {
        show(&other_rows[DECODE], &o, copy);
        show_measures(other_rows, &o, copy, weight_count(graph));
    }
    show(&copies, &o, copy);
    show_command(argc, argv);

    free(logits);
    gpu_clock_free(&clock);
    cuda(cudaFree(from));
    cuda(cudaFree(to));
    for (int v = 0; v < n_variant; v++) fd_exec_free(exec[v]);
    fd_exec_free(other);
    fd_graph_free(graph);
    fd_gguf_close(gguf);
    return 0;
}
