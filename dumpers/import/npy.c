#include "dumpers/import/npy.h"

#include <string.h>

typedef struct cursor {
    const char *at, *end;
} cursor;

static void skip_space(cursor *c) {
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\n' || *c->at == '\r')) c->at++;
}

static bool take(cursor *c, char wanted) {
    skip_space(c);
    if (c->at == c->end || *c->at != wanted) return false;
    c->at++;
    return true;
}

/* 'text' or "text", without escapes: no key or type code has any. */
static bool take_text(cursor *c, char *out, size_t size) {
    skip_space(c);
    if (c->at == c->end || (*c->at != '\'' && *c->at != '"')) return false;
    char quote = *c->at++;
    size_t n = 0;
    for (; c->at < c->end && *c->at != quote; c->at++) {
        if (n + 1 >= size || *c->at == '\\') return false;
        out[n++] = *c->at;
    }
    out[n] = '\0';
    return take(c, quote);
}

static bool take_word(cursor *c, const char *word) {
    size_t n = strlen(word);
    skip_space(c);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, word, n) != 0) return false;
    c->at += n;
    return true;
}

static bool take_integer(cursor *c, int64_t *out) {
    skip_space(c);
    const char *start = c->at;
    *out = 0;
    for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++)
        if (__builtin_mul_overflow(*out, 10, out) || __builtin_add_overflow(*out, *c->at - '0', out)) return false;
    if (c->at < c->end && *c->at == 'L') c->at++; /* Python 2's long */
    return c->at > start;
}

static bool take_shape(cursor *c, fd_array *array) {
    if (!take(c, '(')) return false;
    while (!take(c, ')')) {
        if (array->rank == FD_ARRAY_MAX_RANK || !take_integer(c, &array->shape[array->rank])) return false;
        array->rank++;
        if (!take(c, ',')) return take(c, ')');
    }
    return true;
}

static const struct {
    const char *code;
    fd_array_type type;
} codes[] = {
    {"f2", FD_ARRAY_F16}, {"f4", FD_ARRAY_F32}, {"f8", FD_ARRAY_F64}, {"V2", FD_ARRAY_BF16}, {"b1", FD_ARRAY_BOOL},
    {"i1", FD_ARRAY_I8},  {"i2", FD_ARRAY_I16}, {"i4", FD_ARRAY_I32}, {"i8", FD_ARRAY_I64},  {"u1", FD_ARRAY_U8},
    {"u2", FD_ARRAY_U16}, {"u4", FD_ARRAY_U32}, {"u8", FD_ARRAY_U64},
};

static fd_code take_type(const char *name, const char *descr, fd_array *array, fd_error *err) {
    char order = descr[0];
    const char *code = strchr("<>|=", order) && order ? descr + 1 : descr;
    if (strcmp(descr, "bfloat16") == 0) code = "V2";
    if (code[0] == 'O')
        return fd_fail(err, FD_ERR_INPUT,
                       "%s: holds Python objects (a pickle, dtype '%s'), which run code when loaded: refused; save it "
                       "as numbers, with allow_pickle=False",
                       name, descr);
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        if (strcmp(code, codes[i].code) != 0) continue;
        array->type = codes[i].type;
        array->swapped = order == '>';
        return FD_OK;
    }
    return fd_fail(err, FD_ERR_INPUT, "%s: dtype '%s', expected f2, f4, f8, V2 (bfloat16), i1 to i8, u1 to u8 or b1",
                   name, descr);
}

static fd_code parse_header(const char *name, cursor c, fd_array *array, bool *fortran, fd_error *err) {
    bool have[3] = {false};
    char key[32], descr[64] = "";
    bool ok = take(&c, '{');
    while (ok && !take(&c, '}')) {
        ok = take_text(&c, key, sizeof key) && take(&c, ':');
        if (!ok) break;
        int which = strcmp(key, "descr") == 0           ? 0
                    : strcmp(key, "fortran_order") == 0 ? 1
                    : strcmp(key, "shape") == 0         ? 2
                                                        : 3;
        if (which == 3 || have[which])
            return fd_fail(err, FD_ERR_INPUT, "%s: npy header: key '%s' %s", name, key,
                           which == 3 ? "unknown" : "given twice");
        have[which] = true;
        if (which == 0) {
            skip_space(&c);
            if (c.at < c.end && *c.at == '[')
                return fd_fail(err, FD_ERR_INPUT, "%s: a structured dtype, expected one element type", name);
            ok = take_text(&c, descr, sizeof descr);
        } else if (which == 1) {
            *fortran = take_word(&c, "True");
            ok = *fortran || take_word(&c, "False");
        } else {
            ok = take_shape(&c, array);
        }
        if (ok && !take(&c, ',')) {
            ok = take(&c, '}');
            break;
        }
    }
    skip_space(&c);
    if (!ok || !have[0] || !have[1] || !have[2] || c.at != c.end)
        return fd_fail(err, FD_ERR_INPUT,
                       "%s: npy header is not a dictionary of descr, fortran_order and shape (at most %d axes)", name,
                       FD_ARRAY_MAX_RANK);
    return take_type(name, descr, array, err);
}

fd_code fd_npy_parse(const char *name, const void *data, size_t size, fd_array *out, fd_error *err) {
    const uint8_t *bytes = data;
    *out = (fd_array){0};
    if (size >= 2 && bytes[0] == 0x80 && bytes[1] >= 2 && bytes[1] <= 5)
        return fd_fail(err, FD_ERR_INPUT,
                       "%s: a Python pickle, which runs code when loaded: refused; save it with numpy.save of numbers",
                       name);
    if (size < 10 || memcmp(bytes, "\x93NUMPY", 6) != 0)
        return fd_fail(err, FD_ERR_INPUT, "%s: not an npy file (%zu bytes)", name, size);
    if (bytes[6] < 1 || bytes[6] > 3)
        return fd_fail(err, FD_ERR_INPUT, "%s: npy version %d.%d, expected 1.0 to 3.0", name, bytes[6], bytes[7]);
    size_t start = bytes[6] == 1 ? 10 : 12, length = 0;
    for (size_t i = 8; i < start && i < size; i++) length |= (size_t)bytes[i] << (8 * (i - 8));
    if (size < start || length > size - start)
        return fd_fail(err, FD_ERR_INPUT, "%s: cut short: a header of %zu bytes in a file of %zu", name, length, size);
    bool fortran = false;
    const char *header = (const char *)bytes + start;
    FD_TRY(parse_header(name, (cursor){header, header + length}, out, &fortran, err));
    int64_t need = fd_array_pack(out, fortran);
    size_t left = size - start - length;
    char text[128];
    if (need < 0)
        return fd_fail(err, FD_ERR_INPUT, "%s: shape %s overflows", name,
                       fd_array_shape_text(out->rank, out->shape, text));
    if ((uint64_t)need != left)
        return fd_fail(err, FD_ERR_INPUT, "%s: %s: %zu bytes of elements, expected %lld for shape %s of %s", name,
                       (uint64_t)need > left ? "cut short" : "too long", left, (long long)need,
                       fd_array_shape_text(out->rank, out->shape, text), fd_array_type_name(out->type));
    out->data = bytes + start + length;
    return FD_OK;
}
