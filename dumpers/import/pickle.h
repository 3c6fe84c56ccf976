/* Tensors that a pickle describes, as torch.save writes it (protocols 2 to 4). A pickle is a program for Python; here nothing of it runs:
 * numbers, text, tuples, lists and dictionaries are kept, calls that make a tensor of a storage are read, and all other objects and calls
 * are placeholders without effect. Source: Python's pickletools, which documents every opcode. */
#ifndef FD_DUMPERS_IMPORT_PICKLE_H
#define FD_DUMPERS_IMPORT_PICKLE_H

#include "dumpers/import/array.h"

typedef struct fd_pickle_tensor {
    char *
        name; /* its way through lists and dictionaries: "/key", ".0", "/key.0.inner"; "" for a lone tensor and its "value" */
    char storage[24]; /* which storage holds its elements */
    fd_array_type type;
    int rank;
    int64_t shape[FD_ARRAY_MAX_RANK], stride[FD_ARRAY_MAX_RANK]; /* stride and offset in elements, ≥ 0 */
    int64_t offset;
} fd_pickle_tensor;

typedef struct fd_pickle {
    fd_pickle_tensor *items;
    size_t n;
} fd_pickle;

/* `name` is for messages. FD_ERR_INPUT for what is no pickle, or holds no tensor. */
fd_code fd_pickle_parse(const char *name, const void *data, size_t size, fd_pickle *out, fd_error *err);
void fd_pickle_free(fd_pickle *pickle);

#endif
