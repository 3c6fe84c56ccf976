/* Collects metadata and tensors in memory (not their data); save.c writes the file. */
#include "model/gguf_writer/internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

fd_code fd_gguf_writer_new(fd_gguf_writer **out, fd_error *err) {
    *out = calloc(1, sizeof **out);
    if (!*out) return fd_fail(err, FD_ERR_MEMORY, "out of memory for a GGUF writer");
    (*out)->alignment = FD_GGUF_DEFAULT_ALIGNMENT;
    return FD_OK;
}

void fd_gguf_writer_free(fd_gguf_writer *writer) {
    if (!writer) return;
    for (size_t i = 0; i < writer->n_kv; i++) free(writer->key[i]);
    free(writer->key);
    free(writer->kv_bytes.data);
    free(writer->tensor);
    free(writer);
}

fd_code fd_gguf_append(fd_gguf_buffer *buffer, const void *data, size_t size, fd_error *err) {
    if (size > buffer->capacity - buffer->size) {
        size_t wanted = buffer->capacity ? buffer->capacity : 4096;
        while (wanted - buffer->size < size) {
            if (wanted > SIZE_MAX / 2)
                return fd_fail(err, FD_ERR_MEMORY, "out of memory for %zu bytes of metadata", size);
            wanted *= 2;
        }
        uint8_t *grown = realloc(buffer->data, wanted);
        if (!grown) return fd_fail(err, FD_ERR_MEMORY, "out of memory for %zu bytes of metadata", wanted);
        buffer->data = grown;
        buffer->capacity = wanted;
    }
    if (size) memcpy(buffer->data + buffer->size, data, size);
    buffer->size += size;
    return FD_OK;
}

fd_code fd_gguf_append_string(fd_gguf_buffer *buffer, fd_string string, fd_error *err) {
    uint64_t size = string.size;
    FD_TRY(fd_gguf_append(buffer, &size, sizeof size, err));
    return fd_gguf_append(buffer, string.data, string.size, err);
}

/* ---- key-values ---- */

static fd_code check_key(const fd_gguf_writer *writer, fd_string key, fd_error *err) {
    if (key.size < 1 || key.size > FD_GGUF_MAX_KEY)
        return fd_fail(err, FD_ERR_INPUT, "a key of %zu bytes, expected 1 to %d", key.size, FD_GGUF_MAX_KEY);
    if (!fd_gguf_name_is_clean(key))
        return fd_fail(err, FD_ERR_INPUT, "key \"%s\" has control characters", fd_gguf_show(key).text);
    for (size_t i = 0; i < writer->n_kv; i++) /* a file has tens of keys: no index needed */
        if (strlen(writer->key[i]) == key.size && memcmp(writer->key[i], key.data, key.size) == 0)
            return fd_fail(err, FD_ERR_INPUT, "key %s was put twice", writer->key[i]);
    return FD_OK;
}

static fd_code set_alignment(fd_gguf_writer *writer, const fd_gguf_kv *kv, fd_error *err) {
    int64_t alignment;
    if (kv->type != FD_GGUF_U32 || !fd_gguf_item_i64(kv, 0, &alignment))
        return fd_fail(err, FD_ERR_INPUT, "key general.alignment: a value of type %s, expected u32",
                       fd_gguf_type_name(kv->type));
    if (alignment < 1 || (alignment & (alignment - 1)))
        return fd_fail(err, FD_ERR_INPUT, "general.alignment is %" PRId64 ", expected a power of two", alignment);
    writer->alignment = (uint64_t)alignment;
    return FD_OK;
}

static fd_code check_bools(const fd_gguf_kv *kv, fd_error *err) {
    const uint8_t *items = kv->data;
    for (uint64_t i = 0; i < kv->count; i++)
        if (items[i] > 1)
            return fd_fail(err, FD_ERR_INPUT, "key %s: bool %" PRIu64 " is %u, expected 0 or 1",
                           fd_gguf_show(kv->key).text, i, (unsigned)items[i]);
    return FD_OK;
}

static fd_code append_kv(fd_gguf_buffer *to, const fd_gguf_kv *kv, fd_error *err) {
    uint32_t type = kv->type, item_type = kv->item_type;
    FD_TRY(fd_gguf_append_string(to, kv->key, err));
    FD_TRY(fd_gguf_append(to, &type, sizeof type, err));
    if (kv->type == FD_GGUF_ARRAY) {
        FD_TRY(fd_gguf_append(to, &item_type, sizeof item_type, err));
        FD_TRY(fd_gguf_append(to, &kv->count, sizeof kv->count, err));
    }
    return fd_gguf_append(to, kv->data, kv->size, err);
}

fd_code fd_gguf_put_kv(fd_gguf_writer *writer, const fd_gguf_kv *kv, fd_error *err) {
    FD_TRY(check_key(writer, kv->key, err));
    if (kv->item_type == FD_GGUF_BOOL) FD_TRY(check_bools(kv, err));
    char **keys = realloc(writer->key, (writer->n_kv + 1) * sizeof *keys);
    if (!keys) return fd_fail(err, FD_ERR_MEMORY, "out of memory for %zu keys", writer->n_kv + 1);
    writer->key = keys;
    char *copy = strndup(kv->key.data, kv->key.size);
    if (!copy) return fd_fail(err, FD_ERR_MEMORY, "out of memory for a key");
    size_t before = writer->kv_bytes.size;
    fd_code code = FD_OK;
    if (strcmp(copy, "general.alignment") == 0) code = set_alignment(writer, kv, err);
    if (code == FD_OK) code = append_kv(&writer->kv_bytes, kv, err);
    if (code != FD_OK) { /* a failed put leaves the writer as it was */
        writer->kv_bytes.size = before;
        free(copy);
        return code;
    }
    writer->key[writer->n_kv++] = copy;
    return FD_OK;
}

