/* Special tokens inside a text. The longest come first, each everywhere it occurs in what is still text: the order in
 * which llama.cpp looks for them, so that overlapping ones are cut alike. */
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer/internal.h"

static size_t text_size(const fd_tokenizer *tokenizer, int32_t token) {
    return tokenizer->starts[token + 1] - tokenizer->starts[token];
}

static int longest_first(const void *a, const void *b, void *user) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    size_t n = text_size(user, x), m = text_size(user, y);
    return n != m ? (n < m) - (n > m) : (x > y) - (x < y);
}

static bool is_special(const fd_tokenizer *tokenizer, int32_t token) {
    uint8_t type = tokenizer->types[token];
    return (type == FD_TOKEN_CONTROL || type == FD_TOKEN_UNKNOWN || type == FD_TOKEN_USER_DEFINED) &&
           text_size(tokenizer, token) > 0;
}

fd_code fd_list_special(fd_tokenizer *tokenizer, fd_error *err) {
    int32_t n = 0;
    for (int32_t token = 0; token < tokenizer->n_token; token++) n += is_special(tokenizer, token);
    if (n == 0) return FD_OK;
    tokenizer->special = malloc((size_t)n * sizeof *tokenizer->special);
    if (!tokenizer->special) return fd_fail(err, FD_ERR_MEMORY, "tokenizer: no memory for %d special tokens", n);
    for (int32_t token = 0; token < tokenizer->n_token; token++)
        if (is_special(tokenizer, token)) tokenizer->special[tokenizer->n_special++] = token;
    qsort_r(tokenizer->special, (size_t)n, sizeof *tokenizer->special, longest_first, tokenizer);
    return FD_OK;
}

static bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

typedef struct fragment_list {
    fd_fragment *data;
    size_t n, capacity;
} fragment_list;

static fd_code push(fragment_list *list, fd_fragment fragment, fd_error *err) {
    if (fragment.token < 0 && fragment.size == 0) return FD_OK;
    if (list->n == list->capacity) {
        size_t capacity = 2 * list->capacity + 16;
        fd_fragment *data = realloc(list->data, capacity * sizeof *data);
        if (!data) return fd_fail(err, FD_ERR_MEMORY, "tokenizer: no memory for %zu fragments", capacity);
        list->data = data;
        list->capacity = capacity;
    }
    list->data[list->n++] = fragment;
    return FD_OK;
}

/* Cuts one stretch of text at each occurrence of the token. */
static fd_code cut(const fd_tokenizer *tokenizer, const char *text, fd_fragment from, int32_t token, fragment_list *to,
                   fd_error *err) {
    const char *needle = tokenizer->bytes + tokenizer->starts[token];
    size_t needle_size = text_size(tokenizer, token), at = from.start, end = from.start + from.size;
    const char *hit;
    while (at < end && (hit = memmem(text + at, end - at, needle, needle_size))) {
        size_t start = (size_t)(hit - text);
        FD_TRY(push(to, (fd_fragment){-1, at, start - at}, err));
        FD_TRY(push(to, (fd_fragment){token, start, needle_size}, err));
        at = start + needle_size;
        if (tokenizer->drops_space && tokenizer->drops_space[token])
            while (at < end && is_space(text[at])) at++;
    }
    return push(to, (fd_fragment){-1, at, end - at}, err);
}

fd_code fd_find_special(const fd_tokenizer *tokenizer, const char *text, size_t size, bool parse_special,
                        fd_fragment **fragments, size_t *n_fragment, fd_error *err) {
    fragment_list list = {0};
    fd_code code = push(&list, (fd_fragment){-1, 0, size}, err);
    for (int32_t i = 0; i < tokenizer->n_special && code == FD_OK; i++) {
        int32_t token = tokenizer->special[i];
        if (!parse_special && tokenizer->types[token] != FD_TOKEN_USER_DEFINED) continue;
        if (!memmem(text, size, tokenizer->bytes + tokenizer->starts[token], text_size(tokenizer, token))) continue;
        fragment_list next = {0};
        for (size_t k = 0; k < list.n && code == FD_OK; k++)
            code = list.data[k].token >= 0 ? push(&next, list.data[k], err)
                                           : cut(tokenizer, text, list.data[k], token, &next, err);
        free(list.data);
        list = next;
    }
    if (code != FD_OK) {
        free(list.data);
        return code;
    }
    *fragments = list.data;
    *n_fragment = list.n;
    return FD_OK;
}
