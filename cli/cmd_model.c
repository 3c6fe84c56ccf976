/* firstdiff model: what a GGUF holds, the graph it makes, and whether the file is sound. */
#include "cli/against/against.h"
#include "cli/arguments.h"
#include "cli/cli.h"

#include <string.h>

typedef struct arguments {
    const char *model, *against;
    bool verify, tensors, graph, metadata;
} arguments;

static const struct argp_option options[] = {
    {"verify", 'v', 0, 0,
     "Check sizes, offsets, finite values, all-zero tensors and trailing zero rows; exit 1 when a check fails", 0},
    {"against", 'a', "DIR", 0,
     "Compare the tensors with the .safetensors checkpoint in DIR that the file was made from; exit 1 when one differs",
     0},
    {"tensors", 'T', 0, 0, "List the tensors", 0},
    {"graph", 'g', 0, 0, "List the op graph", 0},
    {"metadata", 'm', 0, 0, "List the metadata", 0},
    {0},
};

static error_t parse_model_option(int key, char *arg, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case 'v': a->verify = true; return 0;
    case 'a': a->against = arg; return 0;
    case 'T': a->tensors = true; return 0;
    case 'g': a->graph = true; return 0;
    case 'm': a->metadata = true; return 0;
    default: return fd_cli_one_model(key, arg, state, &a->model);
    }
}

const struct argp fd_cmd_model_argp = {
    options,
    parse_model_option,
    "MODEL.gguf",
    "Shows a model's architecture, hyperparameters, tensors and op graph. Names tensors "
    "that the graph does not use and "
    "weights that it needs and the file lacks.\vWithout --tensors, --graph or --metadata, "
    "tensors and graph are listed.",
    NULL,
    NULL,
    NULL};

static void print_value(const fd_gguf_kv *kv) {
    static const char *const type_names[FD_GGUF_TYPE_COUNT] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                               "bool", "string", "array", "u64", "i64", "f64"};
    int64_t i;
    double f;
    fd_string s;
    size_t cursor = 0;
    if (kv->type == FD_GGUF_ARRAY) {
        printf("[%llu × %s]", (unsigned long long)kv->count, type_names[kv->item_type]);
    } else if (kv->type == FD_GGUF_STRING && fd_gguf_next_string(kv, &cursor, &s)) {
        printf("\"%.*s\"%s", (int)(s.size < 100 ? s.size : 100), s.data, s.size < 100 ? "" : "…");
    } else if (fd_gguf_item_i64(kv, 0, &i)) {
        printf("%lld", (long long)i);
    } else if (fd_gguf_item_f64(kv, 0, &f)) {
        printf("%g", f);
    }
}

static void print_metadata(const fd_gguf *gguf) {
    for (size_t i = 0; i < fd_gguf_n_kv(gguf); i++) {
        const fd_gguf_kv *kv = fd_gguf_kv_at(gguf, i);
        printf("  %-44.*s ", (int)kv->key.size, kv->key.data);
        print_value(kv);
        printf("\n");
    }
}

static void print_hparams(const fd_hparams *h) {
    printf("  layers %d   width %d   ffn %d   vocabulary %d   context %d\n", h->n_layer, h->n_embd, h->n_ff, h->n_vocab,
           h->n_ctx_train);
    printf("  heads %d   K/V heads %d   head width %d   rms eps %g\n", h->n_head, h->n_head_kv, h->head_dim,
           h->rms_eps);
    printf("  rope %s pairs, base %g, %d dims, scaling %s",
           h->rope.pairing == FD_ROPE_HALF ? "half-split" : "interleaved", h->rope.base, h->rope.n_rot,
           fd_rope_scaling_name(h->rope.scaling));
    if (h->rope.scaling != FD_ROPE_SCALING_NONE) printf(" factor %g", h->rope.factor);
    if (h->rope.attention_factor != 1) printf(", attention factor %g", h->rope.attention_factor);
    printf("\n");
    if (h->n_expert > 0)
        printf("  experts %d, %d for each token   expert ffn %d\n", h->n_expert, h->n_expert_used, h->n_ff_expert);
    if (h->window > 0) printf("  sliding window %d\n", h->window);
    if (h->attn_softcap > 0.0f || h->final_softcap > 0.0f)
        printf("  softcap of scores %g, of logits %g\n", h->attn_softcap, h->final_softcap);
}

static void print_tensors(const fd_gguf *gguf) {
    for (size_t i = 0; i < fd_gguf_n_tensor(gguf); i++) {
        const fd_gguf_tensor *t = fd_gguf_tensor_at(gguf, i);
        char shape[96];
        for (int32_t d = 0, at = 0; d < t->n_dim; d++)
            at += snprintf(shape + at, sizeof shape - (size_t)at, "%s%lld", d ? ", " : "", (long long)t->shape[d]);
        printf("  %-32s %-6s [%s]  %llu bytes\n", t->name, fd_dtype_get(t->dtype)->name, shape,
               (unsigned long long)t->bytes);
    }
}