static fd_code put_scalar(fd_gguf_writer *writer, const char *key, fd_gguf_type type, const void *data, size_t size,
                          fd_error *err) {
    fd_gguf_kv kv = {{key, strlen(key)}, type, type, 1, data, size};
    return fd_gguf_put_kv(writer, &kv, err);
}

fd_code fd_gguf_put_u32(fd_gguf_writer *writer, const char *key, uint32_t value, fd_error *err) {
    return put_scalar(writer, key, FD_GGUF_U32, &value, sizeof value, err);
}

fd_code fd_gguf_put_f32(fd_gguf_writer *writer, const char *key, float value, fd_error *err) {
    return put_scalar(writer, key, FD_GGUF_F32, &value, sizeof value, err);
}

fd_code fd_gguf_put_bool(fd_gguf_writer *writer, const char *key, bool value, fd_error *err) {
    uint8_t byte = value;
    return put_scalar(writer, key, FD_GGUF_BOOL, &byte, sizeof byte, err);
}

/* Puts strings as one value: a scalar when `type` is FD_GGUF_STRING (then count is 1), else an array. */
static fd_code put_string_items(fd_gguf_writer *writer, const char *key, fd_gguf_type type, const fd_string *items,
                                uint64_t count, fd_error *err) {
    fd_gguf_buffer bytes = {0};
    fd_code code = FD_OK;
    for (uint64_t i = 0; i < count && code == FD_OK; i++) code = fd_gguf_append_string(&bytes, items[i], err);
    if (code == FD_OK) {
        fd_gguf_kv kv = {{key, strlen(key)}, type, FD_GGUF_STRING, count, bytes.data, bytes.size};
        code = fd_gguf_put_kv(writer, &kv, err);
    }
    free(bytes.data);
    return code;
}

fd_code fd_gguf_put_string(fd_gguf_writer *writer, const char *key, const char *value, fd_error *err) {
    fd_string item = {value, strlen(value)};
    return put_string_items(writer, key, FD_GGUF_STRING, &item, 1, err);
}

fd_code fd_gguf_put_strings(fd_gguf_writer *writer, const char *key, const fd_string *items, uint64_t count,
                            fd_error *err) {
    return put_string_items(writer, key, FD_GGUF_ARRAY, items, count, err);
}

fd_code fd_gguf_put_array(fd_gguf_writer *writer, const char *key, fd_gguf_type item_type, const void *items,
                          uint64_t count, fd_error *err) {
    uint32_t item_size = (unsigned)item_type < FD_GGUF_TYPE_COUNT ? fd_gguf_types[item_type].item_size : 0;
    if (!item_size)
        return fd_fail(err, FD_ERR_INPUT, "key %s: an array of %s, expected items of a number type", key,
                       fd_gguf_type_name(item_type));
    fd_gguf_kv kv = {{key, strlen(key)}, FD_GGUF_ARRAY, item_type, count, items, (size_t)count * item_size};
    return fd_gguf_put_kv(writer, &kv, err);
}

/* ---- tensors ---- */

fd_code fd_gguf_put_tensor(fd_gguf_writer *writer, const char *name, uint32_t dtype, int32_t n_dim,
                           const int64_t *shape, const void *data, fd_gguf_fill_fn fill, void *user, fd_error *err) {
    fd_string shown = {name, strlen(name)};
    if (shown.size < 1 || shown.size > FD_GGUF_MAX_NAME)
        return fd_fail(err, FD_ERR_INPUT, "a tensor name of %zu bytes, expected 1 to %d", shown.size, FD_GGUF_MAX_NAME);
    if (!fd_gguf_name_is_clean(shown))
        return fd_fail(err, FD_ERR_INPUT, "tensor name \"%s\" has control characters", fd_gguf_show(shown).text);
    if (!data == !fill)
        return fd_fail(err, FD_ERR_INPUT, "tensor %s: %s data and fill, expected one of them", name,
                       data ? "both" : "neither");

    fd_gguf_pending pending = {.source = data, .fill = fill, .user = user};
    memcpy(pending.tensor.name, name, shown.size + 1);
    pending.tensor.dtype = dtype;
    pending.tensor.n_dim = n_dim;
    for (int32_t i = 0; i < n_dim && i < FD_GGUF_MAX_DIM; i++) pending.tensor.shape[i] = shape[i];
    FD_TRY(fd_gguf_size_tensor(&pending.tensor, err));

    if (writer->n_tensor == writer->tensor_capacity) {
        size_t wanted = writer->tensor_capacity ? writer->tensor_capacity * 2 : 64;
        fd_gguf_pending *grown = realloc(writer->tensor, wanted * sizeof *grown);
        if (!grown) return fd_fail(err, FD_ERR_MEMORY, "out of memory for %zu tensors", wanted);
        writer->tensor = grown;
        writer->tensor_capacity = wanted;
    }
    writer->tensor[writer->n_tensor++] = pending;
    return FD_OK;
}
