/* Pre-tokenisers alone: where each cuts. Pieces are written with a bar between them. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer/pre.h"

typedef struct split_case {
    const char *pre, *text, *pieces;
} split_case;

/* clang-format off */
static const split_case CASES[] = {
    /* qwen2: digits one by one; a letter run takes one leading character that is no letter, digit or line end */
    {"qwen2", "", ""},
    {"qwen2", "Hello world", "Hello| world"},
    {"qwen2", "12345", "1|2|3|4|5"},
    {"qwen2", "x2024 y", "x|2|0|2|4| y"},
    {"qwen2", " 12", " |1|2"},
    {"qwen2", "I'm HE'LL you'Ve", "I|'m| HE|'LL| you|'Ve"},
    {"qwen2", "(foo) [bar]", "(foo|)| [|bar|]"},
    {"qwen2", "a   b", "a|  | b"},
    {"qwen2", "a \n\n  b", "a| \n\n| | b"},
    {"qwen2", "end!!\n\nx", "end|!!\n\n|x"},
    {"qwen2", "   ", "   "},
    {"qwen2", "\tx\t\ty", "\tx|\t|\ty"},
    {"qwen2", "na\xC3\xAFve \xE4\xBD\xA0\xE5\xA5\xBD", "na\xC3\xAFve| \xE4\xBD\xA0\xE5\xA5\xBD"},
    {"qwen2", "\xD9\xA1\xD9\xA2", "\xD9\xA1|\xD9\xA2"},                         /* Arabic-Indic digits are digits */
    {"qwen2", "a\xE3\x80\x80\xE3\x80\x80z", "a|\xE3\x80\x80|\xE3\x80\x80z"},     /* ideographic space is white space */
    {"qwen2", "a\xE1\xA0\x8E\xE1\xA0\x8Ez", "a|\xE1\xA0\x8E\xE1\xA0\x8E|z"},     /* U+180E is not: it is like "!!" */
    /* bytes that are no UTF-8 are cut like U+FFFD, and stay */
    {"qwen2", "a\xFF\xFE z", "a|\xFF\xFE| z"},
    {"qwen2", "\xE4\xBD", "\xE4\xBD"},
    {"qwen2", "12\xC3", "1|2|\xC3"},
    {"qwen2", "\xED\xA0\x80ok", "\xED\xA0\x80|ok"},
    /* llama-bpe: the same but for digits, up to three together */
    {"llama-bpe", "12345", "123|45"},
    {"llama-v3", "1234567", "123|456|7"},
    {"llama-bpe", "Hello  World", "Hello| | World"},
    /* gpt-2: a space goes with what follows, contractions in lower case only */
    {"gpt-2", "Hello world", "Hello| world"},
    {"gpt-2", " 12345 67", " 12345| 67"},
    {"gpt-2", "I'm HE'LL", "I|'m| HE|'|LL"},
    {"gpt-2", "a!? b", "a|!?| b"},
    {"gpt-2", "a  \n b", "a|  \n| b"},
    {"gpt-2", "\t\tx", "\t|\t|x"},
    {"gpt-2", "x\n", "x|\n"},
    /* starcoder and its like: single digits first, then as gpt-2 */
    {"smollm", "a 12 b", "a| |1|2| b"},
    {"starcoder", "x1.5", "x|1|.|5"},
    {"refact", "can't", "can|'t"},
    /* deepseek-coder: every line end alone, one white space before letters or punctuation, single digits */
    {"deepseek-coder", "a\n\nb", "a|\n|\n|b"},
    {"deepseek-coder", "if (x1 == 20):", "if| (|x|1| == |2|0|):"},
    {"deepseek-coder", "x + y", "x| +| y"}, /* + and = are symbols, no punctuation: cut by what surrounds them */
    {"deepseek-coder", "\tint", "\tint"},
    {"deepseek-coder", "\xE4\xBD\xA0\xE5\xA5\xBD" "1", "\xE4\xBD\xA0\xE5\xA5\xBD|1"},
    /* deepseek-llm: digits together; its punctuation range :-~ holds a-z too, so that accented words fall apart */
    {"deepseek-llm", "Hello world 123", "Hello| world| |123"},
    {"deepseek-llm", "a, b", "a|,| b"},
    {"deepseek-llm", "a\n b  ", "a|\n| b|  "},
    {"deepseek-llm", "caf\xC3\xA9", "caf|\xC3\xA9"},
    {"deepseek-v3", "1234 ab", "123|4| ab"},
    {"deepseek-v3", "\xE4\xBD\xA0\xE5\xA5\xBD!x", "\xE4\xBD\xA0\xE5\xA5\xBD|!x"},
    /* gpt-4o: capitals, then small letters; a contraction stays with its word */
    {"gpt-4o", "CamelCase HTTPServer", "Camel|Case| HTTPServer"},
    {"gpt-4o", "don't WE'LL 12345", "don't| WE'LL| |123|45"},
    {"llama4", "a/b//\n\nc", "a|/b|//\n\n|c"},
    {"gpt-4o", "\xC3\xA9\xC3\x89" "cole", "\xC3\xA9|\xC3\x89" "cole"},
    /* tekken: the same without contractions, single digits */
    {"tekken", "CamelCase don't 12", "Camel|Case| don|'t| |1|2"},
    /* bloom: all up to white space or the sentence's punctuation */
    {"bloom", "Hello, a+b=c (x) 12.", "Hello|,| a+b=c| (|x|)| 12|."},
    {"viking", "ab 12", "ab| |1|2"},
    /* seed-coder: a line end is never in a run of punctuation */
    {"seed-coder", "x1!!\n\ny", "x|1|!!|\n\n|y"},
    {"bailingmoe", "I'M a\n\nb 12", "I|'M| a|\n\n|b| |1|2"},
    {"exaone4", "I'm 12", "I|'m| 12"},
    /* default: punctuation alone, digits apart from the space before them, three by three */
    {"default", "a1234!", "a|123|4|!"},
    {"default", " 1234", " |123|4"},
    {"falcon", "x == 1234", "x| |==| |123|4"},
    {"mellum2", "I'm x12", "I|'m| x|1|2"},
    {"minicpm5", "x12345 I'M", "x|123|45| I|'M"},
    {"ufakzeka", "Ankara'da 12", "Ankara|'da| |1|2"},
    /* numbers in threes from the right; a number of another sort of digit in between starts anew */
    {"afmoe", "1234567 12 123", "1|234|567| |12| |123"},
    {"afmoe", "ab1234.5678", "ab|1|234|.|5|678"},
    {"afmoe", "  123  45", " | |123| | |45"}, /* with the number behind them, two spaces are cut as before a word */
    {"afmoe", "a  \n12", "a|  \n|12"},
    {"afmoe", "\xE4\xBD\xA0\xE5\xA5\xBD!x _y", "\xE4\xBD\xA0\xE5\xA5\xBD|!x| _|y"},
    {"afmoe", "\xE0\xB9\x84\xE0\xB9\x91\xE0\xB9\x92\xE0\xB9\x93\xE0\xB9\x94", /* a Thai vowel and 1234 */
     "\xE0\xB9\x84|\xE0\xB9\x91|\xE0\xB9\x92\xE0\xB9\x93\xE0\xB9\x94"},
    /* a character of each script without spaces, between letters */
    {"afmoe", "a" "\xE4\xB8\x80" "a" "\xE3\x90\x80" "a" "\xEF\xA4\x80" "a" "\xE3\x81\x82" "a" "\xE3\x82\xA2" "a" "\xEF\xBD\xA6" "a" "\xE2\xBC\x80" "a" "\xE0\xB9\x80" "a" "\xE0\xBA\x81" "a" "\xE1\x9E\x80" "a" "\xE1\x80\x80" "a" "\xEA\xA9\xA0" "a" "\xEA\xA7\xA0" "a" "\xEA\xB0\x80" "a" "\xE1\x84\x80" "a",
     "a|" "\xE4\xB8\x80|" "a|" "\xE3\x90\x80|" "a|" "\xEF\xA4\x80|" "a|" "\xE3\x81\x82|" "a|" "\xE3\x82\xA2|" "a|" "\xEF\xBD\xA6|" "a|" "\xE2\xBC\x80|" "a|" "\xE0\xB9\x80|" "a|" "\xE0\xBA\x81|" "a|" "\xE1\x9E\x80|" "a|" "\xE1\x80\x80|" "a|" "\xEA\xA9\xA0|" "a|" "\xEA\xA7\xA0|" "a|" "\xEA\xB0\x80|" "a|" "\xE1\x84\x80|" "a"},
    {"superbpe", "of the 1234567 12 a", "of the |1|234|567| |12| a"},
    {"superbpe", "\xC2\xBD" "1234", "\xC2\xBD" "1|234"},
    {"tiny_aya", "1234 a1234", "1|234| a|1|234"},
    {"tiny_aya", "1234x 12345_", "123|4|x| |123|45|_"}, /* within a word: not from the right */
    {"tiny_aya", "CamelCase don't", "Camel|Case| don't"},
    {"youtu", "CamelCase 12", "Camel|Case| |1|2"},
    {"youtu", "\xE4\xBD\xA0\xEF\xBC\x8C\xED\x95\x9C" "a", "\xE4\xBD\xA0|\xEF\xBC\x8C|\xED\x95\x9C|a"},
    {"gemma4", "a b\n\nc\r", "a b|\n\n|c\r"},
};
/* clang-format on */