static void print_graph(const fd_graph *graph) {
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *n = &graph->nodes[i];
        char shape[32];
        if (n->over_kv)
            snprintf(shape, sizeof shape, "[%d, positions]", n->shape[0]);
        else if (n->n_dim == 2)
            snprintf(shape, sizeof shape, "[%d, %d]", n->shape[0], n->shape[1]);
        else
            snprintf(shape, sizeof shape, "[%d]", n->shape[0]);
        printf("  %4d  %-22s %-14s %-16s", i, n->name, fd_op_name(n->op), shape);
        for (int k = 0; k < FD_MAX_INPUTS; k++)
            if (n->input[k] >= 0) printf(" %s", graph->nodes[n->input[k]].name);
        for (int k = 0; k < FD_MAX_WEIGHTS; k++)
            if (n->weight[k] >= 0) printf(" %s", graph->weights[n->weight[k]].name);
        printf("\n");
    }
}

static void print_problem(void *user, const char *message) {
    (void)user;
    printf("  PROBLEM %s\n", message);
}

static int verify_file(const fd_gguf *gguf, fd_error *err) {
    size_t n_problem;
    printf("verify\n");
    fd_code code = fd_gguf_verify(gguf, print_problem, NULL, &n_problem, err);
    if (code != FD_OK) return fd_cli_fail("model", err);
    if (n_problem == 0) printf("  sizes, offsets, values and rows are sound\n");
    return n_problem == 0 ? FD_EXIT_SAME : FD_EXIT_DIVERGED;
}

static void print_findings(const char *title, const fd_against_list *list) {
    for (size_t i = 0; i < list->n; i++) {
        const fd_against_finding *f = &list->items[i];
        printf("  %-8s %s%s%s: %s\n", title, f->tensor, *f->tensor && *f->checkpoint ? " = " : "", f->checkpoint,
               f->what);
    }
}

static int compare_with_checkpoint(const fd_gguf *gguf, const char *folder, fd_error *err) {
    fd_against_report r;
    printf("against %s\n", folder);
    fd_code code = fd_against_run(gguf, folder, &r, err);
    print_findings("DIFFERS", &r.wrong);
    print_findings("unknown", &r.unknown);
    print_findings("note", &r.notes);
    if (code == FD_OK) {
        printf("  %zu tensors compared, %zu of them agree but for rounding, %zu findings\n", r.n_tensor, r.n_rounded,
               r.wrong.n);
        if (*r.largest_tensor) printf("  largest error %.2g of the values, in %s\n", r.largest_error, r.largest_tensor);
    }
    int status = code != FD_OK     ? fd_cli_fail("model", err)
                 : r.wrong.n > 0   ? FD_EXIT_DIVERGED
                 : r.unknown.n > 0 ? FD_EXIT_INCOMPLETE
                                   : FD_EXIT_SAME;
    fd_against_free(&r);
    return status;
}

static int show_model(const arguments *a, const fd_gguf *gguf) {
    fd_error err = {0};
    fd_graph *graph;
    fd_weight_report report;
    bool all = !a->tensors && !a->graph && !a->metadata && !a->verify && !a->against;
    printf("%s\n  GGUF v%u, %zu tensors, %zu keys, %zu bytes\n", a->model, fd_gguf_version(gguf),
           fd_gguf_n_tensor(gguf), fd_gguf_n_kv(gguf), fd_gguf_file_size(gguf));
    if (a->metadata) {
        printf("metadata\n");
        print_metadata(gguf);
    }
    fd_code code = fd_graph_build(gguf, &graph, &report, &err);
    if (code == FD_OK) {
        printf("%s%s%s\n", graph->hparams.arch, graph->hparams.name[0] ? ": " : "", graph->hparams.name);
        print_hparams(&graph->hparams);
    }
    fd_error tokenizer_error = {0};
    fd_tokenizer *tokenizer;
    if (fd_tokenizer_from_gguf(gguf, &tokenizer, &tokenizer_error) == FD_OK) {
        printf("  tokenizer %s, %d tokens\n", fd_tokenizer_name(tokenizer), fd_tokenizer_n_token(tokenizer));
        fd_tokenizer_free(tokenizer);
    } else {
        printf("  tokenizer: %s\n", tokenizer_error.message);
    }
    if (all || a->tensors) {
        printf("tensors\n");
        print_tensors(gguf);
    }
    if (code == FD_OK && (all || a->graph)) {
        printf("graph\n");
        print_graph(graph);
    }
    if (report.n_missing > 0) printf("weights the graph needs and the file lacks (%d):\n", report.n_missing);
    for (int32_t i = 0; i < report.n_missing; i++) printf("  %s\n", report.missing[i].name);
    if (report.n_unused > 0) printf("tensors of the file that the graph does not use (%d):\n", report.n_unused);
    for (int32_t i = 0; i < report.n_unused; i++) printf("  %s\n", report.unused[i]);
    fd_weight_report_free(&report);
    if (code == FD_OK) fd_graph_free(graph);
    int status = code == FD_OK ? FD_EXIT_SAME : fd_cli_fail("model", &err);
    if (a->against) {
        int compared = compare_with_checkpoint(gguf, a->against, &err);
        status = status != FD_EXIT_SAME ? status : compared;
    }
    if (a->verify) {
        int verified = verify_file(gguf, &err);
        status = status != FD_EXIT_SAME ? status : verified;
    }
    return status;
}

int fd_cmd_model(int argc, char **argv) {
    arguments args = {0};
    argp_parse(&fd_cmd_model_argp, argc, argv, 0, NULL, &args);
    fd_error err = {0};
    fd_gguf *gguf;
    if (fd_gguf_open(args.model, &gguf, &err) != FD_OK) return fd_cli_fail("model", &err);
    int status = show_model(&args, gguf);
    fd_gguf_close(gguf);
    return status;
}
