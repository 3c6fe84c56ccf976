/* Parses a GGUF in memory. Every count, length and offset is compared with the bytes that are left before it is used,
 * and arrays grow with what has been read rather than with what the header claims, so a crafted header costs nothing.
 *
 *   0  "GGUF"  4  u32 version  8  u64 n_tensor  16  u64 n_kv  24  key-values, tensor infos, padding, tensor data
 *
 *   key-value:    string key, u32 type, value            string: u64 size, bytes (no NUL)
 *   array value:  u32 item type, u64 count, items        tensor info: string name, u32 n_dim, u64 shape[n_dim],
 *                                                                     u32 dtype, u64 offset into the data section */
#include "model/gguf/cursor.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { KV_MIN_BYTES = 8 + 1 + 4 + 1, TENSOR_MIN_BYTES = 8 + 1 + 4 + 8 + 4 + 8 }; /* the smallest of each there can be */

/* Room for one more item in an array of `count`: doubling, so that memory follows what the file really holds. */
static fd_code grow(void **items, size_t count, size_t *capacity, size_t item_size, fd_error *err) {
    if (count < *capacity) return FD_OK;
    size_t wanted = *capacity ? *capacity * 2 : 64;
    void *grown = wanted > SIZE_MAX / item_size ? NULL : realloc(*items, wanted * item_size);
    if (!grown) return fd_fail(err, FD_ERR_MEMORY, "out of memory for %zu header entries", wanted);
    *items = grown;
    *capacity = wanted;
    return FD_OK;
}

/* ---- header ---- */

/* What people often pass by mistake; the first four bytes tell. */
static const struct {
    char magic[5];
    const char *what;
} not_gguf[] = {
    {"vers", "perhaps a Git LFS pointer instead of the file it stands for"},
    {"PK\x03\x04", "perhaps a PyTorch checkpoint (zip)"},
    {"tjgg", "a llama.cpp file older than GGUF"},
    {"fmgg", "a llama.cpp file older than GGUF"},
    {"lmgg", "a llama.cpp file older than GGUF"},
    {"<!DO", "a web page"},
    {"<htm", "a web page"},
};

static fd_code check_magic(fd_gguf_cursor *c, fd_error *err) {
    if (fd_gguf_left(c) < 4)
        return fd_fail(err, FD_ERR_INPUT, "not a GGUF file: %zu bytes long, too short for its magic", fd_gguf_left(c));
    const uint8_t *magic = fd_gguf_take(c, 4, "magic", err);
    if (!magic) return FD_ERR_INPUT;
    if (memcmp(magic, FD_GGUF_MAGIC, 4) == 0) return FD_OK;
    const char *hint = "";
    for (size_t i = 0; i < sizeof not_gguf / sizeof *not_gguf; i++)
        if (memcmp(magic, not_gguf[i].magic, 4) == 0) hint = not_gguf[i].what;
    return fd_fail(err, FD_ERR_INPUT,
                   "not a GGUF file: starts with %02x %02x %02x %02x \"%s\", expected 47 47 55 46 \"GGUF\"%s%s",
                   magic[0], magic[1], magic[2], magic[3], fd_gguf_show((fd_string){(const char *)magic, 4}).text,
                   *hint ? "; " : "", hint);
}

static fd_code check_version(uint32_t version, fd_error *err) {
    if (version == 2 || version == 3) return FD_OK;
    /* Big-endian files carry the same magic; a version whose low half is empty is a small number with its bytes
     * swapped. */
    if (version != 0 && (version & 0xffff) == 0)
        return fd_fail(err, FD_ERR_UNSUPPORTED,
                       "byte 4: a big-endian GGUF (version field %08" PRIx32 "); convert it to little-endian", version);
    if (version == 1)
        return fd_fail(err, FD_ERR_UNSUPPORTED,
                       "byte 4: GGUF version 1 (32-bit counts), expected 2 or 3; convert it again");
    return fd_fail(err, FD_ERR_UNSUPPORTED, "byte 4: GGUF version %" PRIu32 ", expected 2 or 3", version);
}