static void join(const char *text, const size_t *ends, size_t n, char *to) {
    size_t start = 0;
    for (size_t i = 0; i < n; start = ends[i++]) {
        if (i) *to++ = '|';
        memcpy(to, text + start, ends[i] - start);
        to += ends[i] - start;
    }
    *to = '\0';
}

Test(pretokenizer, cuts_where_the_model_was_trained_to) {
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        fd_pre *pre;
        fd_error err = {0};
        cr_assert(fd_pre_new(CASES[i].pre, &pre, &err) == FD_OK, "%s", err.message);
        size_t *ends, n;
        char found[256];
        cr_assert(fd_pre_split(pre, CASES[i].text, strlen(CASES[i].text), &ends, &n, &err) == FD_OK, "%s", err.message);
        join(CASES[i].text, ends, n, found);
        cr_expect(strcmp(found, CASES[i].pieces) == 0, "%s: \"%s\" is cut \"%s\", expected \"%s\"", CASES[i].pre,
                  CASES[i].text, found, CASES[i].pieces);
        free(ends);
        fd_pre_free(pre);
    }
}

/* The property every other part relies on: pieces are not empty and together are the text, whatever the bytes. */
Test(pretokenizer, pieces_cover_any_bytes_once) {
    static const char *const NAMES[] = {"gpt-2",       "llama-bpe", "qwen2",   "deepseek-coder", "deepseek-llm",
                                        "deepseek-v3", "smollm",    "default", "falcon",         "afmoe",
                                        "superbpe",    "tiny_aya",  "gemma4"};
    static const char ALPHABET[] = "aZ09 \t\n\r'!$.\xC3\xA9\xE4\xBD\xA0\xF0\x9F\x98\x81\xFF\xED\xA0\x85";
    uint64_t state = 7;
    for (size_t k = 0; k < sizeof NAMES / sizeof NAMES[0]; k++) {
        fd_pre *pre;
        fd_error err = {0};
        cr_assert(fd_pre_new(NAMES[k], &pre, &err) == FD_OK, "%s", err.message);
        for (int round = 0; round < 500; round++) {
            char text[64];
            size_t size = (size_t)(round % 60), *ends, n, before = 0;
            for (size_t i = 0; i < size; i++) {
                state = state * 6364136223846793005u + 1442695040888963407u;
                text[i] = ALPHABET[(state >> 33) % (sizeof ALPHABET - 1)];
            }
            cr_assert(fd_pre_split(pre, text, size, &ends, &n, &err) == FD_OK, "%s", err.message);
            for (size_t i = 0; i < n; before = ends[i++]) cr_assert(ends[i] > before);
            cr_assert(eq(sz, before, size));
            free(ends);
        }
        fd_pre_free(pre);
    }
}

