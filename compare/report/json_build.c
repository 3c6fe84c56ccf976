#include "compare/report/json_build.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "compare/report/line.h"
#include "numerics/contract.h"

json_t *fd_json_text(const char *text) {
    if (!text) return json_null();
    json_t *value = json_string(text);
    if (value) return value;
    char ascii[1024];
    size_t n = 0;
    for (; text[n] && n + 1 < sizeof ascii; n++) ascii[n] = text[n] >= 0x20 && text[n] < 0x7f ? text[n] : '?';
    ascii[n] = '\0';
    return json_string(ascii);
}

json_t *fd_json_number(double x) {
    char text[40], bits[24];
    fd_value_text(x, text, sizeof text);
    if (isnan(x) || (double)(float)x == x)
        snprintf(bits, sizeof bits, "0x%08x", fd_canonical32((float)x));
    else
        snprintf(bits, sizeof bits, "0x%016llx", (unsigned long long)fd_bits64(x));
    return json_pack("{s:o, s:s, s:s}", "value", isfinite(x) ? json_real(x) : json_null(), "text", text, "bits", bits);
}

json_t *fd_json_number_if(bool known, double x) {
    return known ? fd_json_number(x) : json_null();
}

json_t *fd_json_int_if(bool known, int64_t n) {
    return known ? json_integer((json_int_t)n) : json_null();
}

json_t *fd_json_append(json_t *list, json_t *value) {
    if (json_array_append_new(list, value) == 0) return list;
    json_decref(list);
    return NULL;
}

json_t *fd_json_join(json_t *object, json_t *more) {
    if (json_object_update_new(object, more) == 0) return object;
    json_decref(object);
    return NULL;
}

static void put_escaped(FILE *to, uint32_t code) {
    if (code < 0x10000)
        fprintf(to, "\\u%04X", (unsigned)code);
    else
        fprintf(to, "\\u%04X\\u%04X", (unsigned)(0xd7c0 + (code >> 10)), (unsigned)(0xdc00 + (code & 0x3ff)));
}

bool fd_json_write(FILE *to, const json_t *root) {
    char *text = json_dumps(root, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
    if (!text) return false;
    fd_character c;
    for (const char *s = text, *end = text + strlen(text); s < end; s += c.n) {
        c = fd_text_next(s, (size_t)(end - s)); /* beyond ASCII there are strings alone */
        if (c.shown)
            fwrite(s, 1, c.n, to);
        else
            put_escaped(to, c.code);
    }
    free(text);
    return fputc('\n', to) != EOF && !ferror(to);
}