static fd_code check_count(const fd_gguf_cursor *c, uint64_t count, size_t min_bytes, const char *what, fd_error *err) {
    if (count <= fd_gguf_left(c) / min_bytes) return FD_OK;
    return fd_fail(err, FD_ERR_INPUT,
                   "the header claims %" PRIu64 " %s, the file's %zu bytes have room for at most %zu", count, what,
                   c->size, fd_gguf_left(c) / min_bytes);
}

/* ---- key-values ---- */

static fd_code take_items(fd_gguf_cursor *c, fd_gguf_kv *kv, fd_error *err) {
    size_t start = c->at;
    kv->data = c->data + start;
    uint32_t item_size = fd_gguf_types[kv->item_type].item_size;
    if (item_size) {
        if (kv->count > fd_gguf_left(c) / item_size)
            return fd_fail(err, FD_ERR_INPUT,
                           "truncated at byte %zu: %" PRIu64 " items of %s, the file has %zu bytes left", start,
                           kv->count, fd_gguf_types[kv->item_type].name, fd_gguf_left(c));
        if (!fd_gguf_take(c, kv->count * item_size, "items", err)) return FD_ERR_INPUT;
    } else {
        for (uint64_t i = 0; i < kv->count; i++) {
            fd_string ignored;
            FD_TRY(fd_gguf_take_string(c, "string", &ignored, err));
        }
    }
    kv->size = c->at - start;
    if (kv->item_type == FD_GGUF_BOOL)
        for (uint64_t i = 0; i < kv->count; i++)
            if (c->data[start + i] > 1)
                return fd_fail(err, FD_ERR_INPUT, "byte %" PRIu64 ": bool is %u, expected 0 or 1", (uint64_t)start + i,
                               (unsigned)c->data[start + i]);
    return FD_OK;
}

static fd_code take_type(fd_gguf_cursor *c, const char *what, fd_gguf_type *out, fd_error *err) {
    uint32_t id;
    size_t start = c->at;
    FD_TRY(fd_gguf_take_u32(c, what, &id, err));
    if (id >= FD_GGUF_TYPE_COUNT)
        return fd_fail(err, FD_ERR_INPUT, "byte %zu: %s id %" PRIu32 ", expected 0 to %d", start, what, id,
                       FD_GGUF_TYPE_COUNT - 1);
    *out = (fd_gguf_type)id;
    return FD_OK;
}

static fd_code take_value(fd_gguf_cursor *c, fd_gguf_kv *kv, fd_error *err) {
    FD_TRY(take_type(c, "value type", &kv->type, err));
    kv->item_type = kv->type;
    kv->count = 1;
    if (kv->type == FD_GGUF_ARRAY) {
        FD_TRY(take_type(c, "item type", &kv->item_type, err));
        if (kv->item_type == FD_GGUF_ARRAY)
            return fd_fail(err, FD_ERR_UNSUPPORTED, "byte %zu: an array of arrays", c->at - 4);
        FD_TRY(fd_gguf_take_u64(c, "item count", &kv->count, err));
    }
    return take_items(c, kv, err);
}

static fd_code take_kvs(fd_gguf_cursor *c, uint64_t count, fd_gguf *gguf, fd_error *err) {
    FD_TRY(check_count(c, count, KV_MIN_BYTES, "key-values", err));
    size_t capacity = 0;
    for (; gguf->n_kv < count; gguf->n_kv++) {
        FD_TRY(grow((void **)&gguf->kv, gguf->n_kv, &capacity, sizeof *gguf->kv, err));
        fd_gguf_kv *kv = &gguf->kv[gguf->n_kv];
        if (fd_gguf_take_name(c, "key", FD_GGUF_MAX_KEY, &kv->key, err) != FD_OK)
            return fd_error_prefix(err, "key-value %zu of %" PRIu64, gguf->n_kv, count);
        if (take_value(c, kv, err) != FD_OK) return fd_error_prefix(err, "key %s", fd_gguf_show(kv->key).text);
    }
    if (!(gguf->kv_by_name = calloc(gguf->n_kv + 1, sizeof *gguf->kv_by_name)))
        return fd_fail(err, FD_ERR_MEMORY, "out of memory for %zu keys", gguf->n_kv);
    for (size_t i = 0; i < gguf->n_kv; i++) gguf->kv_by_name[i] = (fd_gguf_name){gguf->kv[i].key, i};
    size_t twice = fd_gguf_sort_names(gguf->kv_by_name, gguf->n_kv);
    if (twice < gguf->n_kv)
        return fd_fail(err, FD_ERR_INPUT, "key %s stands twice in the file",
                       fd_gguf_show(gguf->kv_by_name[twice].name).text);
    return FD_OK;
}

