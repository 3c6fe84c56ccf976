/* WordPiece, BERT's: text is cleaned, words are cut at white space, punctuation and Chinese characters, and of each
 * word the longest token that begins it is taken, then the longest of the rest; a word that cannot be spelt so is the
 * unknown token. A file marks tokens that begin a word by U+2581, where BERT's own lists mark the others by ##. Source:
 * Devlin et al., BERT, 2018, and its tokenization.py. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer/internal.h"

#define SPACE_MARK "\xE2\x96\x81" /* U+2581 */
#define WS         "\\t-\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
/* A word of its own: punctuation, ASCII's symbols, Chinese characters. */
#define ALONE                                                                                                          \
    "\\p{P}$+<=>\\^`|~\\x{4E00}-\\x{9FFF}\\x{3400}-\\x{4DBF}\\x{20000}-\\x{2A6DF}\\x{2A700}-\\x{2B73F}"                \
    "\\x{2B740}-\\x{2B81F}\\x{2B920}-\\x{2CEAF}\\x{F900}-\\x{FAFF}\\x{2F800}-\\x{2FA1F}"

struct fd_wordpiece {
    pcre2_code *dropped, *word, *any;
    bool lowercase, strip_accents;
};

void fd_wordpiece_free(fd_wordpiece *w) {
    if (!w) return;
    pcre2_code_free(w->dropped);
    pcre2_code_free(w->word);
    pcre2_code_free(w->any);
    free(w);
}

static pcre2_code *compile(const char *pattern) {
    int code;
    PCRE2_SIZE at;
    return pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
}

fd_code fd_wordpiece_build(fd_tokenizer *tokenizer, const fd_vocab *vocab, fd_error *err) {
    fd_wordpiece *w = tokenizer->wordpiece = calloc(1, sizeof *w);
    tokenizer->token_of_piece = malloc((size_t)vocab->n_token * sizeof *tokenizer->token_of_piece);
    if (!w || !tokenizer->token_of_piece)
        return fd_fail(err, FD_ERR_MEMORY, "tokenizer: no memory for %d tokens", vocab->n_token);
    w->lowercase = vocab->lowercase;
    w->strip_accents = vocab->strip_accents;
    w->dropped = compile(w->strip_accents ? "(?![" WS "])[\\p{C}\\x{FFFD}\\p{Mn}]+" : "(?![" WS "])[\\p{C}\\x{FFFD}]+");
    w->word = compile("[" ALONE "]|[^" WS ALONE "]+");
    w->any = compile("(?s).+");
    if (!w->dropped || !w->word || !w->any) return fd_fail(err, FD_ERR_MEMORY, "tokenizer: no memory for its patterns");
    if (vocab->unk < 0)
        return fd_fail(err, FD_ERR_INPUT, "tokenizer.ggml.unknown_token_id: found none, expected one for %s",
                       tokenizer->kind->model);
    size_t at = 0;
    for (int32_t token = 0; token < vocab->n_token; token++) {
        fd_string text = vocab->tokens[token];
        int32_t piece;
        tokenizer->starts[token] = at;
        bool begins = text.size >= 3 && memcmp(text.data, SPACE_MARK, 3) == 0;
        if (begins) tokenizer->bytes[at++] = ' ';
        size_t rest = text.size - (begins ? 3 : 0);
        if (rest) memcpy(tokenizer->bytes + at, text.data + text.size - rest, rest);
        at += rest;
        if (text.size == 0) continue;
        FD_TRY(fd_piece_map_add(&tokenizer->pieces, text.data, text.size, &piece, err));
        tokenizer->token_of_piece[piece] = token;
        fd_note_longest(tokenizer, text);
    }
    tokenizer->starts[vocab->n_token] = at;
    return FD_OK;
}

static size_t put_utf8(uint32_t c, char *to) {
    if (c < 0x80) return to[0] = (char)c, 1;
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const uint8_t lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = n; i-- > 1; c >>= 6) to[i] = (char)(0x80 | (c & 0x3F));
    to[0] = (char)(lead[n] | c);
    return n;
}

static uint32_t take_utf8(const char *s, size_t n) {
    const uint8_t *b = (const uint8_t *)s;
    if (n == 1) return b[0];
    uint32_t c = b[0] & (n == 2 ? 0x1F : n == 3 ? 0x0F : 0x07);
    for (size_t i = 1; i < n; i++) c = c << 6 | (b[i] & 0x3F);
    return c;
}

typedef struct letter_pair {
    uint32_t letter, base;
} letter_pair;
static const letter_pair base_letters[] = {
#include "model/tokenizer/base_letters.def"
};
enum { N_PAIR = sizeof base_letters / sizeof *base_letters };

