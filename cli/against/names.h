/* Which tensors of a checkpoint a GGUF's tensor is made of. */
#ifndef FD_CLI_AGAINST_NAMES_H
#define FD_CLI_AGAINST_NAMES_H

#include "cli/against/checkpoint.h"

typedef struct fd_against_parts {
    const fd_checkpoint_tensor **of; /* [n] owned; their rows follow each other */
    size_t n;                        /* 0: none found */
} fd_against_parts;

/* Freed by the caller, after a failure too. */
fd_code fd_against_find(const fd_checkpoint *checkpoint, const char *tensor, fd_against_parts *out, fd_error *err);

/* A buffer of the modelling code that is no weight: masks, inverse frequencies. */
bool fd_against_is_buffer(const char *name);
/* A tensor that converters compute, so that no checkpoint holds it. */
bool fd_against_is_computed(const char *tensor);

#endif
