#include "model/gguf_writer/made_keys.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf_writer/internal.h"
#include "model/gguf_writer/made_sizes.h"

typedef struct keys {
    const fd_arch *arch;
    fd_made_sizes sizes;
    fd_gguf_writer *writer;
    fd_error *err;
} keys;

static bool is_put(const keys *k, const char *full) {
    for (size_t i = 0; i < k->writer->n_kv; i++)
        if (strcmp(k->writer->key[i], full) == 0) return true;
    return false;
}

/* "16" is u32, "-1" i32, "0.5" f32, "true" a bool, "1,2,3" an array of i32; anything else a string. */
static fd_code put_text(const keys *k, const char *full, const char *text) {
    char *end;
    if (strcmp(text, "true") == 0 || strcmp(text, "false") == 0)
        return fd_gguf_put_bool(k->writer, full, text[0] == 't', k->err);
    if (*text && strspn(text, "0123456789") == strlen(text))
        return fd_gguf_put_u32(k->writer, full, (uint32_t)strtoul(text, NULL, 10), k->err);
    if (strchr(text, ',') && strspn(text, "-0123456789,") == strlen(text)) {
        int32_t items[4096];
        uint64_t n = 0;
        for (const char *at = text; *at && n < 4096; at = *end ? end + 1 : end)
            items[n++] = (int32_t)strtol(at, &end, 10);
        return fd_gguf_put_array(k->writer, full, FD_GGUF_I32, items, n, k->err);
    }
    float value = strtof(text, &end);
    if (*text && !*end) return fd_gguf_put_f32(k->writer, full, value, k->err);
    return fd_gguf_put_string(k->writer, full, text, k->err);
}

static fd_code put(const keys *k, const char *name, const char *text) {
    char full[384];
    snprintf(full, sizeof full, "%s.%s", k->arch->name, name);
    return is_put(k, full) ? FD_OK : put_text(k, full, text);
}

static fd_code put_number(const keys *k, const char *name, int64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, value);
    return value > 0 ? put(k, name, text) : FD_OK;
}

/* A size that is asked for. An architecture that has it as an array takes it into that, and one that has none refuses it. */
static fd_code put_asked(const keys *k, const char *name, int64_t value) {
    char own[256];
    const bool has_own = value > 0 && fd_made_text(k->arch->made_keys, name, own, sizeof own);
    if (has_own && strcmp(own, "0") == 0)
        return fd_fail(k->err, FD_ERR_INPUT, "%s.%s: %" PRId64 " is asked for, and %s has none", k->arch->name, name,
                       value, k->arch->name);
    return has_own && strchr(own, ',') ? FD_OK : put_number(k, name, value);
}

/* "NAME=VALUE NAME=VALUE"; with_sizes: values may be computed from sizes. */
static fd_code put_list(const keys *k, const char *list, bool with_sizes) {
    while (list && *list) {
        const int size = (int)strcspn(list, " ");
        char item[256], value[16384];
        snprintf(item, sizeof item, "%.*s", size, list);
        char *equals = strchr(item, '=');
        if (!equals || equals == item || size >= (int)sizeof item)
            return fd_fail(k->err, FD_ERR_INPUT, "\"%s\": expected KEY=VALUE", item);
        *equals = '\0';
        if (with_sizes && !fd_made_value(&k->sizes, equals + 1, value, sizeof value))
            return fd_fail(k->err, FD_ERR_INPUT, "key %s.%s: too many layers", k->arch->name, item);
        FD_TRY(put(k, item, with_sizes ? value : equals + 1));
        list += size;
        list += strspn(list, " ");
    }
    return FD_OK;
}

static const char chat_template[] =
    "{{ bos_token }}{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}";

