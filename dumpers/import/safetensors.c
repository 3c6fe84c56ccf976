#include "dumpers/import/safetensors.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/limits.h"

static const struct {
    const char *name;
    fd_array_type type;
} types[] = {
    {"F16", FD_ARRAY_F16},   {"BF16", FD_ARRAY_BF16}, {"F32", FD_ARRAY_F32}, {"F64", FD_ARRAY_F64},
    {"I8", FD_ARRAY_I8},     {"I16", FD_ARRAY_I16},   {"I32", FD_ARRAY_I32}, {"I64", FD_ARRAY_I64},
    {"U8", FD_ARRAY_U8},     {"U16", FD_ARRAY_U16},   {"U32", FD_ARRAY_U32}, {"U64", FD_ARRAY_U64},
    {"BOOL", FD_ARRAY_BOOL},
};

static bool take_type(const char *name, fd_array *array) {
    for (size_t i = 0; name && i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].name, name) == 0) {
            array->type = types[i].type;
            return true;
        }
    return false;
}

static bool take_shape(const json_t *shape, fd_array *array) {
    if (!json_is_array(shape) || json_array_size(shape) > FD_ARRAY_MAX_RANK) return false;
    for (size_t i = 0; i < json_array_size(shape); i++) {
        const json_t *dim = json_array_get(shape, i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0) return false;
        array->shape[array->rank++] = json_integer_value(dim);
    }
    return true;
}

static fd_code take_item(const char *name, const char *key, const json_t *value, const uint8_t *data, size_t size,
                         fd_array *array, fd_error *err) {
    const char *type = json_string_value(json_object_get(value, "dtype"));
    const json_t *offsets = json_object_get(value, "data_offsets");
    const json_t *from = json_array_get(offsets, 0), *to = json_array_get(offsets, 1);
    char text[128];
    if (!take_type(type, array))
        return fd_fail(err, FD_ERR_INPUT,
                       "%s: tensor \"%s\": dtype %s, expected F16, BF16, F32, F64, I8 to U64 or BOOL", name, key,
                       type ? type : "missing");
    if (!take_shape(json_object_get(value, "shape"), array))
        return fd_fail(err, FD_ERR_INPUT, "%s: tensor \"%s\": shape is no list of at most %d sizes", name, key,
                       FD_ARRAY_MAX_RANK);
    int64_t bytes = fd_array_pack(array, false);
    if (json_array_size(offsets) != 2 || !json_is_integer(from) || !json_is_integer(to) ||
        json_integer_value(from) < 0 || json_integer_value(to) < json_integer_value(from) ||
        (uint64_t)json_integer_value(to) > size)
        return fd_fail(err, FD_ERR_INPUT,
                       "%s: tensor \"%s\": data_offsets are not two places in the file's %zu bytes of elements", name,
                       key, size);
    if (bytes < 0 || bytes != json_integer_value(to) - json_integer_value(from))
        return fd_fail(err, FD_ERR_INPUT, "%s: tensor \"%s\": %lld bytes by its offsets, shape %s of %s has other",
                       name, key, (long long)(json_integer_value(to) - json_integer_value(from)),
                       fd_array_shape_text(array->rank, array->shape, text), type);
    array->data = data + json_integer_value(from);
    return FD_OK;
}

static int by_place(const void *a, const void *b) {
    const fd_array *x = &((const fd_safetensors_item *)a)->array, *y = &((const fd_safetensors_item *)b)->array;
    return x->data < y->data ? -1 : x->data > y->data;
}

static int64_t bytes_of(const fd_array *array) {
    fd_array copy = *array;
    return fd_array_pack(&copy, false);
}

static fd_code check_cover(const char *name, const fd_safetensors *file, const uint8_t *data, size_t size,
                           fd_error *err) {
    const uint8_t *at = data;
    for (size_t i = 0; i < file->n; i++) {
        const fd_array *array = &file->items[i].array;
        int64_t bytes = bytes_of(array);
        if (bytes > 0 && array->data != at)
            return fd_fail(err, FD_ERR_INPUT, "%s: tensor \"%s\" %s", name, file->items[i].name,
                           array->data < at ? "overlaps another" : "does not follow the one before it");
        at += bytes;
    }
    if (at == data + size) return FD_OK;
    return fd_fail(err, FD_ERR_INPUT, "%s: %zu bytes of elements, the header names %zu", name, size,
                   (size_t)(at - data));
}

static fd_code take_header(const char *name, json_t *header, const uint8_t *data, size_t size, fd_safetensors *out,
                           fd_error *err) {
    if (!json_is_object(header)) return fd_fail(err, FD_ERR_INPUT, "%s: the header is no JSON object", name);
    if (json_object_size(header) > (size_t)fd_limit_of(FD_LIMIT_TENSORS))
        return fd_limit_exceeded(err, FD_LIMIT_TENSORS, "%s: %zu tensors", name, json_object_size(header));
    out->items = calloc(json_object_size(header) + 1, sizeof *out->items);
    if (!out->items) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", name);
    const char *key;
    json_t *value;
    json_object_foreach(header, key, value) {
        if (strcmp(key, "__metadata__") == 0) continue;
        fd_safetensors_item *item = &out->items[out->n];
        FD_TRY(take_item(name, key, value, data, size, &item->array, err));
        if (!(item->name = strdup(key))) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", name);
        out->n++;
    }
    qsort(out->items, out->n, sizeof *out->items, by_place);
    return check_cover(name, out, data, size, err);
}

fd_code fd_safetensors_parse(const char *name, const void *data, size_t size, fd_safetensors *out, fd_error *err) {
    *out = (fd_safetensors){0};
    uint64_t length = 0;
    if (size < 8) return fd_fail(err, FD_ERR_INPUT, "%s: %zu bytes, no safetensors header", name, size);
    memcpy(&length, data, 8);
    if (length <= size - 8 && length > (uint64_t)fd_limit_of(FD_LIMIT_HEADER_BYTES))
        return fd_limit_exceeded(err, FD_LIMIT_HEADER_BYTES, "%s: a header of %llu bytes", name,
                                 (unsigned long long)length);
    if (length > size - 8)
        return fd_fail(err, FD_ERR_INPUT, "%s: a header of %llu bytes in a file of %zu: cut short, or no safetensors",
                       name, (unsigned long long)length, size);
    FD_TRY(fd_json_fits(name, (const char *)data + 8, (size_t)length, err));
    json_error_t why;
    json_t *header = json_loadb((const char *)data + 8, (size_t)length, JSON_REJECT_DUPLICATES, &why);
    if (!header) return fd_fail(err, FD_ERR_INPUT, "%s: header: %s", name, why.text);
    fd_code code = take_header(name, header, (const uint8_t *)data + 8 + length, size - 8 - (size_t)length, out, err);
    json_decref(header);
    if (code != FD_OK) fd_safetensors_free(out);
    return code;
}

void fd_safetensors_free(fd_safetensors *file) {
    for (size_t i = 0; i < file->n; i++) free(file->items[i].name);
    free(file->items);
    *file = (fd_safetensors){0};
}
