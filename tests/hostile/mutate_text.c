#include "mutate_text.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 256 << 10, MAX_WORDS = 16384 };

uint64_t mutate_next(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

static const char *const numbers[] = {"0",
                                      "-1",
                                      "1",
                                      "2147483647",
                                      "2147483648",
                                      "4294967296",
                                      "4294967295",
                                      "-2147483649",
                                      "9223372036854775807",
                                      "18446744073709551616",
                                      "1e308",
                                      "1e999",
                                      "nan",
                                      "-0",
                                      "0x10",
                                      "1048577",
                                      "00",
                                      "3.5"};
static const char *const pieces[] = {"{",        "}",
                                     "[",        "]",
                                     "\"",       "'",
                                     ",",        ":",
                                     "*",        "**",
                                     "->",       "\n",
                                     "\r\n",     "\t",
                                     "\\",       "\\u0000",
                                     "\\ud800",  "(",
                                     ")",        "#",
                                     "=",        "null",
                                     "true",     "F32",
                                     "BF16",     "<f4",
                                     ">f8",      "|O",
                                     "-1",       "{layer}",
                                     "..",       "/",
                                     "\x1b[31m", "\xe2\x80\xae",
                                     "\xc2\x9b", "\xff",
                                     "\xc3",     "skip ",
                                     "axis=",    "tokens:"};

typedef struct word {
    size_t at, n;
} word;

static bool is_word(uint8_t c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '.' ||
           c == '-';
}

static size_t split(const uint8_t *text, size_t size, word *words) {
    size_t n = 0;
    for (size_t at = 0; at < size && n < MAX_WORDS; n++) {
        size_t end = at + 1;
        while (end < size && is_word(text[at]) && is_word(text[end])) end++;
        words[n] = (word){at, end - at};
        at = end;
    }
    return n;
}

/* text [*size] with [at, at + n) replaced by `times` times what stands there; what gets too long stays as it is. */
static uint8_t *splice(uint8_t *text, size_t *size, word gone, const void *put, size_t n, size_t times) {
    size_t grown = *size - gone.n + n * times, tail = gone.at + gone.n;
    if (grown > MOST) return text;
    uint8_t *out = malloc(grown + 1);
    memcpy(out, text, gone.at);
    for (size_t i = 0; i < times; i++) memcpy(out + gone.at + i * n, put, n);
    memcpy(out + gone.at + n * times, text + tail, *size - tail);
    *size = grown;
    free(text);
    return out;
}

static uint8_t *change_once(uint8_t *text, size_t *size, const word *words, size_t n_word, uint64_t *state) {
    static const size_t often[] = {2, 3, 17, 300, 4000};
    word w = words[mutate_next(state) % n_word], other = words[mutate_next(state) % n_word];
    const char *piece = pieces[mutate_next(state) % (sizeof pieces / sizeof *pieces)];
    const char *number = numbers[mutate_next(state) % (sizeof numbers / sizeof *numbers)];
    uint8_t copy[256];
    size_t span = w.at < other.at + other.n ? other.at + other.n - w.at : w.n, n_copy = other.n < 256 ? other.n : 256;
    memcpy(copy, text + other.at, n_copy);
    switch (mutate_next(state) % 8) {
    case 0: return splice(text, size, w, piece, strlen(piece), 1);
    case 1: return splice(text, size, (word){w.at, 0}, piece, strlen(piece), 1);
    case 2: return splice(text, size, w, copy, n_copy, 1);
    case 3: return splice(text, size, w, copy, n_copy, often[mutate_next(state) % 5]);
    case 4: return splice(text, size, (word){w.at, span < 64 ? span : w.n}, "", 0, 1);
    case 5: text[w.at] ^= (uint8_t)(1 << mutate_next(state) % 8); return text;
    case 6: return splice(text, size, (word){w.at, 0}, piece, strlen(piece), often[mutate_next(state) % 5]);
    default: /* a number where one stands, if that is soon found */
        for (int i = 0; i < 32 && (text[w.at] < '0' || text[w.at] > '9'); i++) w = words[mutate_next(state) % n_word];
        return splice(text, size, w, number, strlen(number), 1);
    }
}

uint8_t *mutate_text(const uint8_t *text, size_t size, uint64_t *state, size_t *n) {
    uint8_t *out = malloc(size + 1);
    word *words = malloc(MAX_WORDS * sizeof *words);
    *n = size;
    memcpy(out, text, size);
    for (uint64_t k = mutate_next(state) % 4 + 1; k > 0; k--) {
        size_t n_word = split(out, *n, words);
        if (n_word > 0) out = change_once(out, n, words, n_word, state);
    }
    free(words);
    return out;
}
