/* Device and pinned host memory: one owner a block, CUDA's errors in words. */
#ifndef FD_ENGINE_MEMORY_H
#define FD_ENGINE_MEMORY_H

#include <stddef.h>

#include "kernels/launch_context.h"

typedef struct fd_block {
    void *data; /* owned */
    size_t size;
} fd_block;

/* `what` stands in the message: "device memory for the K/V cache: 123 bytes: out of memory". */
fd_code fd_device_alloc(fd_block *block, size_t size, const char *what, fd_error *err);
void fd_device_free(fd_block *block);
/* At least `size` bytes; contents are lost when it grows, and earlier work in the queue must be done with it. */
fd_code fd_device_reserve(fd_block *block, size_t size, const char *what, fd_error *err);

fd_code fd_pinned_reserve(fd_block *block, size_t size, const char *what, fd_error *err);
void fd_pinned_free(fd_block *block);

/* Blocks inside a block start at multiples of this: whole cache lines, and every vector load is aligned. */
static inline size_t fd_align(size_t size) {
    return (size + 255) / 256 * 256;
}

#endif
