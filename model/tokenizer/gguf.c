/* A tokenizer from a GGUF's tokenizer.ggml.* keys, with the defaults llama.cpp gives to missing ones. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "model/tokenizer/internal.h"

#define KEY(name) "tokenizer.ggml." name

/* A string value as a C string of at most size - 1 bytes; "" when the key is missing. */
static fd_code get_text(const fd_gguf *gguf, const char *key, char *to, size_t size, fd_error *err) {
    fd_string text;
    FD_TRY(fd_gguf_get_string(gguf, key, &text, err));
    size_t n = text.size < size ? text.size : size - 1;
    if (n) memcpy(to, text.data, n);
    to[n] = '\0';
    return FD_OK;
}

/* A token id. Writers put 2^32 - 1 (or -1) where a model has none; an id past the vocabulary counts as the fallback. */
static fd_code get_id(const fd_gguf *gguf, const char *key, int32_t n_token, int32_t fallback, int32_t *id,
                      fd_error *err) {
    int64_t value;
    FD_TRY(fd_gguf_get_i64(gguf, key, fallback, &value, err));
    bool none = value == -1 || value == UINT32_MAX;
    *id = none ? -1 : value >= 0 && value < n_token ? (int32_t)value : fallback < n_token ? fallback : -1;
    return FD_OK;
}

/* Array `key` of `n_expected` items (any number when that is negative), or NULL when it is missing. */
static fd_code get_array(const fd_gguf *gguf, const char *key, int64_t n_expected, const fd_gguf_kv **out,
                         fd_error *err) {
    *out = fd_gguf_find(gguf, key);
    if (!*out) return FD_OK;
    if ((*out)->type != FD_GGUF_ARRAY) return fd_fail(err, FD_ERR_INPUT, "%s: found a scalar, expected an array", key);
    if (n_expected < 0 ? (*out)->count > INT32_MAX / 8 : (*out)->count != (uint64_t)n_expected)
        return fd_fail(err, FD_ERR_INPUT, "%s: found %llu items, expected %lld", key, (unsigned long long)(*out)->count,
                       (long long)(n_expected < 0 ? INT32_MAX / 8 : n_expected));
    return FD_OK;
}

static fd_code get_strings(const fd_gguf_kv *kv, const char *key, fd_string **out, fd_error *err) {
    if (kv->item_type != FD_GGUF_STRING) return fd_fail(err, FD_ERR_INPUT, "%s: found numbers, expected strings", key);
    *out = malloc((kv->count + 1) * sizeof **out);
    if (!*out) return fd_fail(err, FD_ERR_MEMORY, "%s: no memory for %llu items", key, (unsigned long long)kv->count);
    size_t cursor = 0;
    for (uint64_t i = 0; i < kv->count; i++)
        if (!fd_gguf_next_string(kv, &cursor, &(*out)[i]))
            return fd_fail(err, FD_ERR_INPUT, "%s: found %llu strings, expected %llu", key, (unsigned long long)i,
                           (unsigned long long)kv->count);
    return FD_OK;
}

typedef struct tables { /* what fd_vocab borrows */
    char model[32], pre[65], name[256];
    const fd_tokenizer_kind *kind;
    fd_string *tokens, *merges;
    float *scores;
    int32_t *types;
} tables;

static fd_code read_tokens(const fd_gguf *gguf, tables *own, fd_vocab *vocab, fd_error *err) {
    const fd_gguf_kv *tokens, *scores, *types, *merges;
    FD_TRY(get_array(gguf, KEY("tokens"), -1, &tokens, err));
    if (!tokens)
        return fd_fail(err, FD_ERR_INPUT, "%s: found nothing, expected the vocabulary; use --tokens", KEY("tokens"));
    FD_TRY(get_strings(tokens, KEY("tokens"), &own->tokens, err));
    int64_t n = (int64_t)tokens->count;
    vocab->tokens = own->tokens;
    vocab->n_token = (int32_t)n;

    FD_TRY(get_array(gguf, KEY("scores"), n, &scores, err));
    FD_TRY(get_array(gguf, KEY("token_type"), n, &types, err));
    if (scores && !(vocab->scores = own->scores = malloc(((size_t)n + 1) * sizeof *own->scores)))
        return fd_fail(err, FD_ERR_MEMORY, "%s: no memory for %lld items", KEY("scores"), (long long)n);
    if (types && !(vocab->types = own->types = malloc(((size_t)n + 1) * sizeof *own->types)))
        return fd_fail(err, FD_ERR_MEMORY, "%s: no memory for %lld items", KEY("token_type"), (long long)n);
    for (int64_t i = 0; i < n; i++) {
        double score;
        int64_t type;
        if (scores && !fd_gguf_item_f64(scores, (uint64_t)i, &score))
            return fd_fail(err, FD_ERR_INPUT, "%s: found another type, expected f32", KEY("scores"));
        if (types && (!fd_gguf_item_i64(types, (uint64_t)i, &type) || type < 0 || type > FD_TOKEN_BYTE))
            return fd_fail(err, FD_ERR_INPUT, "%s: token %lld: expected a type from 0 to %d", KEY("token_type"),
                           (long long)i, FD_TOKEN_BYTE);
        if (scores) own->scores[i] = (float)score;
        if (types) own->types[i] = (int32_t)type;
    }
    if (!own->kind->has_merges) return FD_OK;
    FD_TRY(get_array(gguf, KEY("merges"), -1, &merges, err));
    if (!merges)
        return fd_fail(err, FD_ERR_INPUT, "%s: found nothing, expected the merges of a %s tokenizer", KEY("merges"),
                       own->model);
    FD_TRY(get_strings(merges, KEY("merges"), &own->merges, err));
    vocab->merges = own->merges;
    vocab->n_merge = (int64_t)merges->count;
    return FD_OK;
}