/* What the character is made of, without marks; at most 12 bytes. */
static size_t put_base(uint32_t c, char *to) {
    size_t low = 0, high = N_PAIR, n = 0;
    if (c >= 0xAC00 && c < 0xAC00 + 11172) { /* Hangul: 21 vowels of 28 endings each (Unicode, 3.12) */
        c -= 0xAC00;
        n += put_utf8(0x1100 + c / 588, to);
        n += put_utf8(0x1161 + c % 588 / 28, to + n);
        return c % 28 ? n + put_utf8(0x11A7 + c % 28, to + n) : n;
    }
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (base_letters[middle].letter < c)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == N_PAIR || base_letters[low].letter != c) return put_utf8(c, to);
    for (; low < N_PAIR && base_letters[low].letter == c; low++) n += put_utf8(base_letters[low].base, to + n);
    return n;
}

/* `from` with every match of the pattern replaced; *size follows. FD_ERR_MEMORY alone: both texts are valid. */
static fd_code replace(const pcre2_code *code, const char *with, char *from, char *to, size_t *size, size_t room,
                       fd_error *err) {
    PCRE2_SIZE n = room;
    int result = pcre2_substitute(code, (PCRE2_SPTR)from, *size, 0, PCRE2_SUBSTITUTE_GLOBAL | PCRE2_SUBSTITUTE_EXTENDED,
                                  NULL, NULL, (PCRE2_SPTR)with, PCRE2_ZERO_TERMINATED, (PCRE2_UCHAR *)to, &n);
    if (result < 0) return fd_fail(err, FD_ERR_MEMORY, "tokenizer: %zu bytes of text: PCRE2 says %d", *size, result);
    *size = n;
    return FD_OK;
}

/* Into `clean`, with `scratch` of the same room. */
static fd_code clean_text(const fd_wordpiece *w, const char *text, size_t size, char *clean, char *scratch, size_t room,
                          size_t *n_clean, fd_error *err) {
    size_t n = 0;
    for (size_t i = 0, k; i < size; i += k ? k : 1) {
        k = fd_utf8_length(text + i, size - i);
        if (k == 0 || text[i] == '\0') continue;
        uint32_t c = take_utf8(text + i, k);
        n += w->strip_accents ? put_base(c, scratch + n) : put_utf8(c, scratch + n);
    }
    FD_TRY(replace(w->dropped, "", scratch, clean, &n, room, err));
    if (w->lowercase) {
        memcpy(scratch, clean, n);
        FD_TRY(replace(w->any, "\\L$0", scratch, clean, &n, room, err));
    }
    *n_clean = n;
    return FD_OK;
}

/* `marked`: the mark, then the word. */
static fd_code encode_word(const fd_tokenizer *tokenizer, const char *marked, size_t size, fd_ids *ids, fd_error *err) {
    const int32_t before = ids->n;
    for (size_t at = 0, n; at < size; at += n) {
        int32_t piece = fd_longest_piece(tokenizer, marked + at, size - at, &n);
        if (piece < 0) {
            ids->n = before;
            return fd_ids_push(ids, tokenizer->unk, err);
        }
        FD_TRY(fd_ids_push(ids, tokenizer->token_of_piece[piece], err));
    }
    return FD_OK;
}

static fd_code encode_words(const fd_tokenizer *tokenizer, const char *text, size_t size, char *marked, fd_ids *ids,
                            fd_error *err) {
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    fd_code code = match ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "tokenizer: no memory for words");
    memcpy(marked, SPACE_MARK, 3);
    for (size_t at = 0; code == FD_OK && at < size;) {
        int found =
            pcre2_match(tokenizer->wordpiece->word, (PCRE2_SPTR)text, size, at, PCRE2_NO_UTF_CHECK, match, NULL);
        if (found < 0) break; /* white space alone is left */
        const PCRE2_SIZE *place = pcre2_get_ovector_pointer(match);
        memcpy(marked + 3, text + place[0], place[1] - place[0]);
        code = encode_word(tokenizer, marked, place[1] - place[0] + 3, ids, err);
        at = place[1];
    }
    pcre2_match_data_free(match);
    return code;
}

fd_code fd_wordpiece_encode(const fd_tokenizer *tokenizer, const char *text, size_t size, bool after_special,
                            fd_merge *merge, fd_ids *ids, fd_error *err) {
    (void)after_special, (void)merge;
    const size_t room = 4 * size + 64; /* a character becomes at most three of three bytes, from three */
    char *clean = malloc(3 * room), *scratch = clean + room, *marked = scratch + room;
    size_t n = 0;
    if (!clean) return fd_fail(err, FD_ERR_MEMORY, "tokenizer: no memory for %zu bytes of text", 3 * room);
    fd_code code = clean_text(tokenizer->wordpiece, text, size, clean, scratch, room, &n, err);
    if (code == FD_OK) code = encode_words(tokenizer, clean, n, marked, ids, err);
    free(clean);
    return code;
}
