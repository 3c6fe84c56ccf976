#include "model/tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer/internal.h"

static const fd_tokenizer_kind kinds[] = {
    {.model = "llama",
     .name = "llama (SentencePiece)",
     .build = fd_spm_build,
     .encode = fd_spm_encode,
     .bos = 1,
     .eos = 2,
     .unk = 0,
     .adds_bos = true,
     .adds_space = true},
    {.model = "gpt2",
     .name = "gpt2",
     .build = fd_bpe_build,
     .encode = fd_bpe_encode,
     .has_merges = true,
     .bos = -1,
     .eos = -1,
     .unk = -1},
    {.model = "gemma4",
     .name = "gemma4 (BPE of characters)",
     .pre = "gemma4",
     .build = fd_bpe_build,
     .encode = fd_bpe_encode,
     .has_merges = true,
     .bos = -1,
     .eos = -1,
     .unk = -1},
    {.model = "rwkv",
     .name = "rwkv (longest match)",
     .build = fd_rwkv_build,
     .encode = fd_rwkv_encode,
     .bos = -1,
     .eos = -1,
     .unk = -1},
    {.model = "bert",
     .name = "bert (WordPiece)",
     .build = fd_wordpiece_build,
     .encode = fd_wordpiece_encode,
     .bos = 101, /* of BERT's lists: [CLS], [SEP], [UNK] */
     .eos = 102,
     .unk = 100,
     .adds_bos = true,
     .adds_eos = true,
     .bos_key = "tokenizer.ggml.cls_token_id",
     .eos_key = "tokenizer.ggml.seperator_token_id"}, /* as the format spells it */
};

const fd_tokenizer_kind *fd_tokenizer_kind_find(const char *model) {
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i].model, model) == 0) return &kinds[i];
    return NULL;
}

static bool text_is(fd_string text, const char *expected) {
    return strlen(expected) == text.size && memcmp(text.data, expected, text.size) == 0;
}

static fd_code check_id(const fd_vocab *vocab, const char *what, int32_t id, fd_error *err) {
    if (id >= -1 && id < vocab->n_token) return FD_OK;
    return fd_fail(err, FD_ERR_INPUT, "tokenizer: %s token: found id %d, expected one below %d", what, id,
                   vocab->n_token);
}

/* Types, ends and flags; then the tables of the kind. */
static fd_code build(fd_tokenizer *tokenizer, const fd_vocab *vocab, fd_error *err) {
    size_t n = (size_t)vocab->n_token, n_byte = 0;
    for (size_t i = 0; i < n; i++) n_byte += vocab->tokens[i].size;
    tokenizer->types = malloc(n);
    tokenizer->is_end = calloc(n, sizeof *tokenizer->is_end);
    tokenizer->starts = malloc((n + 1) * sizeof *tokenizer->starts);
    tokenizer->bytes = malloc(n_byte + 1);
    if (!tokenizer->types || !tokenizer->is_end || !tokenizer->starts || !tokenizer->bytes)
        return fd_fail(err, FD_ERR_MEMORY, "tokenizer: no memory for %zu tokens of %zu bytes", n, n_byte);
    for (size_t i = 0; i < n; i++) {
        int32_t type = vocab->types ? vocab->types[i] : FD_TOKEN_NORMAL;
        if (type < 0 || type > FD_TOKEN_BYTE)
            return fd_fail(err, FD_ERR_INPUT, "tokenizer.ggml.token_type: token %zu: found %d, expected 0 to %d", i,
                           type, FD_TOKEN_BYTE);
        tokenizer->types[i] = (uint8_t)type;
    }
    fd_find_ends(tokenizer, vocab);
    FD_TRY(fd_piece_map_reserve(&tokenizer->pieces, vocab->n_token, n_byte, err));
    FD_TRY(tokenizer->kind->build(tokenizer, vocab, err));
    FD_TRY(fd_list_special(tokenizer, err));
    if (!vocab->strip_after_special) return FD_OK;

    tokenizer->drops_space = calloc(n, sizeof *tokenizer->drops_space);
    if (!tokenizer->drops_space) return fd_fail(err, FD_ERR_MEMORY, "tokenizer: no memory for %zu flags", n);
    for (int32_t i = 0; i < tokenizer->n_special; i++) {
        fd_string text = vocab->tokens[tokenizer->special[i]];
        tokenizer->drops_space[tokenizer->special[i]] =
            !text_is(text, "<unk>") && !text_is(text, "<s>") && !text_is(text, "<|endoftext|>");
    }
    return FD_OK;
}

