/* .safetensors files: u64 length of the header (little-endian), the header (JSON), then the elements.
 * {"name": {"dtype": "F32", "shape": [13, 64], "data_offsets": [0, 3328]}, …, "__metadata__": {…}}
 * Source: the format's description (safetensors on GitHub). Offsets must cover the bytes after the header without
 * holes or overlaps. */
#ifndef FD_DUMPERS_IMPORT_SAFETENSORS_H
#define FD_DUMPERS_IMPORT_SAFETENSORS_H

#include "dumpers/import/array.h"

typedef struct fd_safetensors_item {
    char *name;
    fd_array array; /* data borrowed from the file's bytes */
} fd_safetensors_item;

typedef struct fd_safetensors {
    fd_safetensors_item *items; /* in order of place in the file */
    size_t n;
} fd_safetensors;

/* `name` is for messages. FD_ERR_INPUT when the header lies about lengths, offsets, shapes or types, or names a tensor
 * twice. */
fd_code fd_safetensors_parse(const char *name, const void *data, size_t size, fd_safetensors *out, fd_error *err);
void fd_safetensors_free(fd_safetensors *file);

#endif