static fd_code set_alignment(fd_gguf *gguf, fd_error *err) {
    int64_t alignment;
    FD_TRY(fd_gguf_get_i64(gguf, "general.alignment", FD_GGUF_DEFAULT_ALIGNMENT, &alignment, err));
    if (alignment < 1 || alignment > UINT32_MAX || (alignment & (alignment - 1)))
        return fd_fail(err, FD_ERR_INPUT, "general.alignment is %" PRId64 ", expected a power of two", alignment);
    gguf->alignment = (uint64_t)alignment;
    return FD_OK;
}

/* ---- tensors ---- */

static fd_code take_tensor(fd_gguf_cursor *c, uint64_t alignment, fd_gguf_tensor *tensor, fd_error *err) {
    fd_string name;
    uint32_t n_dim;
    FD_TRY(fd_gguf_take_name(c, "tensor name", FD_GGUF_MAX_NAME, &name, err));
    memset(tensor, 0, sizeof *tensor);
    memcpy(tensor->name, name.data, name.size);
    FD_TRY(fd_gguf_take_u32(c, "dimension count", &n_dim, err));
    tensor->n_dim = n_dim <= FD_GGUF_MAX_DIM ? (int32_t)n_dim : -1;
    if (tensor->n_dim < 1)
        return fd_fail(err, FD_ERR_INPUT, "byte %zu: tensor %s: %" PRIu32 " dimensions, expected 1 to %d", c->at - 4,
                       fd_gguf_show(name).text, n_dim, FD_GGUF_MAX_DIM);
    for (uint32_t i = 0; i < n_dim; i++) {
        uint64_t dimension;
        FD_TRY(fd_gguf_take_u64(c, "dimension", &dimension, err));
        tensor->shape[i] = (int64_t)dimension; /* beyond 2^63 it is negative, which fd_gguf_size_tensor refuses */
    }
    FD_TRY(fd_gguf_take_u32(c, "tensor type", &tensor->dtype, err));
    FD_TRY(fd_gguf_take_u64(c, "tensor offset", &tensor->offset, err));
    FD_TRY(fd_gguf_size_tensor(tensor, err));
    if (tensor->offset & (alignment - 1))
        return fd_fail(err, FD_ERR_INPUT,
                       "byte %zu: tensor %s: offset %" PRIu64 ", expected a multiple of the alignment %" PRIu64,
                       c->at - 8, tensor->name, tensor->offset, alignment);
    return FD_OK;
}

static fd_code take_tensors(fd_gguf_cursor *c, uint64_t count, fd_gguf *gguf, fd_error *err) {
    FD_TRY(check_count(c, count, TENSOR_MIN_BYTES, "tensors", err));
    size_t capacity = 0;
    for (; gguf->n_tensor < count; gguf->n_tensor++) {
        FD_TRY(grow((void **)&gguf->tensor, gguf->n_tensor, &capacity, sizeof *gguf->tensor, err));
        if (take_tensor(c, gguf->alignment, &gguf->tensor[gguf->n_tensor], err) != FD_OK)
            return fd_error_prefix(err, "tensor info %zu of %" PRIu64, gguf->n_tensor, count);
    }
    if (!(gguf->tensor_by_name = calloc(gguf->n_tensor + 1, sizeof *gguf->tensor_by_name)))
        return fd_fail(err, FD_ERR_MEMORY, "out of memory for %zu tensor names", gguf->n_tensor);
    for (size_t i = 0; i < gguf->n_tensor; i++) {
        const char *name = gguf->tensor[i].name;
        gguf->tensor_by_name[i] = (fd_gguf_name){{name, strlen(name)}, i};
    }
    size_t twice = fd_gguf_sort_names(gguf->tensor_by_name, gguf->n_tensor);
    if (twice < gguf->n_tensor)
        return fd_fail(err, FD_ERR_INPUT, "tensor %s stands twice in the file", gguf->tensor_by_name[twice].name.data);
    return FD_OK;
}

