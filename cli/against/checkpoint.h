/* The .safetensors files of a folder, mapped, their tensors by name. */
#ifndef FD_CLI_AGAINST_CHECKPOINT_H
#define FD_CLI_AGAINST_CHECKPOINT_H

#include "dumpers/import/safetensors.h"

typedef struct fd_checkpoint_tensor {
    const char *name;       /* in its file */
    const char *short_name; /* without what modelling code puts before: model., transformer., … */
    fd_array array;
} fd_checkpoint_tensor;

typedef struct fd_checkpoint {
    struct fd_checkpoint_file *files; /* [n_file] owned */
    size_t n_file;
    fd_checkpoint_tensor *tensors; /* [n] owned, by short name */
    size_t n;
} fd_checkpoint;

/* FD_ERR_INPUT where the folder cannot be read, has no .safetensors file, or a file is damaged. */
fd_code fd_checkpoint_open(const char *folder, fd_checkpoint *out, fd_error *err);
void fd_checkpoint_close(fd_checkpoint *checkpoint);

/* The first tensor of that short name; NULL. */
const fd_checkpoint_tensor *fd_checkpoint_find(const fd_checkpoint *checkpoint, const char *short_name);

#endif
