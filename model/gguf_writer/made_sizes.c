#include "model/gguf_writer/made_sizes.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *word, *key;
} names[FD_MADE_COUNT] = {
    [FD_MADE_LAYERS] = {"layers", "block_count"},        [FD_MADE_EMBD] = {"embd", "embedding_length"},
    [FD_MADE_HEADS] = {"heads", "attention.head_count"}, [FD_MADE_KV] = {"kv", "attention.head_count_kv"},
    [FD_MADE_FF] = {"ff", "feed_forward_length"},        [FD_MADE_CTX] = {"ctx", "context_length"},
    [FD_MADE_VOCAB] = {"vocab", "vocab_size"},           [FD_MADE_HEAD] = {"head", "attention.key_length"},
    [FD_MADE_INNER] = {"inner", "ssm.inner_size"},
};

bool fd_made_text(const char *list, const char *name, char *to, size_t size) {
    const size_t length = strlen(name);
    while (list && *list) {
        const size_t item = strcspn(list, " ");
        if (item > length && list[length] == '=' && memcmp(list, name, length) == 0) {
            snprintf(to, size, "%.*s", (int)(item - length - 1), list + length + 1);
            return true;
        }
        list += item;
        list += strspn(list, " ");
    }
    return false;
}

static int64_t common_divisor(int64_t a, int64_t b) {
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static int64_t join(char operation, int64_t a, int64_t b) {
    switch (operation) {
    case '*': return a * b;
    case '/': return b > 0 ? (a + b - 1) / b : 0;
    case '-': return a > b ? a - b : 0;
    default: return common_divisor(a, b);
    }
}

/* A number or a size's name of `length` characters. */
static bool read_term(const fd_made_sizes *sizes, const char *text, size_t length, int64_t *value, bool *named) {
    if (length > 0 && strspn(text, "0123456789") >= length) {
        *value = strtoll(text, NULL, 10);
        return true;
    }
    for (int i = 0; i < FD_MADE_COUNT; i++)
        if (strlen(names[i].word) == length && memcmp(names[i].word, text, length) == 0) {
            *value = sizes->n[i];
            return *named = true;
        }
    return false;
}

/* Up to a comma. False when it is none: "yarn", "1e-5". */
static bool compute(const fd_made_sizes *sizes, const char *text, size_t size, int64_t *value) {
    bool named = false;
    char operation = '&'; /* of 0 and the first term: the first term */
    *value = 0;
    for (size_t at = 0; at <= size;) {
        const size_t length = strcspn(text + at, "*/-&,");
        int64_t term;
        if (!read_term(sizes, text + at, at + length > size ? size - at : length, &term, &named)) return false;
        *value = join(operation, *value, term);
        operation = text[at + length];
        at += length + 1;
    }
    return named;
}

bool fd_made_value(const fd_made_sizes *sizes, const char *text, char *to, size_t size) {
    size_t used = 0;
    const char *at = text;
    int64_t n = 0, value;
    *to = '\0';
    while (true) {
        if (n > 0 && strcmp(at, "..") == 0) at = text;
        const size_t length = strcspn(at, ",");
        const char *comma = n > 0 ? "," : "";
        used += (size_t)(compute(sizes, at, length, &value)
                             ? snprintf(to + used, size - used, "%s%" PRId64, comma, value)
                             : snprintf(to + used, size - used, "%s%.*s", comma, (int)length, at));
        if (used >= size) return false;
        n++;
        const bool over_layers = strstr(at, ",..") != NULL;
        if (over_layers && n == sizes->n[FD_MADE_LAYERS])
            return n > 1 || (size_t)snprintf(to + used, size - used, ",") < size - used; /* an array all the same */
        if (at[length] == '\0') return true;
        at += length + 1;
    }
}

/* Largest item of a list; false where it says nothing of a size, as a layer's pattern of its own does. */
static bool number_of(const fd_made_sizes *sizes, const char *text, int64_t *n) {
    char value[256];
    if (strstr(text, "..") || !fd_made_value(sizes, text, value, sizeof value)) return false;
    char *end;
    *n = strtoll(value, &end, 10);
    return *value && !*end;
}

fd_made_sizes fd_made_sizes_of(const fd_made_model *what, const fd_arch *arch) {
    const int64_t asked[FD_MADE_COUNT] = {
        what->n_layer, what->n_embd, what->n_head, what->n_head_kv ? what->n_head_kv : what->n_head,
        what->n_ff,    what->n_ctx,  what->n_vocab};
    fd_made_sizes s = {{2, 256, 4, 2, 512, 512, 320}};
    for (int i = 0; i < FD_MADE_COUNT; i++) {
        char text[256];
        bool found = false;
        if (i == FD_MADE_HEAD) s.n[i] = s.n[FD_MADE_HEADS] > 0 ? s.n[FD_MADE_EMBD] / s.n[FD_MADE_HEADS] : 0;
        for (size_t k = 0; k < sizeof what->keys / sizeof *what->keys && !found; k++)
            found = fd_made_text(what->keys[k], names[i].key, text, sizeof text) && number_of(&s, text, &s.n[i]);
        if (!found && asked[i] > 0)
            s.n[i] = asked[i];
        else if (!found && fd_made_text(arch->made_keys, names[i].key, text, sizeof text))
            number_of(&s, text, &s.n[i]);
    }
    return s;
}
