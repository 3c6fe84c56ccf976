#include "engine/memory.h"

#include <string.h>

/* What an allocation of `size` bytes for the block came to. */
static fd_code taken(fd_block *block, cudaError_t status, const char *kind, size_t size, const char *what,
                     fd_error *err) {
    if (status == cudaSuccess) {
        block->size = size;
        return FD_OK;
    }
    memset(block, 0, sizeof *block);
    (void)cudaGetLastError(); /* a refused allocation is no reason for the next launch to fail */
    return fd_fail(err, FD_ERR_MEMORY, "%s memory for %s: %zu bytes: %s", kind, what, size, cudaGetErrorString(status));
}

fd_code fd_device_alloc(fd_block *block, size_t size, const char *what, fd_error *err) {
    return taken(block, cudaMalloc(&block->data, size ? size : 1), "device", size, what, err);
}

void fd_device_free(fd_block *block) {
    if (block->data) (void)cudaFree(block->data);
    memset(block, 0, sizeof *block);
}

fd_code fd_device_reserve(fd_block *block, size_t size, const char *what, fd_error *err) {
    if (size <= block->size) return FD_OK;
    fd_device_free(block);
    return fd_device_alloc(block, size, what, err);
}

fd_code fd_pinned_reserve(fd_block *block, size_t size, const char *what, fd_error *err) {
    if (size <= block->size) return FD_OK;
    fd_pinned_free(block);
    return taken(block, cudaMallocHost(&block->data, size), "pinned host", size, what, err);
}

void fd_pinned_free(fd_block *block) {
    if (block->data) (void)cudaFreeHost(block->data);
    memset(block, 0, sizeof *block);
}
