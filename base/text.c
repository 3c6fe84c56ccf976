#include "base/text.h"

#include <string.h>

/* Code points that are not shown, besides the noncharacters at the end of every plane. */
static const struct {
    uint32_t first, last;
} hidden[] = {
    {0x00, 0x08},       {0x0b, 0x1f},     /* C0 */
    {0x7f, 0x9f},                         /* DEL, C1 */
    {0x061c, 0x061c},   {0x200e, 0x200f}, /* directional marks */
    {0x2028, 0x202e},                     /* separators of lines and paragraphs; embeddings and overrides */
    {0x2066, 0x2069},                     /* isolates */
    {0xd800, 0xdfff},                     /* surrogates */
    {0xfdd0, 0xfdef},                     /* noncharacters */
    {0xfff9, 0xfffb},                     /* annotations */
    {0xe0000, 0xe007f},                   /* tags */
};

static bool is_hidden(uint32_t code) {
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++)
        if (code >= hidden[i].first && code <= hidden[i].last) return true;
    return (code & 0xfffe) == 0xfffe || code > 0x10ffff;
}

fd_character fd_text_next(const char *text, size_t size) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *s = (const unsigned char *)text;
    fd_character broken = {1, false, false, 0xfffd};
    if (s[0] < 0x80) return (fd_character){1, !is_hidden(s[0]), false, s[0]};
    if (s[0] < 0xc2 || s[0] > 0xf4) return broken;
    size_t n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    uint32_t code = s[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        broken.cut = i == size;
        if (i == size || (s[i] & 0xc0) != 0x80) return broken;
        code = code << 6 | (s[i] & 0x3fu);
    }
    if (code < least[n]) return broken;
    return (fd_character){n, !is_hidden(code), false, code};
}

void fd_text_one_line(const char *text, char *out, size_t size) {
    size_t left = strlen(text), used = 0;
    while (left > 0) {
        fd_character c = fd_text_next(text, left);
        bool shown = c.shown && c.code >= 0x20;
        size_t n = shown ? c.n : 1;
        if (used + n >= size) break;
        if (shown)
            memcpy(out + used, text, n);
        else
            out[used] = '?';
        used += n;
        text += c.n;
        left -= c.n;
    }
    if (size > 0) out[used] = '\0';
}

bool fd_ends_with(const char *text, const char *ending) {
    const size_t n = strlen(text), m = strlen(ending);
    return n >= m && strcmp(text + n - m, ending) == 0;
}