/* Three control tokens, every byte, words, and a chat template. */
fd_code fd_made_vocabulary(int64_t n, fd_gguf_writer *writer, fd_error *err) {
    enum { N_CONTROL = 3, N_BYTE = 256, UNKNOWN = 2, CONTROL = 3, NORMAL = 1, BYTE = 6, SIZE = 32 };
    static const char *const control[N_CONTROL] = {"<unk>", "<s>", "</s>"};
    if (n < N_CONTROL + N_BYTE) return fd_gguf_put_string(writer, "tokenizer.ggml.model", "no_vocab", err);
    char(*text)[SIZE] = malloc((size_t)n * sizeof *text);
    fd_string *tokens = malloc((size_t)n * sizeof *tokens);
    float *scores = calloc((size_t)n, sizeof *scores);
    int32_t *types = malloc((size_t)n * sizeof *types);
    fd_code code = FD_OK;
    if (!text || !tokens || !scores || !types) code = fd_fail(err, FD_ERR_MEMORY, "out of memory");
    for (int64_t i = 0; i < n && code == FD_OK; i++) {
        if (i < N_CONTROL)
            snprintf(text[i], SIZE, "%s", control[i]);
        else if (i < N_CONTROL + N_BYTE)
            snprintf(text[i], SIZE, "<0x%02X>", (unsigned)(i - N_CONTROL));
        else if (i == N_CONTROL + N_BYTE)
            snprintf(text[i], SIZE, "\u2581"); /* a space */
        else
            snprintf(text[i], SIZE, "<word %" PRId64 ">", i);
        tokens[i] = (fd_string){text[i], strlen(text[i])};
        types[i] = i == 0 ? UNKNOWN : i < N_CONTROL ? CONTROL : i < N_CONTROL + N_BYTE ? BYTE : NORMAL;
    }
    const uint64_t count = (uint64_t)n;
    if (code == FD_OK) code = fd_gguf_put_string(writer, "tokenizer.ggml.model", "llama", err);
    if (code == FD_OK) code = fd_gguf_put_strings(writer, "tokenizer.ggml.tokens", tokens, count, err);
    if (code == FD_OK) code = fd_gguf_put_array(writer, "tokenizer.ggml.scores", FD_GGUF_F32, scores, count, err);
    if (code == FD_OK) code = fd_gguf_put_array(writer, "tokenizer.ggml.token_type", FD_GGUF_I32, types, count, err);
    if (code == FD_OK) code = fd_gguf_put_string(writer, "tokenizer.chat_template", chat_template, err);
    if (code == FD_OK) code = fd_gguf_put_u32(writer, "tokenizer.ggml.unknown_token_id", 0, err);
    if (code == FD_OK) code = fd_gguf_put_u32(writer, "tokenizer.ggml.bos_token_id", 1, err);
    if (code == FD_OK) code = fd_gguf_put_u32(writer, "tokenizer.ggml.eos_token_id", 2, err);
    free(text);
    free(tokens);
    free(scores);
    free(types);
    return code;
}

fd_code fd_made_keys(const fd_made_model *what, const fd_arch *arch, fd_gguf_writer *writer, fd_error *err) {
    const keys k = {arch, fd_made_sizes_of(what, arch), writer, err};
    char own[256], name[128];
    /* Without a word of K/V heads there is one to a head, or what the architecture has. */
    const bool own_kv = fd_made_text(arch->made_keys, "attention.head_count_kv", own, sizeof own);
    const struct {
        const char *name;
        int32_t asked, fallback;
    } sizes[] = {{"block_count", what->n_layer, 2},
                 {"embedding_length", what->n_embd, 256},
                 {"attention.head_count", what->n_head, 4},
                 {"attention.head_count_kv", what->n_head_kv || own_kv ? what->n_head_kv : what->n_head, 2},
                 {"feed_forward_length", what->n_ff, 512},
                 {"context_length", what->n_ctx, 512},
                 {"vocab_size", what->n_vocab, 320}};
    enum { N_SIZE = sizeof sizes / sizeof *sizes };
    FD_TRY(fd_gguf_put_string(writer, "general.architecture", arch->name, err));
    /* Without the architecture's name: engines look for some of these in it. */
    snprintf(name, sizeof name, "random weights, seed %" PRIu64, what->seed);
    FD_TRY(fd_gguf_put_string(writer, "general.name", name, err));
    if (fd_dtype_get(what->dtype)->is_quantised)
        FD_TRY(fd_gguf_put_u32(writer, "general.quantization_version", 2, err));
    for (size_t i = 0; i < sizeof what->keys / sizeof *what->keys; i++) FD_TRY(put_list(&k, what->keys[i], false));
    for (int i = 0; i < N_SIZE; i++) FD_TRY(put_asked(&k, sizes[i].name, sizes[i].asked));
    FD_TRY(put_list(&k, arch->made_keys, true));
    for (int i = 0; i < N_SIZE; i++) FD_TRY(put_number(&k, sizes[i].name, sizes[i].fallback));
    return put(&k, arch->norm == FD_NORM_RMS ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon",
               "1e-5");
}
