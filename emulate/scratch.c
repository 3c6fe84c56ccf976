/* Memory that an op needs while it runs. */
#include <stdlib.h>

#include "emulate/internal.h"

void *fd_emulate_reserve(fd_emulate_buffer *buffer, size_t size, fd_error *err) {
    if (size <= buffer->size && buffer->data) return buffer->data;
    free(buffer->data);
    *buffer = (fd_emulate_buffer){malloc(size), size};
    if (!buffer->data) {
        buffer->size = 0;
        fd_fail(err, FD_ERR_MEMORY, "emulation: out of memory for %zu bytes", size);
    }
    return buffer->data;
}
