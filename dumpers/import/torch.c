#include "dumpers/import/torch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

/* The entry whose name ends so; SIZE_MAX: there is none. */
static size_t find(const fd_zip *zip, const char *suffix) {
    for (size_t i = 0; i < fd_zip_count(zip); i++)
        if (fd_ends_with(fd_zip_name(zip, i), suffix)) return i;
    return SIZE_MAX;
}

bool fd_torch_is(const fd_zip *zip) {
    return find(zip, "/data.pkl") != SIZE_MAX;
}

/* Bytes from the storage's start to the tensor's end; -1: more than can be counted. */
static int64_t reach(const fd_pickle_tensor *tensor, int64_t each) {
    int64_t last = tensor->offset;
    for (int i = 0; i < tensor->rank; i++) {
        int64_t span;
        if (tensor->shape[i] == 0) return 0;
        if (__builtin_mul_overflow(tensor->shape[i] - 1, tensor->stride[i], &span) ||
            __builtin_add_overflow(last, span, &last))
            return -1;
    }
    return __builtin_add_overflow(last, 1, &last) || __builtin_mul_overflow(last, each, &last) ? -1 : last;
}

/* The array's type, shape and strides; *entry: where its elements are. */
static fd_code place(const char *name, const fd_zip *zip, const fd_pickle_tensor *tensor, fd_array *out, size_t *entry,
                     fd_error *err) {
    fd_array one = {.type = tensor->type};
    const int64_t each = fd_array_pack(&one, false), end = reach(tensor, each);
    char storage[40];
    snprintf(storage, sizeof storage, "/data/%s", tensor->storage);
    *entry = find(zip, storage);
    *out = (fd_array){.type = tensor->type, .rank = tensor->rank};
    memcpy(out->shape, tensor->shape, sizeof out->shape);
    fd_array packed = *out;
    if (*entry == SIZE_MAX || end < 0 || (uint64_t)end > fd_zip_bytes(zip, *entry) || fd_array_pack(&packed, false) < 0)
        return fd_fail(err, FD_ERR_INPUT, "%s: a PyTorch file whose tensor \"%s\" is not inside its storage %s", name,
                       tensor->name, tensor->storage);
    for (int i = 0; i < tensor->rank; i++) out->stride[i] = tensor->shape[i] > 1 ? tensor->stride[i] * each : each;
    return FD_OK;
}

fd_code fd_torch_list(const char *name, const fd_zip *zip, fd_pickle *out, fd_error *err) {
    const size_t pickle = find(zip, "/data.pkl");
    const void *data;
    void *owned;
    FD_TRY(fd_zip_extract(zip, pickle, &data, &owned, err));
    fd_code code = fd_pickle_parse(name, data, fd_zip_bytes(zip, pickle), out, err);
    free(owned);
    for (size_t i = 0; code == FD_OK && i < out->n; i++) {
        fd_array array;
        size_t entry;
        code = place(name, zip, &out->items[i], &array, &entry, err);
    }
    if (code != FD_OK) fd_pickle_free(out);
    return code;
}

/* "big" in the entry byteorder; files without it are of little-endian machines. */
static bool is_big(const fd_zip *zip) {
    const size_t entry = find(zip, "/byteorder");
    const void *data;
    void *owned;
    fd_error ignored;
    if (entry == SIZE_MAX || fd_zip_extract(zip, entry, &data, &owned, &ignored) != FD_OK) return false;
    bool big = fd_zip_bytes(zip, entry) == 3 && memcmp(data, "big", 3) == 0;
    free(owned);
    return big;
}

fd_code fd_torch_array(const char *name, const fd_zip *zip, const fd_pickle_tensor *tensor, fd_array *out, void **owned,
                       fd_error *err) {
    const void *data;
    size_t entry;
    FD_TRY(place(name, zip, tensor, out, &entry, err));
    FD_TRY(fd_zip_extract(zip, entry, &data, owned, err));
    fd_array one = {.type = tensor->type};
    out->data = (const uint8_t *)data + tensor->offset * fd_array_pack(&one, false);
    out->swapped = is_big(zip);
    return FD_OK;
}