/* In the square of the length each of these would take minutes. */
Test(pretokenizer, long_numbers_and_texts_without_one_take_linear_time) {
    static const char *const NAMES[] = {"afmoe", "superbpe", "tiny_aya"};
    enum { N = 600001 };
    char *text = malloc(N);
    cr_assert(text != NULL);
    for (size_t k = 0; k < sizeof NAMES / sizeof NAMES[0]; k++)
        for (int digits = 0; digits < 2; digits++) {
            fd_pre *pre;
            fd_error err = {0};
            size_t *ends, n;
            memset(text, digits ? '1' : ' ', N);
            cr_assert(fd_pre_new(NAMES[k], &pre, &err) == FD_OK, "%s", err.message);
            cr_assert(fd_pre_split(pre, text, N, &ends, &n, &err) == FD_OK, "%s", err.message);
            cr_expect(eq(sz, n, digits ? N / 3 + 1 : 1));
            cr_expect(eq(sz, ends[0], digits ? 1 : N));
            free(ends);
            fd_pre_free(pre);
        }
    free(text);
}

Test(pretokenizer, unknown_names_are_refused_with_the_known_ones) {
    static const char *const NAMES[] = {
        "qwen",        "gpt",    "",
        "gpt-2 phi-2", " qwen2", "a-name-longer-than-any-pre-tokeniser-of-the-table-could-ever-be-named"};
    for (size_t i = 0; i < sizeof NAMES / sizeof NAMES[0]; i++) {
        fd_pre *pre;
        fd_error err = {0};
        cr_expect(fd_pre_new(NAMES[i], &pre, &err) == FD_ERR_UNSUPPORTED, "\"%s\" is accepted", NAMES[i]);
        cr_expect(pre == NULL);
        cr_expect(strstr(err.message, "qwen2 ") && strstr(err.message, " deepseek-coder "), "%s", err.message);
    }
}

Test(pretokenizer, utf8_lengths_follow_the_standard) {
    /* clang-format off */
    static const struct {
        const char *bytes;
        size_t length;
    } cases[] = {
        {"a", 1}, {"\x7F", 1}, {"\x80", 0}, {"\xC0\x80", 0}, {"\xC1\xBF", 0}, {"\xC2\x80", 2}, {"\xDF\xBF", 2},
        {"\xC3", 0}, {"\xC3(", 0}, {"\xE0\x9F\xBF", 0}, {"\xE0\xA0\x80", 3}, {"\xED\x9F\xBF", 3}, {"\xED\xA0\x80", 0},
        {"\xEF\xBF\xBD", 3}, {"\xE4\xBD", 0}, {"\xF0\x8F\xBF\xBF", 0}, {"\xF0\x90\x80\x80", 4}, {"\xF4\x8F\xBF\xBF", 4},
        {"\xF4\x90\x80\x80", 0}, {"\xF5\x80\x80\x80", 0}, {"\xFF", 0},
    };
    /* clang-format on */
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        cr_expect(fd_utf8_length(cases[i].bytes, strlen(cases[i].bytes)) == cases[i].length, "case %zu", i);
}
