/* What the two halves of the GGUF writer share: collect.c keeps what is put, save.c writes the file. */
#ifndef FD_MODEL_GGUF_WRITER_INTERNAL_H
#define FD_MODEL_GGUF_WRITER_INTERNAL_H

#include "model/gguf_writer/gguf_writer.h"
#include "model/gguf/internal.h"

typedef struct fd_gguf_buffer { /* growing bytes, freed by whoever holds it */
    uint8_t *data;
    size_t size, capacity;
} fd_gguf_buffer;

fd_code fd_gguf_append(fd_gguf_buffer *buffer, const void *data, size_t size, fd_error *err);
fd_code fd_gguf_append_string(fd_gguf_buffer *buffer, fd_string string, fd_error *err);

typedef struct fd_gguf_pending { /* a tensor to be written */
    fd_gguf_tensor tensor;       /* offset is set when the file is written; data stays NULL */
    const void *source;          /* borrowed, [tensor.bytes]; NULL when fill is given */
    fd_gguf_fill_fn fill;
    void *user;
} fd_gguf_pending;

struct fd_gguf_writer {
    uint64_t alignment;
    fd_gguf_buffer kv_bytes; /* the key-values as they will stand in the file */
    char **key;              /* [n_kv] owned, to refuse duplicates */
    size_t n_kv;
    fd_gguf_pending *tensor; /* [n_tensor], room for tensor_capacity */
    size_t n_tensor, tensor_capacity;
};

#endif
