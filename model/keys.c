#include "model/keys.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

fd_code fd_keys_make(fd_keys *keys, const fd_gguf *gguf, const char *arch, fd_error *err) {
    *keys = (fd_keys){.gguf = gguf, .arch = arch, .err = err};
    keys->read = calloc(fd_gguf_n_kv(gguf) + 1, sizeof *keys->read);
    return keys->read ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "out of memory");
}

void fd_keys_free(fd_keys *keys) {
    free(keys->read);
    keys->read = NULL;
}

/* The full name; the key, if the file has it, counts as read. */
static const fd_gguf_kv *take(const fd_keys *keys, const char *name, char full[128]) {
    snprintf(full, 128, "%s.%s", keys->arch, name);
    const fd_gguf_kv *kv = fd_gguf_find(keys->gguf, full);
    if (kv) keys->read[kv - fd_gguf_kv_at(keys->gguf, 0)] = true;
    return kv;
}

const fd_gguf_kv *fd_key_find(const fd_keys *keys, const char *name) {
    char full[128];
    return take(keys, name, full);
}

fd_code fd_key_i32(const fd_keys *keys, const char *name, int64_t fallback, int64_t low, int64_t high, int32_t *out) {
    char full[128];
    const fd_gguf_kv *kv = take(keys, name, full);
    int64_t value = fallback;
    if (kv && kv->type == FD_GGUF_ARRAY) {
        for (uint64_t i = 0; i < kv->count; i++) {
            int64_t item;
            if (!fd_gguf_item_i64(kv, i, &item))
                return fd_fail(keys->err, FD_ERR_INPUT, "key %s: array of non-integers, expected an integer", full);
            if (i > 0 && item != value)
                return fd_fail(keys->err, FD_ERR_UNSUPPORTED,
                               "key %s: differs between layers (%lld, %lld), which is not implemented", full,
                               (long long)value, (long long)item);
            value = item;
        }
    } else {
        FD_TRY(fd_gguf_get_i64(keys->gguf, full, fallback, &value, keys->err));
    }
    if (!kv && fallback < 0) return fd_fail(keys->err, FD_ERR_INPUT, "key %s: missing", full);
    if (value < low || value > high)
        return fd_fail(keys->err, FD_ERR_INPUT, "key %s: %lld, expected %lld to %lld", full, (long long)value,
                       (long long)low, (long long)high);
    *out = (int32_t)value;
    return FD_OK;
}

fd_code fd_key_f64(const fd_keys *keys, const char *name, double fallback, double *out) {
    char full[128];
    take(keys, name, full);
    FD_TRY(fd_gguf_get_f64(keys->gguf, full, fallback, out, keys->err));
    if (!isfinite(*out)) return fd_fail(keys->err, FD_ERR_INPUT, "key %s: %g, expected a finite number", full, *out);
    return FD_OK;
}

fd_code fd_key_bool(const fd_keys *keys, const char *name, bool fallback, bool *out) {
    char full[128];
    take(keys, name, full);
    return fd_gguf_get_bool(keys->gguf, full, fallback, out, keys->err);
}

fd_code fd_key_string(const fd_keys *keys, const char *name, fd_string *out) {
    char full[128];
    take(keys, name, full);
    return fd_gguf_get_string(keys->gguf, full, out, keys->err);
}
