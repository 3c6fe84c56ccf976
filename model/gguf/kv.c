/* Key-values as C values: what the file has is converted when it fits and refused by name when it does not. */
#include "model/gguf/internal.h"

#include <inttypes.h>
#include <string.h>

const fd_gguf_type_info fd_gguf_types[FD_GGUF_TYPE_COUNT] = {
    [FD_GGUF_U8] = {"u8", 1},       [FD_GGUF_I8] = {"i8", 1},     [FD_GGUF_U16] = {"u16", 2},
    [FD_GGUF_I16] = {"i16", 2},     [FD_GGUF_U32] = {"u32", 4},   [FD_GGUF_I32] = {"i32", 4},
    [FD_GGUF_F32] = {"f32", 4},     [FD_GGUF_BOOL] = {"bool", 1}, [FD_GGUF_STRING] = {"string", 0},
    [FD_GGUF_ARRAY] = {"array", 0}, [FD_GGUF_U64] = {"u64", 8},   [FD_GGUF_I64] = {"i64", 8},
    [FD_GGUF_F64] = {"f64", 8},
};

const char *fd_gguf_type_name(fd_gguf_type type) {
    return (unsigned)type < FD_GGUF_TYPE_COUNT ? fd_gguf_types[type].name : "unknown";
}

/* Returns the item at `at` from the calling function: there is no alignment to rely on. */
#define RETURN_AS(target, type)                                                                                        \
    do {                                                                                                               \
        type value;                                                                                                    \
        memcpy(&value, at, sizeof value);                                                                              \
        *out = (target)value;                                                                                          \
        return true;                                                                                                   \
    } while (0)

bool fd_gguf_item_i64(const fd_gguf_kv *kv, uint64_t i, int64_t *out) {
    if (i >= kv->count) return false;
    const uint8_t *at = (const uint8_t *)kv->data + i * fd_gguf_types[kv->item_type].item_size;
    uint64_t large;
    switch (kv->item_type) {
    case FD_GGUF_U8:
    case FD_GGUF_BOOL: RETURN_AS(int64_t, uint8_t);
    case FD_GGUF_I8: RETURN_AS(int64_t, int8_t);
    case FD_GGUF_U16: RETURN_AS(int64_t, uint16_t);
    case FD_GGUF_I16: RETURN_AS(int64_t, int16_t);
    case FD_GGUF_U32: RETURN_AS(int64_t, uint32_t);
    case FD_GGUF_I32: RETURN_AS(int64_t, int32_t);
    case FD_GGUF_I64: RETURN_AS(int64_t, int64_t);
    case FD_GGUF_U64:
        memcpy(&large, at, sizeof large);
        *out = (int64_t)large;
        return large <= INT64_MAX;
    default: return false;
    }
}

bool fd_gguf_item_f64(const fd_gguf_kv *kv, uint64_t i, double *out) {
    if (i >= kv->count) return false;
    const uint8_t *at = (const uint8_t *)kv->data + i * fd_gguf_types[kv->item_type].item_size;
    switch (kv->item_type) {
    case FD_GGUF_F32: RETURN_AS(double, float);
    case FD_GGUF_F64: RETURN_AS(double, double);
    case FD_GGUF_U64: RETURN_AS(double, uint64_t);
    case FD_GGUF_BOOL: return false;
    default: break;
    }
    int64_t integer;
    if (!fd_gguf_item_i64(kv, i, &integer)) return false;
    *out = (double)integer;
    return true;
}

bool fd_gguf_next_string(const fd_gguf_kv *kv, size_t *cursor, fd_string *out) {
    if (kv->item_type != FD_GGUF_STRING) return false;
    /* The parser has walked these strings; the checks stay because the cursor is the caller's. */
    uint64_t size;
    if (*cursor > kv->size || kv->size - *cursor < sizeof size) return false;
    const char *at = (const char *)kv->data + *cursor;
    memcpy(&size, at, sizeof size);
    if (size > kv->size - *cursor - sizeof size) return false;
    *out = (fd_string){at + sizeof size, (size_t)size};
    *cursor += sizeof size + (size_t)size;
    return true;
}

static fd_code wrong_type(const fd_gguf_kv *kv, const char *expected, fd_error *err) {
    fd_gguf_shown key = fd_gguf_show(kv->key);
    if (kv->type == FD_GGUF_ARRAY)
        return fd_fail(err, FD_ERR_INPUT, "key %s: an array of %" PRIu64 " %s, expected %s", key.text, kv->count,
                       fd_gguf_types[kv->item_type].name, expected);
    return fd_fail(err, FD_ERR_INPUT, "key %s: a value of type %s, expected %s", key.text, fd_gguf_types[kv->type].name,
                   expected);
}

fd_code fd_gguf_get_i64(const fd_gguf *gguf, const char *key, int64_t fallback, int64_t *out, fd_error *err) {
    const fd_gguf_kv *kv = fd_gguf_find(gguf, key);
    if (!kv) {
        *out = fallback;
        return FD_OK;
    }
    if (kv->type == FD_GGUF_BOOL) return wrong_type(kv, "an integer", err);
    if (kv->type != FD_GGUF_ARRAY && fd_gguf_item_i64(kv, 0, out)) return FD_OK;
    return wrong_type(kv, kv->type == FD_GGUF_U64 ? "one below 2^63" : "an integer", err);
}

fd_code fd_gguf_get_f64(const fd_gguf *gguf, const char *key, double fallback, double *out, fd_error *err) {
    const fd_gguf_kv *kv = fd_gguf_find(gguf, key);
    if (!kv) {
        *out = fallback;
        return FD_OK;
    }
    if (kv->type != FD_GGUF_ARRAY && fd_gguf_item_f64(kv, 0, out)) return FD_OK;
    return wrong_type(kv, "a number", err);
}

fd_code fd_gguf_get_bool(const fd_gguf *gguf, const char *key, bool fallback, bool *out, fd_error *err) {
    const fd_gguf_kv *kv = fd_gguf_find(gguf, key);
    if (!kv) {
        *out = fallback;
        return FD_OK;
    }
    if (kv->type != FD_GGUF_BOOL) return wrong_type(kv, "a bool", err);
    *out = *(const uint8_t *)kv->data != 0;
    return FD_OK;
}

fd_code fd_gguf_get_string(const fd_gguf *gguf, const char *key, fd_string *out, fd_error *err) {
    const fd_gguf_kv *kv = fd_gguf_find(gguf, key);
    *out = (fd_string){NULL, 0};
    if (!kv) return FD_OK;
    size_t cursor = 0;
    if (kv->type != FD_GGUF_STRING || !fd_gguf_next_string(kv, &cursor, out)) return wrong_type(kv, "a string", err);
    return FD_OK;
}
