#include "gguf.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(2);
}

/* ---- the bytes in order ---- */

static uint64_t take(const gguf *g, size_t *at, size_t n) { /* little-endian */
    uint64_t value = 0;
    if (n > g->size || *at > g->size - n) die("the GGUF ends in the middle of something");
    memcpy(&value, g->file + *at, n);
    *at += n;
    return value;
}

static size_t skip(const gguf *g, size_t *at, uint64_t n) {
    size_t from = *at;
    if (n > g->size - *at) die("the GGUF ends in the middle of something");
    *at += n;
    return from;
}

/* value types 0 … 12: u8 i8 u16 i16 u32 i32 f32 bool string array u64 i64 f64 */
static const size_t width[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
enum { V_F32 = 6, V_STRING = 8, V_ARRAY = 9, V_F64 = 12 };

static void skip_value(const gguf *g, size_t *at, uint64_t type) {
    if (type == V_STRING) {
        skip(g, at, take(g, at, 8));
    } else if (type == V_ARRAY) {
        uint64_t of = take(g, at, 4), n = take(g, at, 8);
        if (of == V_ARRAY || of > V_F64) die("an array of a kind that no model has");
        if (of != V_STRING) skip(g, at, n > g->size ? n : n * width[of]);
        for (uint64_t i = 0; of == V_STRING && i < n; i++) skip_value(g, at, V_STRING);
    } else if (type <= V_F64) {
        skip(g, at, width[type]);
    } else {
        die("a value of unknown type %llu", (unsigned long long)type);
    }
}

/* ---- keys ---- */

/* Where the key's value lies, and its type; 0 when the key is absent. */
static size_t find(const gguf *g, const char *key, uint64_t *type) {
    size_t at = g->first_key;
    for (uint64_t i = 0; i < g->n_key; i++) {
        uint64_t n = take(g, &at, 8);
        size_t name = skip(g, &at, n);
        *type = take(g, &at, 4);
        if (n == strlen(key) && memcmp(g->file + name, key, n) == 0) return at;
        skip_value(g, &at, *type);
    }
    return 0;
}

double gguf_number(const gguf *g, const char *key, double absent) {
    uint64_t type, bits;
    size_t at = find(g, key, &type);
    if (at == 0) return absent;
    if (type == V_STRING || type == V_ARRAY) die("%s is no number", key);
    bits = take(g, &at, width[type]);
    float f;
    double d;
    memcpy(&f, &bits, 4);
    memcpy(&d, &bits, 8);
    return type == V_F32 ? f : type == V_F64 ? d : (double)bits; /* no key we read is negative */
}

void gguf_text(const gguf *g, const char *key, char *out, size_t size) {
    uint64_t type, n;
    size_t at = find(g, key, &type);
    if (at == 0 || type != V_STRING) die("no text %s", key);
    n = take(g, &at, 8);
    size_t from = skip(g, &at, n);
    if (n >= size) die("%s is too long", key);
    memcpy(out, g->file + from, n);
    out[n] = '\0';
}

/* ---- tensors ---- */

static void read_tensors(gguf *g, size_t *at) {
    uint64_t n = g->n_tensor;
    if (n > g->size / 24) die("more tensors than the file has room for");
    uint64_t *offset = calloc(n + 1, sizeof *offset);
    g->tensors = calloc(n + 1, sizeof *g->tensors);
    for (uint64_t i = 0; i < n; i++) {
        tensor *t = &g->tensors[i];
        uint64_t length = take(g, at, 8);
        size_t name = skip(g, at, length);
        if (length >= sizeof t->name) die("a tensor name of %llu bytes", (unsigned long long)length);
        memcpy(t->name, g->file + name, length);
        uint64_t n_dim = take(g, at, 4);
        if (n_dim < 1 || n_dim > 2) die("%s has %llu dimensions", t->name, (unsigned long long)n_dim);
        t->columns = take(g, at, 8);
        t->rows = n_dim == 2 ? take(g, at, 8) : 1;
        t->type = (uint32_t)take(g, at, 4);
        offset[i] = take(g, at, 8);
    }
    uint64_t alignment = (uint64_t)gguf_number(g, "general.alignment", 32);
    if (alignment < 1 || alignment > 1 << 20) die("a senseless general.alignment");
    uint64_t data = (*at + alignment - 1) / alignment * alignment;
    for (uint64_t i = 0; i < n; i++) {
        tensor *t = &g->tensors[i];
        if (t->columns > 1u << 24 || t->rows > 1u << 24) die("%s is too large", t->name);
        uint64_t elements = t->columns * t->rows;
        if (t->type != TYPE_F32 && t->type != TYPE_F16 && t->type != TYPE_Q8_0)
            die("%s: element type %u; this engine reads F32, F16 and Q8_0", t->name, t->type);
        t->size = t->type == TYPE_Q8_0 ? elements / 32 * 34 : t->type == TYPE_F16 ? elements * 2 : elements * 4;
        if (data > g->size || offset[i] > g->size - data || t->size > g->size - data - offset[i])
            die("%s lies outside the file", t->name);
        t->bytes = g->file + data + offset[i];
    }
    free(offset);
}

gguf gguf_read(const char *path) {
    gguf g = {0};
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0) die("%s: cannot be read", path);
    g.size = (size_t)ftell(file);
    g.file = malloc(g.size + 1);
    rewind(file);
    if (!g.file || fread(g.file, 1, g.size, file) != g.size) die("%s: cannot be read", path);
    fclose(file);
    size_t at = 0;
    if (take(&g, &at, 4) != 0x46554747 /* "GGUF" */ || take(&g, &at, 4) != 3) die("%s: no GGUF of version 3", path);
    g.n_tensor = take(&g, &at, 8);
    g.n_key = take(&g, &at, 8);
    g.first_key = at;
    for (uint64_t i = 0; i < g.n_key; i++) {
        skip(&g, &at, take(&g, &at, 8));
        skip_value(&g, &at, take(&g, &at, 4));
    }
    read_tensors(&g, &at);
    return g;
}

const tensor *gguf_tensor(const gguf *g, const char *name) {
    for (uint64_t i = 0; i < g->n_tensor; i++)
        if (strcmp(g->tensors[i].name, name) == 0) return &g->tensors[i];
    return NULL;
}

/* ---- elements ---- */

float half_to_float(uint16_t h) {
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    float value = exponent == 0 ? ldexpf((float)mantissa, -24) : ldexpf((float)(mantissa + 1024), exponent - 25);
    if (exponent == 31) value = mantissa ? NAN : INFINITY;
    return h & 0x8000 ? -value : value;
}

void decode(uint32_t type, const unsigned char *bytes, uint64_t n, float *out) {
    if (type == TYPE_F32) {
        memcpy(out, bytes, n * 4);
    } else if (type == TYPE_F16) {
        for (uint64_t i = 0; i < n; i++) out[i] = half_to_float((uint16_t)(bytes[2 * i] | bytes[2 * i + 1] << 8));
    } else { /* Q8_0: blocks of 32: a half, the scale, then 32 signed bytes */
        for (uint64_t i = 0; i < n; i++) {
            const unsigned char *block = bytes + i / 32 * 34;
            out[i] = half_to_float((uint16_t)(block[0] | block[1] << 8)) * (float)(signed char)block[2 + i % 32];
        }
    }
}
