/* Text in pieces of bytes: whole characters come out at once, the beginning of one waits for the rest. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/run/stream.h"

enum { MAX_PIECE = 8 };

/* What is out after each piece, and at the end. */
typedef struct stream_case {
    const char *what;
    const char *pieces[MAX_PIECE];
    const char *out[MAX_PIECE]; /* all that is out after that piece */
    const char *end;
} stream_case;

static const stream_case cases[] = {
    {"ASCII passes", {"a", "bc"}, {"a", "abc"}, "abc"},
    {"two bytes in two pieces", {"x\xc3", "\xa9y"}, {"x", "x\xc3\xa9y"}, "x\xc3\xa9y"},
    {"three bytes, one each", {"\xe2", "\x82", "\xac"}, {"", "", "\xe2\x82\xac"}, "\xe2\x82\xac"},
    {"four bytes, two and two", {"\xf0\x9f", "\x98\x80!"}, {"", "\xf0\x9f\x98\x80!"}, "\xf0\x9f\x98\x80!"},
    {"whole characters in one piece", {"\xc3\xa9\xe2\x82\xac"}, {"\xc3\xa9\xe2\x82\xac"}, "\xc3\xa9\xe2\x82\xac"},
    {"a character that never ends is shown at the end", {"a\xe2\x82"}, {"a"}, "a\xe2\x82"},
    {"a broken character is shown as it is", {"\xe2", "A"}, {"", "\xe2" "A"}, "\xe2" "A"},
    {"a new character breaks one", {"\xe2", "\xc3", "\xa9"}, {"", "\xe2", "\xe2\xc3\xa9"}, "\xe2\xc3\xa9"},
    {"no beginning of one", {"\x80", "\xff", "z"}, {"\x80", "\x80\xff", "\x80\xffz"}, "\x80\xffz"},
};

Test(stream, characters_come_out_whole) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = NULL;
        size_t size = 0;
        fd_cli_stream stream = {.to = open_memstream(&text, &size)};
        cr_assert(stream.to != NULL);
        for (int k = 0; k < MAX_PIECE && cases[i].pieces[k]; k++) {
            fd_cli_stream_put(&stream, cases[i].pieces[k], strlen(cases[i].pieces[k]));
            cr_expect_str_eq(text, cases[i].out[k], "%s: after piece %d", cases[i].what, k + 1);
        }
        fd_cli_stream_end(&stream);
        cr_expect_str_eq(text, cases[i].end, "%s: at the end", cases[i].what);
        fclose(stream.to);
        free(text);
    }
}

Test(stream, unfinished_bytes_are_counted) {
    static const struct {
        const char *bytes;
        size_t n;
    } rows[] = {{"", 0},         {"a", 0},          {"\xc3", 1},         {"\xc3\xa9", 0},         {"\xe2\x82", 2},
                {"\xe2\x82\xac", 0}, {"\xf0\x9f\x98", 3}, {"\xf0\x9f\x98\x80", 0}, {"a\x80\x80\x80", 0}, {"\xc0", 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        cr_expect_eq(fd_utf8_unfinished(rows[i].bytes, strlen(rows[i].bytes)), rows[i].n, "row %zu", i);
}
