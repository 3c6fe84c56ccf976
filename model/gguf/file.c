/* A parsed GGUF: what it holds, by index and by name, and its end. */
#include "base/file.h"
#include "model/gguf/internal.h"

#include <stdlib.h>

void fd_gguf_close(fd_gguf *gguf) {
    if (!gguf) return;
    if (gguf->is_mapped) fd_file_unmap(gguf->data, gguf->size);
    free(gguf->kv);
    free(gguf->tensor);
    free(gguf->kv_by_name);
    free(gguf->tensor_by_name);
    free(gguf->by_offset);
    free(gguf);
}

uint32_t fd_gguf_version(const fd_gguf *gguf) {
    return gguf->version;
}
uint64_t fd_gguf_alignment(const fd_gguf *gguf) {
    return gguf->alignment;
}
size_t fd_gguf_file_size(const fd_gguf *gguf) {
    return gguf->size;
}
const void *fd_gguf_file_data(const fd_gguf *gguf) {
    return gguf->data;
}
uint64_t fd_gguf_data_offset(const fd_gguf *gguf) {
    return gguf->data_offset;
}

size_t fd_gguf_n_kv(const fd_gguf *gguf) {
    return gguf->n_kv;
}
size_t fd_gguf_n_tensor(const fd_gguf *gguf) {
    return gguf->n_tensor;
}
const fd_gguf_kv *fd_gguf_kv_at(const fd_gguf *gguf, size_t i) {
    return i < gguf->n_kv ? &gguf->kv[i] : NULL;
}
const fd_gguf_tensor *fd_gguf_tensor_at(const fd_gguf *gguf, size_t i) {
    return i < gguf->n_tensor ? &gguf->tensor[i] : NULL;
}

const fd_gguf_kv *fd_gguf_find(const fd_gguf *gguf, const char *key) {
    const fd_gguf_name *found = fd_gguf_find_name(gguf->kv_by_name, gguf->n_kv, key);
    return found ? &gguf->kv[found->index] : NULL;
}

const fd_gguf_tensor *fd_gguf_find_tensor(const fd_gguf *gguf, const char *name) {
    const fd_gguf_name *found = fd_gguf_find_name(gguf->tensor_by_name, gguf->n_tensor, name);
    return found ? &gguf->tensor[found->index] : NULL;
}
