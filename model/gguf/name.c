/* Names in a GGUF: sorting, searching, showing; and the size of a named tensor. */
#include "model/gguf/internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static int compare_strings(fd_string a, fd_string b) {
    size_t common = a.size < b.size ? a.size : b.size;
    int order = common ? memcmp(a.data, b.data, common) : 0;
    return order ? order : (a.size > b.size) - (a.size < b.size);
}

static int compare_names(const void *a, const void *b) {
    const fd_gguf_name *x = a, *y = b;
    int order = compare_strings(x->name, y->name);
    /* Equal names stay in file order, so that the one reported as the duplicate is the later one. */
    return order ? order : (x->index > y->index) - (x->index < y->index);
}

size_t fd_gguf_sort_names(fd_gguf_name *names, size_t n) {
    if (n == 0) return 0;
    qsort(names, n, sizeof *names, compare_names);
    for (size_t i = 1; i < n; i++)
        if (compare_strings(names[i - 1].name, names[i].name) == 0) return i;
    return n;
}

const fd_gguf_name *fd_gguf_find_name(const fd_gguf_name *names, size_t n, const char *name) {
    fd_string wanted = {name, strlen(name)};
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = compare_strings(names[middle].name, wanted);
        if (order == 0) return &names[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

bool fd_gguf_name_is_clean(fd_string name) {
    for (size_t i = 0; i < name.size; i++) {
        unsigned char c = (unsigned char)name.data[i];
        if (c < 0x20 || c == 0x7f) return false;
    }
    return true;
}

fd_gguf_shown fd_gguf_show(fd_string name) {
    static const char hex[] = "0123456789abcdef", cut[] = "…";
    fd_gguf_shown shown;
    size_t at = 0;
    for (size_t i = 0; i < name.size; i++) {
        unsigned char c = (unsigned char)name.data[i];
        bool plain = c >= 0x20 && c < 0x7f;
        if (at + 4 + sizeof cut > sizeof shown.text) {
            memcpy(shown.text + at, cut, sizeof cut);
            return shown;
        }
        if (plain) {
            shown.text[at++] = (char)c;
        } else {
            const char escaped[4] = {'\\', 'x', hex[c >> 4], hex[c & 15]};
            memcpy(shown.text + at, escaped, sizeof escaped);
            at += sizeof escaped;
        }
    }
    shown.text[at] = '\0';
    return shown;
}

bool fd_gguf_align(uint64_t at, uint64_t alignment, uint64_t *out) {
    uint64_t padded;
    if (__builtin_add_overflow(at, alignment - 1, &padded)) return false;
    *out = padded & ~(alignment - 1);
    return true;
}

/* Types ggml once wrote and has removed: such files exist, and their owner should read which type it is. */
static const struct {
    uint32_t id;
    const char *name;
} removed_types[] = {
    {4, "Q4_2"},      {5, "Q4_3"},        {31, "Q4_0_4_4"},   {32, "Q4_0_4_8"},
    {33, "Q4_0_8_8"}, {36, "IQ4_NL_4_4"}, {37, "IQ4_NL_4_8"}, {38, "IQ4_NL_8_8"},
};

static fd_code refuse_type(const fd_gguf_tensor *tensor, fd_error *err) {
    for (size_t i = 0; i < sizeof removed_types / sizeof *removed_types; i++)
        if (removed_types[i].id == tensor->dtype)
            return fd_fail(err, FD_ERR_UNSUPPORTED,
                           "tensor %s: type %s (id %" PRIu32 ") was removed from ggml; requantise", tensor->name,
                           removed_types[i].name, tensor->dtype);
    return fd_fail(err, FD_ERR_INPUT, "tensor %s: type id %" PRIu32 " is not a ggml type", tensor->name, tensor->dtype);
}

fd_code fd_gguf_size_tensor(fd_gguf_tensor *tensor, fd_error *err) {
    if (tensor->n_dim < 1 || tensor->n_dim > FD_GGUF_MAX_DIM)
        return fd_fail(err, FD_ERR_INPUT, "tensor %s: %" PRId32 " dimensions, expected 1 to %d", tensor->name,
                       tensor->n_dim, FD_GGUF_MAX_DIM);
    const fd_dtype_info *info = fd_dtype_get(tensor->dtype);
    if (!info) return refuse_type(tensor, err);
    int64_t elements = 1;
    for (int32_t i = 0; i < FD_GGUF_MAX_DIM; i++) {
        if (i >= tensor->n_dim) tensor->shape[i] = 1;
        if (tensor->shape[i] < 1)
            return fd_fail(err, FD_ERR_INPUT, "tensor %s: dimension %" PRId32 " is %" PRIu64 ", expected 1 to 2^63 - 1",
                           tensor->name, i, (uint64_t)tensor->shape[i]);
        if (__builtin_mul_overflow(elements, tensor->shape[i], &elements))
            return fd_fail(err, FD_ERR_INPUT, "tensor %s: the product of its dimensions exceeds 2^63", tensor->name);
    }
    if (tensor->shape[0] % info->block_elements != 0)
        return fd_fail(err, FD_ERR_INPUT,
                       "tensor %s: rows of %" PRId64 " elements, expected a multiple of %s's block of %" PRId32,
                       tensor->name, tensor->shape[0], info->name, info->block_elements);
    int64_t bytes = fd_dtype_row_bytes(tensor->dtype, tensor->shape[0]);
    if (bytes < 0 || __builtin_mul_overflow(bytes, elements / tensor->shape[0], &bytes))
        return fd_fail(err, FD_ERR_INPUT, "tensor %s: its size exceeds 2^63 bytes", tensor->name);
    tensor->bytes = (uint64_t)bytes;
    return FD_OK;
}
