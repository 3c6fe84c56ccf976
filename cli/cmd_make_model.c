/* firstdiff make-model: a model of random weights. */
#include "cli/arguments.h"
#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "model/gguf_writer/made_model.h"

/* Real dimensions. */
static const struct {
    const char *name;
    fd_made_model model;
} presets[] = {
    {"qwen2.5-0.5b",
     {.arch = "qwen2",
      .n_layer = 24,
      .n_embd = 896,
      .n_head = 14,
      .n_head_kv = 2,
      .n_ff = 4864,
      .n_vocab = 151936,
      .n_ctx = 32768,
      .tied = true,
      .keys = {[3] = "rope.freq_base=1e6 attention.layer_norm_rms_epsilon=1e-6"}}},
    {"tinyllama-1.1b",
     {.arch = "llama",
      .n_layer = 22,
      .n_embd = 2048,
      .n_head = 32,
      .n_head_kv = 4,
      .n_ff = 5632,
      .n_vocab = 32000,
      .n_ctx = 2048}},
    {"llama-8b",
     {.arch = "llama",
      .n_layer = 32,
      .n_embd = 4096,
      .n_head = 32,
      .n_head_kv = 8,
      .n_ff = 14336,
      .n_vocab = 128256,
      .n_ctx = 8192,
      .keys = {[3] = "rope.freq_base=5e5"}}},
    {"llama-70b",
     {.arch = "llama",
      .n_layer = 80,
      .n_embd = 8192,
      .n_head = 64,
      .n_head_kv = 8,
      .n_ff = 28672,
      .n_vocab = 128256,
      .n_ctx = 8192,
      .keys = {[3] = "rope.freq_base=5e5"}}},
};

typedef struct arguments {
    fd_made_model model;
    const char *out;
    char *set; /* owned: every --set, separated by spaces */
} arguments;

enum { KEY_LAYERS = 256, KEY_EMBD, KEY_HEADS, KEY_KV_HEADS, KEY_FF, KEY_VOCAB, KEY_CTX, KEY_TIED, KEY_SET, KEY_WITH };

static const struct argp_option options[] = {
    {"arch", 'a', "NAME", 0, "General.architecture: llama (default), qwen3moe, gemma3 …", 0},
    {"preset", 'p', "NAME", 0,
     "Real dimensions: qwen2.5-0.5b, tinyllama-1.1b, llama-8b or llama-70b; options after it change them", 0},
    {"seed", 's', "N", 0, "Another seed, other weights (default 0)", 0},
    {"type", 't', "TYPE", 0,
     "Of the matrices: F32 (default), F16, BF16, any quantised type of a GGUF (Q8_0, Q4_K, IQ2_XS, MXFP4 …) or Q4_K_M",
     0},
    {"output", 'o', "FILE", 0, "The GGUF to write", 0},
    {"layers", KEY_LAYERS, "N", 0, "Layers", 1},
    {"embd", KEY_EMBD, "N", 0, "Embedding length", 1},
    {"heads", KEY_HEADS, "N", 0, "Attention heads", 1},
    {"kv-heads", KEY_KV_HEADS, "N", 0, "K/V heads", 1},
    {"ff", KEY_FF, "N", 0, "Feed-forward length", 1},
    {"vocab", KEY_VOCAB, "N", 0, "Tokens", 1},
    {"ctx", KEY_CTX, "N", 0, "Trained context length", 1},
    {"tied", KEY_TIED, 0, 0, "The output uses the embedding's matrix", 1},
    {"set", KEY_SET, "KEY=VALUE", 0,
     "A key below the architecture's prefix: expert_count=8, rope.scaling.type=yarn; repeatable", 1},
    {"with", KEY_WITH, "NAMES", 0,
     "Optional weights that the file is to have, without blk.N.: \"attn_q.bias rope_freqs.weight\"", 1},
    {0},
};

