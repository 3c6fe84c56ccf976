/* libFuzzer target for tokenizers: whatever vocabulary a file has, if it is accepted, any text becomes ids of it, and every
 * id bytes. The first byte says which kind, the second which flags; then lines, up to a NUL, of a token's type (1 to 6)
 * and text, or of "m" and a merge; what follows the NUL is the text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_TOKEN = 64 };

static void require(bool condition, const char *promise) {
    if (condition) return;
    fprintf(stderr, "fuzz_tokenizer: broken promise: %s\n", promise);
    abort();
}

#ifdef FD_FUZZ_PLANTED
static volatile char sink;
#endif

static const struct kind {
    const char *model, *pre;
} KINDS[] = {{"llama", NULL},          {"rwkv", NULL},     {"bert", NULL},        {"gemma4", NULL},
             {"gpt2", "sarvam-moe"},   {"gpt2", "afmoe"},  {"gpt2", "superbpe"},  {"gpt2", "tiny_aya"},
             {"gpt2", "deepseek-llm"}, {"gpt2", "gpt-4o"}, {"gpt2", "llama-bpe"}, {"gpt2", "default"}};
enum { N_KIND = sizeof KINDS / sizeof KINDS[0] };

typedef struct fuzz_vocab { /* what the vocabulary borrows */
    fd_string tokens[MAX_TOKEN], merges[MAX_TOKEN];
    int32_t types[MAX_TOKEN];
    float scores[MAX_TOKEN];
    fd_vocab vocab;
} fuzz_vocab;

/* How many bytes the vocabulary takes, with its NUL. */
static size_t read_vocab(const char *data, size_t size, uint8_t kind, uint8_t flags, fuzz_vocab *v) {
    v->vocab = (fd_vocab){.model = KINDS[kind % N_KIND].model,
                          .pre = KINDS[kind % N_KIND].pre,
                          .bos = -1,
                          .eos = -1,
                          .unk = flags & 1 ? 0 : -1,
                          .add_space_prefix = flags & 2,
                          .lowercase = flags & 4,
                          .strip_accents = flags & 8,
                          .strip_after_special = flags & 16,
                          .tokens = v->tokens,
                          .merges = v->merges,
                          .types = v->types,
                          .scores = v->scores};
    size_t at = 0;
    while (at < size && data[at]) {
        size_t end = at + 1;
        while (end < size && data[end] && data[end] != '\n') end++;
        const fd_string line = {data + at + 1, end - at - 1};
        int32_t n = v->vocab.n_token;
        if (data[at] == 'm' && v->vocab.n_merge < MAX_TOKEN) v->merges[v->vocab.n_merge++] = line;
        if (data[at] >= '1' && data[at] <= '6' && n < MAX_TOKEN) {
            v->tokens[n] = line;
            v->types[n] = data[at] - '0';
            v->scores[n] = (float)(n % 7);
            v->vocab.n_token++;
        }
        at = end < size && data[end] == '\n' ? end + 1 : end;
    }
    return at < size ? at + 1 : at;
}

static void check_ids(const fd_tokenizer *tokenizer, const char *text, size_t size, bool parse) {
    int32_t *ids, n;
    fd_error err = {0};
    fd_code code = fd_tokenize(tokenizer, text, size, false, parse, &ids, &n, &err);
    require(code == FD_OK || err.message[0], "a refusal says why");
    for (int32_t i = 0; code == FD_OK && i < n; i++) {
        char bytes[64];
        require(ids[i] >= 0 && ids[i] < fd_tokenizer_n_token(tokenizer), "ids are of the vocabulary");
        require(fd_token_bytes(tokenizer, ids[i], true, bytes, sizeof bytes) >= 0, "every token has bytes");
    }
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    char *copy = malloc(size); /* of the very size, so that a byte too far is seen */
    if (!copy) return 0;
    memcpy(copy, data, size);
    fuzz_vocab v;
    size_t at = 2 + read_vocab(copy + 2, size - 2, data[0], data[1], &v);
    fd_tokenizer *tokenizer;
    fd_error err = {0};
    fd_code code = fd_tokenizer_from_vocab(&v.vocab, &tokenizer, &err);
    require(code == FD_OK ? tokenizer != NULL : !tokenizer && err.message[0], "a refusal says why");
    for (int parse = 0; code == FD_OK && parse < 2; parse++) check_ids(tokenizer, copy + at, size - at, parse);
#ifdef FD_FUZZ_PLANTED
    sink = copy[size];
#endif
    fd_tokenizer_free(tokenizer);
    free(copy);
    return 0;
}