fd_code fd_tokenizer_from_vocab(const fd_vocab *vocab, fd_tokenizer **out, fd_error *err) {
    *out = NULL;
    const fd_tokenizer_kind *kind = fd_tokenizer_kind_find(vocab->model);
    if (!kind)
        return fd_fail(err, FD_ERR_UNSUPPORTED, "tokenizer.ggml.model: found \"%.64s\", expected " FD_TOKENIZER_MODELS,
                       vocab->model);
    if (vocab->n_token <= 0)
        return fd_fail(err, FD_ERR_INPUT, "tokenizer.ggml.tokens: found %d items, expected at least 1", vocab->n_token);
    FD_TRY(check_id(vocab, "bos", vocab->bos, err));
    FD_TRY(check_id(vocab, "eos", vocab->eos, err));
    FD_TRY(check_id(vocab, "unknown", vocab->unk, err));
    if (vocab->add_bos && vocab->bos < 0)
        return fd_fail(err, FD_ERR_INPUT, "tokenizer: found add_bos_token without an id, expected bos_token_id");
    if (vocab->add_eos && vocab->eos < 0)
        return fd_fail(err, FD_ERR_INPUT, "tokenizer: found add_eos_token without an id, expected eos_token_id");

    fd_tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
    if (!tokenizer) return fd_fail(err, FD_ERR_MEMORY, "tokenizer: no memory");
    tokenizer->kind = kind;
    tokenizer->n_token = vocab->n_token;
    tokenizer->bos = vocab->bos;
    tokenizer->eos = vocab->eos;
    tokenizer->unk = vocab->unk;
    tokenizer->add_bos = vocab->add_bos;
    tokenizer->add_eos = vocab->add_eos;
    tokenizer->add_space_prefix = kind->adds_space && vocab->add_space_prefix;
    if (kind->has_merges && !kind->pre)
        snprintf(tokenizer->name, sizeof tokenizer->name, "%s / %.64s", kind->name,
                 vocab->pre && vocab->pre[0] ? vocab->pre : "default");
    else
        snprintf(tokenizer->name, sizeof tokenizer->name, "%s", kind->name);
    fd_code code = build(tokenizer, vocab, err);
    if (code != FD_OK) {
        fd_tokenizer_free(tokenizer);
        return code;
    }
    *out = tokenizer;
    return FD_OK;
}

void fd_tokenizer_free(fd_tokenizer *tokenizer) {
    if (!tokenizer) return;
    free(tokenizer->types);
    free(tokenizer->is_end);
    free(tokenizer->scores);
    free(tokenizer->bytes);
    free(tokenizer->starts);
    free(tokenizer->special);
    free(tokenizer->drops_space);
    fd_piece_map_free(&tokenizer->pieces);
    free(tokenizer->token_of_piece);
    fd_pre_free(tokenizer->pre);
    free(tokenizer->rules);
    fd_wordpiece_free(tokenizer->wordpiece);
    free(tokenizer);
}

int32_t fd_tokenizer_n_token(const fd_tokenizer *tokenizer) {
    return tokenizer->n_token;
}
int32_t fd_tokenizer_bos(const fd_tokenizer *tokenizer) {
    return tokenizer->bos;
}
int32_t fd_tokenizer_eos(const fd_tokenizer *tokenizer) {
    return tokenizer->eos;
}
const char *fd_tokenizer_name(const fd_tokenizer *tokenizer) {
    return tokenizer->name;
}

bool fd_tokenizer_is_end(const fd_tokenizer *tokenizer, int32_t token) {
    return token >= 0 && token < tokenizer->n_token && tokenizer->is_end[token];
}

/* SentencePiece puts a space before the text, and again before text that follows a special token. */
static fd_code encode(const fd_tokenizer *tokenizer, const char *text, const fd_fragment *fragments, size_t n_fragment,
                      fd_merge *merge, fd_ids *ids, fd_error *err) {
    bool after_special = true;
    for (size_t i = 0; i < n_fragment; i++) {
        const char *at = text + fragments[i].start;
        if (fragments[i].token >= 0)
            FD_TRY(fd_ids_push(ids, fragments[i].token, err));
        else
            FD_TRY(tokenizer->kind->encode(tokenizer, at, fragments[i].size, after_special, merge, ids, err));
        after_special = fragments[i].token >= 0;
    }
    return FD_OK;
}

fd_code fd_tokenize(const fd_tokenizer *tokenizer, const char *text, size_t size, bool add_special, bool parse_special,
                    int32_t **ids, int32_t *n_id, fd_error *err) {
    *ids = NULL;
    *n_id = 0;
    fd_fragment *fragments = NULL;
    size_t n_fragment = 0;
    FD_TRY(fd_find_special(tokenizer, text, size, parse_special, &fragments, &n_fragment, err));
    fd_ids list = {.data = malloc(64 * sizeof(int32_t)), .capacity = 64};
    fd_merge merge = {0};
    fd_code code = list.data ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "tokenizer: no memory");
    if (code == FD_OK && add_special && tokenizer->add_bos) code = fd_ids_push(&list, tokenizer->bos, err);
    if (code == FD_OK) code = encode(tokenizer, text, fragments, n_fragment, &merge, &list, err);
    if (code == FD_OK && add_special && tokenizer->add_eos) code = fd_ids_push(&list, tokenizer->eos, err);
    free(fragments);
    fd_merge_free(&merge);
    if (code != FD_OK) {
        free(list.data);
        return code;
    }
    *ids = list.data;
    *n_id = list.n;
    return FD_OK;
}

int32_t fd_token_bytes(const fd_tokenizer *tokenizer, int32_t token, bool special, char *to, int32_t capacity) {
    if (token < 0 || token >= tokenizer->n_token) return -1;
    uint8_t type = tokenizer->types[token];
    if (!special && (type == FD_TOKEN_CONTROL || type == FD_TOKEN_UNKNOWN)) return 0;
    size_t size = tokenizer->starts[token + 1] - tokenizer->starts[token];
    size_t n = capacity < 0 ? 0 : size < (size_t)capacity ? size : (size_t)capacity;
    if (n) memcpy(to, tokenizer->bytes + tokenizer->starts[token], n);
    return (int32_t)size;
}