static void take_preset(fd_made_model *m, const char *name, struct argp_state *state) {
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        if (strcmp(name, presets[i].name) == 0) {
            const fd_made_model asked = *m;
            *m = presets[i].model;
            m->seed = asked.seed;
            m->dtype = asked.dtype;
            m->mixed = asked.mixed;
            m->with = asked.with;
            return;
        }
    argp_error(state, "--preset %s: expected qwen2.5-0.5b, tinyllama-1.1b, llama-8b or llama-70b", name);
}

static void take_type(fd_made_model *m, const char *name, struct argp_state *state) {
    m->mixed = strcmp(name, "Q4_K_M") == 0;
    const int dtype = m->mixed ? FD_Q4_K : fd_dtype_parse(name);
    if (dtype < 0 || !fd_can_make((uint32_t)dtype))
        argp_error(state, "--type %s: expected F32, F16, BF16, a quantised type of a GGUF or Q4_K_M", name);
    m->dtype = (uint32_t)dtype;
}

static uint64_t seed_of(const char *text, struct argp_state *state) {
    char *end;
    const uint64_t seed = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end) argp_error(state, "--seed %s: expected a number", text);
    return seed;
}

static void take_key(arguments *a, const char *item, struct argp_state *state) {
    char *grown;
    if (!strchr(item, '=') || strchr(item, ' ')) argp_error(state, "--set %s: expected KEY=VALUE", item);
    if (asprintf(&grown, "%s%s%s", a->set ? a->set : "", a->set ? " " : "", item) < 0)
        argp_failure(state, FD_EXIT_UNUSABLE, 0, "out of memory");
    free(a->set);
    a->set = grown;
}

static error_t parse_make_model_option(int key, char *arg, struct argp_state *state) {
    arguments *a = state->input;
    fd_made_model *m = &a->model;
    switch (key) {
    case 'a': m->arch = arg; return 0;
    case 'p': take_preset(m, arg, state); return 0;
    case 's': m->seed = seed_of(arg, state); return 0;
    case 't': take_type(m, arg, state); return 0;
    case 'o': a->out = arg; return 0;
    case KEY_LAYERS: m->n_layer = fd_cli_integer(arg, 1, state); return 0;
    case KEY_EMBD: m->n_embd = fd_cli_integer(arg, 1, state); return 0;
    case KEY_HEADS: m->n_head = fd_cli_integer(arg, 1, state); return 0;
    case KEY_KV_HEADS: m->n_head_kv = fd_cli_integer(arg, 1, state); return 0;
    case KEY_FF: m->n_ff = fd_cli_integer(arg, 1, state); return 0;
    case KEY_VOCAB: m->n_vocab = fd_cli_integer(arg, 1, state); return 0;
    case KEY_CTX: m->n_ctx = fd_cli_integer(arg, 1, state); return 0;
    case KEY_TIED: m->tied = true; return 0;
    case KEY_SET: take_key(a, arg, state); return 0;
    case KEY_WITH: m->with = arg; return 0;
    case ARGP_KEY_ARG: argp_error(state, "unexpected \"%s\"; the file to write is given with -o", arg); return 0;
    case ARGP_KEY_END:
        if (!a->out) argp_error(state, "no file to write given (-o FILE)");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

const struct argp fd_cmd_make_model_argp = {
    options,
    parse_make_model_option,
    "-o FILE",
    "Writes a GGUF of random weights of any supported architecture: the same options give "
    "the same bytes on every machine.",
    NULL,
    NULL,
    NULL};

int fd_cmd_make_model(int argc, char **argv) {
    arguments args = {.model = {.arch = "llama"}};
    argp_parse(&fd_cmd_make_model_argp, argc, argv, 0, NULL, &args);
    args.model.keys[0] = args.set;
    fd_error err = {0};
    fd_code code = fd_made_model_write(&args.model, args.out, &err);
    free(args.set);
    return code == FD_OK ? FD_EXIT_SAME : fd_cli_fail("make-model", &err);
}