static fd_code read_flags(const fd_gguf *gguf, const tables *own, fd_vocab *vocab, fd_error *err) {
    const fd_tokenizer_kind *kind = own->kind;
    const char *bos_key =
        kind->bos_key && !fd_gguf_find(gguf, KEY("bos_token_id")) ? kind->bos_key : KEY("bos_token_id");
    FD_TRY(get_id(gguf, bos_key, vocab->n_token, kind->bos, &vocab->bos, err));
    const char *eos_key = kind->eos_key && fd_gguf_find(gguf, kind->eos_key) ? kind->eos_key : KEY("eos_token_id");
    FD_TRY(get_id(gguf, eos_key, vocab->n_token, kind->eos, &vocab->eos, err));
    FD_TRY(get_id(gguf, KEY("unknown_token_id"), vocab->n_token, kind->unk, &vocab->unk, err));
    unsigned flags = kind->has_merges ? fd_pre_flags(kind->pre ? kind->pre : own->pre) : 0;
    bool adds_bos = vocab->bos >= 0 && (kind->adds_bos || flags & FD_PRE_ADDS_BOS);
    FD_TRY(fd_gguf_get_bool(gguf, KEY("add_bos_token"), adds_bos, &vocab->add_bos, err));
    if (flags & FD_PRE_ALWAYS_ADDS_BOS) vocab->add_bos = vocab->bos >= 0;
    FD_TRY(fd_gguf_get_bool(gguf, KEY("add_eos_token"), kind->adds_eos && vocab->eos >= 0, &vocab->add_eos, err));
    FD_TRY(fd_gguf_get_bool(gguf, KEY("normalizer.lowercase"), true, &vocab->lowercase, err));
    FD_TRY(fd_gguf_get_bool(gguf, KEY("normalizer.strip_accents"), vocab->lowercase, &vocab->strip_accents, err));
    FD_TRY(fd_gguf_get_bool(gguf, KEY("add_space_prefix"), kind->adds_space, &vocab->add_space_prefix, err));
    /* No key says that white space after a special token is dropped: phi-3 does it, and is known by its name only. */
    vocab->strip_after_special = strcasestr(own->name, "phi-3") || strcasestr(own->name, "phi3");
    return FD_OK;
}

static fd_code read_all(const fd_gguf *gguf, tables *own, fd_tokenizer **out, fd_error *err) {
    FD_TRY(get_text(gguf, KEY("model"), own->model, sizeof own->model, err));
    FD_TRY(get_text(gguf, KEY("pre"), own->pre, sizeof own->pre, err));
    FD_TRY(get_text(gguf, "general.name", own->name, sizeof own->name, err));
    if (!own->model[0] || strcmp(own->model, "no_vocab") == 0 || strcmp(own->model, "none") == 0)
        return fd_fail(err, FD_ERR_INPUT,
                       "%s: found %s, expected " FD_TOKENIZER_MODELS ": the file has no tokenizer; use --tokens",
                       KEY("model"), own->model[0] ? own->model : "nothing");
    own->kind = fd_tokenizer_kind_find(own->model);
    if (!own->kind)
        return fd_fail(err, FD_ERR_UNSUPPORTED, "%s: found \"%s\", expected " FD_TOKENIZER_MODELS "; use --tokens",
                       KEY("model"), own->model);
    fd_vocab vocab = {.model = own->model, .pre = own->pre};
    FD_TRY(read_tokens(gguf, own, &vocab, err));
    FD_TRY(read_flags(gguf, own, &vocab, err));
    fd_tokenizer *tokenizer;
    FD_TRY(fd_tokenizer_from_vocab(&vocab, &tokenizer, err));
    static const char *const END_KEYS[] = {KEY("eot_token_id"), KEY("eom_token_id")};
    for (int i = 0; i < 2; i++) {
        int32_t id;
        fd_code code = get_id(gguf, END_KEYS[i], vocab.n_token, -1, &id, err);
        if (code != FD_OK) {
            fd_tokenizer_free(tokenizer);
            return code;
        }
        if (id >= 0) tokenizer->is_end[id] = true;
    }
    *out = tokenizer;
    return FD_OK;
}

fd_code fd_tokenizer_from_gguf(const fd_gguf *gguf, fd_tokenizer **out, fd_error *err) {
    *out = NULL;
    tables own = {0};
    fd_code code = read_all(gguf, &own, out, err);
    free(own.tokens);
    free(own.merges);
    free(own.scores);
    free(own.types);
    return code;
}
