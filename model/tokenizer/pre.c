#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/tokenizer/pre.h"

#include <pcre2.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer/pre_table.h"

struct fd_pre {
    pcre2_code *code[FD_PRE_MAX_REGEX];
    int n_regex;
};

void fd_pre_free(fd_pre *pre) {
    if (!pre) return;
    for (int i = 0; i < pre->n_regex; i++) pcre2_code_free(pre->code[i]);
    free(pre);
}

fd_code fd_pre_new(const char *name, fd_pre **out, fd_error *err) {
    *out = NULL;
    const fd_pre_row *row;
    FD_TRY(fd_pre_row_of(name, &row, err));
    fd_pre *pre = calloc(1, sizeof *pre);
    if (!pre) return fd_fail(err, FD_ERR_MEMORY, "pre-tokeniser %s: no memory", name);
    for (; row->regex[pre->n_regex]; pre->n_regex++) {
        int code = 0;
        PCRE2_SIZE at = 0;
        pcre2_code *regex = pcre2_compile((PCRE2_SPTR)row->regex[pre->n_regex], PCRE2_ZERO_TERMINATED,
                                          PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY, &code, &at, NULL);
        if (!regex) {
            char text[128] = "";
            pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof text);
            fd_pre_free(pre);
            return fd_fail(err, FD_ERR_UNSUPPORTED, "pre-tokeniser %s: PCRE2 refuses its expression at %zu: %s", name,
                           at, text);
        }
        pcre2_jit_compile(regex,
                          PCRE2_JIT_COMPLETE); /* where there is no JIT, the interpreter gives the same matches */
        pre->code[pre->n_regex] = regex;
    }
    *out = pre;
    return FD_OK;
}

size_t fd_utf8_length(const char *data, size_t size) {
    const unsigned char *s = (const unsigned char *)data;
    if (s[0] < 0x80) return 1;
    size_t n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || size < n) return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if (s[0] == 0xe0 && s[1] < 0xa0) return 0; /* overlong                */
    if (s[0] == 0xed && s[1] > 0x9f) return 0; /* surrogates              */
    if (s[0] == 0xf0 && s[1] < 0x90) return 0; /* overlong                */
    if (s[0] == 0xf4 && s[1] > 0x8f) return 0; /* past U+10FFFF           */
    return n;
}

typedef struct ends_list {
    size_t *data;
    size_t n, capacity;
} ends_list;

static bool push_end(ends_list *list, size_t end) {
    if (list->n == list->capacity) {
        size_t capacity = 2 * list->capacity + 64;
        size_t *data = realloc(list->data, capacity * sizeof *data);
        if (!data) return false;
        list->data = data;
        list->capacity = capacity;
    }
    list->data[list->n++] = end;
    return true;
}

/* Cuts [start, end) into matches and what lies between them. Each piece is a subject of its own: a look-ahead does not
 * see past it. */
static fd_code split_piece(const pcre2_code *code, pcre2_match_data *match, pcre2_match_context *context,
                           const char *text, size_t start, size_t end, ends_list *to, fd_error *err) {
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(match);
    size_t size = end - start, done = 0;
    while (done < size) {
        int found = pcre2_match(code, (PCRE2_SPTR)(text + start), size, done, PCRE2_NO_UTF_CHECK, match, context);
        if (found == PCRE2_ERROR_NOMATCH) break;
        if (found < 0) {
            char message[128] = "";
            pcre2_get_error_message(found, (PCRE2_UCHAR *)message, sizeof message);
            return fd_fail(err, FD_ERR_INPUT, "text at byte %zu: pre-tokeniser: %s", start + done, message);
        }
        if (span[0] > done && !push_end(to, start + span[0])) goto no_memory;
        if (!push_end(to, start + span[1])) goto no_memory; /* no expression matches the empty string */
        done = span[1];
    }
    if (done == size || push_end(to, end)) return FD_OK;
no_memory:
    return fd_fail(err, FD_ERR_MEMORY, "pre-tokeniser: no memory for %zu pieces", to->n);
}

/* `text` is valid UTF-8. */
static fd_code split_valid(const fd_pre *pre, const char *text, size_t size, ends_list *list, fd_error *err) {
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    pcre2_jit_stack *stack = pcre2_jit_stack_create(32 << 10, 16 << 20, NULL); /* grows as a long piece needs it */
    fd_code code = FD_OK;
    if (!match || !context || !stack || (size && !push_end(list, size)))
        code = fd_fail(err, FD_ERR_MEMORY, "pre-tokeniser: no memory to match %zu bytes", size);
    else
        pcre2_jit_stack_assign(context, NULL, stack);
    for (int r = 0; r < pre->n_regex && code == FD_OK; r++) {
        ends_list next = {0};
        size_t start = 0;
        for (size_t i = 0; i < list->n && code == FD_OK; start = list->data[i++])
            code = split_piece(pre->code[r], match, context, text, start, list->data[i], &next, err);
        free(list->data);
        *list = next;
    }
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(match);
    return code;
}

fd_code fd_pre_split(const fd_pre *pre, const char *text, size_t size, size_t **ends, size_t *n_piece, fd_error *err) {
    *ends = NULL;
    *n_piece = 0;
    size_t n_bad = 0;
    for (size_t i = 0, n; i < size; i += n ? n : 1) n_bad += !(n = fd_utf8_length(text + i, size - i));
    char *stand_in = NULL; /* the text with U+FFFD, three bytes, for each bad byte */
    if (n_bad) {
        stand_in = malloc(size + 2 * n_bad);
        if (!stand_in) return fd_fail(err, FD_ERR_MEMORY, "pre-tokeniser: no memory for %zu bytes", size + 2 * n_bad);
        for (size_t i = 0, to = 0, n; i < size; i += n ? n : 1, to += n ? n : 3) {
            n = fd_utf8_length(text + i, size - i);
            memcpy(stand_in + to, n ? text + i : "\xEF\xBF\xBD", n ? n : 3);
        }
    }
    ends_list list = {0};
    fd_code code = split_valid(pre, n_bad ? stand_in : text, size + 2 * n_bad, &list, err);
    free(stand_in);
    if (code == FD_OK && !list.data && !push_end(&list, 0))
        code = fd_fail(err, FD_ERR_MEMORY, "pre-tokeniser: no memory");
    if (code != FD_OK) {
        free(list.data);
        return code;
    }
    if (size == 0) list.n = 0;
    /* Back to offsets in the text itself: pieces end between characters, in both. */
    for (size_t i = 0, at = 0, piece = 0, n; n_bad && i < size; i += n ? n : 1) {
        n = fd_utf8_length(text + i, size - i);
        at += n ? n : 3;
        if (list.data[piece] == at) list.data[piece++] = i + (n ? n : 1);
    }
    *ends = list.data;
    *n_piece = list.n;
    return FD_OK;
}