static int compare_offsets(const void *a, const void *b) {
    const fd_gguf_tensor *x = *(fd_gguf_tensor *const *)a, *y = *(fd_gguf_tensor *const *)b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Every tensor inside the file, and no two of them over each other. */
static fd_code place_tensors(size_t header_end, fd_gguf *gguf, fd_error *err) {
    if (!fd_gguf_align(header_end, gguf->alignment, &gguf->data_offset))
        return fd_fail(err, FD_ERR_INPUT, "general.alignment %" PRIu64 " puts the data past 2^64", gguf->alignment);
    /* A file without tensors (a vocabulary) need not be padded to where they would start. */
    if (gguf->n_tensor == 0 && gguf->data_offset > gguf->size) gguf->data_offset = gguf->size;
    if (!(gguf->by_offset = calloc(gguf->n_tensor + 1, sizeof *gguf->by_offset)))
        return fd_fail(err, FD_ERR_MEMORY, "out of memory for %zu tensors", gguf->n_tensor);
    for (size_t i = 0; i < gguf->n_tensor; i++) {
        fd_gguf_tensor *tensor = &gguf->tensor[i];
        uint64_t start, end;
        if (__builtin_add_overflow(gguf->data_offset, tensor->offset, &start) ||
            __builtin_add_overflow(start, tensor->bytes, &end))
            return fd_fail(err, FD_ERR_INPUT, "truncated: tensor %s ends past 2^64, the file has %zu bytes",
                           tensor->name, gguf->size);
        if (end > gguf->size)
            return fd_fail(err, FD_ERR_INPUT, "truncated: tensor %s ends at byte %" PRIu64 ", the file has %zu",
                           tensor->name, end, gguf->size);
        tensor->data = gguf->data + start;
        gguf->by_offset[i] = tensor;
    }
    if (gguf->n_tensor) qsort(gguf->by_offset, gguf->n_tensor, sizeof *gguf->by_offset, compare_offsets);
    for (size_t i = 1; i < gguf->n_tensor; i++) {
        const fd_gguf_tensor *a = gguf->by_offset[i - 1], *b = gguf->by_offset[i];
        if (a->offset + a->bytes > b->offset)
            return fd_fail(err, FD_ERR_INPUT,
                           "tensors %s (data bytes %" PRIu64 " to %" PRIu64 ") and %s (%" PRIu64 " to %" PRIu64
                           ") overlap",
                           a->name, a->offset, a->offset + a->bytes, b->name, b->offset, b->offset + b->bytes);
    }
    return FD_OK;
}

static fd_code parse(fd_gguf *gguf, fd_error *err) {
    fd_gguf_cursor c = {gguf->data, gguf->size, 0};
    uint64_t n_tensor, n_kv;
    FD_TRY(check_magic(&c, err));
    FD_TRY(fd_gguf_take_u32(&c, "version", &gguf->version, err));
    FD_TRY(check_version(gguf->version, err));
    FD_TRY(fd_gguf_take_u64(&c, "tensor count", &n_tensor, err));
    FD_TRY(fd_gguf_take_u64(&c, "key-value count", &n_kv, err));
    FD_TRY(take_kvs(&c, n_kv, gguf, err));
    FD_TRY(set_alignment(gguf, err));
    FD_TRY(take_tensors(&c, n_tensor, gguf, err));
    return place_tensors(c.at, gguf, err);
}

fd_code fd_gguf_parse(const void *data, size_t size, fd_gguf **out, fd_error *err) {
    *out = NULL;
    fd_gguf *gguf = calloc(1, sizeof *gguf);
    if (!gguf) return fd_fail(err, FD_ERR_MEMORY, "out of memory for a GGUF");
    gguf->data = data;
    gguf->size = size;
    fd_code code = parse(gguf, err);
    if (code != FD_OK) {
        fd_gguf_close(gguf);
        return code;
    }
    *out = gguf;
    return FD_OK;
}
