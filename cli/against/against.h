/* A GGUF against the safetensors checkpoint that it was made from: each tensor by its name there, in the form that the
 * architecture's converter gives it, within what its type rounds. What does not agree is explained where another form,
 * another tensor or a factor makes it agree. */
#ifndef FD_CLI_AGAINST_AGAINST_H
#define FD_CLI_AGAINST_AGAINST_H

#include "model/gguf/gguf.h"

typedef struct fd_against_finding {
    char tensor[128];     /* of the GGUF; "" for a tensor of the checkpoint that nothing in the GGUF holds */
    char checkpoint[192]; /* its name there; "" where there is none */
    char what[256];       /* what is wrong, or why it could not be compared */
} fd_against_finding;

typedef struct fd_against_list {
    fd_against_finding *items; /* owned */
    size_t n;
} fd_against_list;

typedef struct fd_against_report {
    size_t n_tensor;          /* compared */
    size_t n_rounded;         /* of them agree, within what their type rounds; the others to the last bit */
    double largest_error;     /* root mean square of a quantised tensor's difference to that of its values */
    char largest_tensor[128]; /* which it is; "" without quantised tensors */
    fd_against_list wrong;    /* do not agree, or lack their part of the checkpoint */
    fd_against_list unknown;  /* could not be compared */
    fd_against_list notes;    /* padded vocabularies and the like */
} fd_against_report;

/* FD_ERR_INPUT where the folder holds no tensors. Freed with fd_against_free, after a failure too. */
fd_code fd_against_run(const fd_gguf *gguf, const char *folder, fd_against_report *out, fd_error *err);
void fd_against_free(fd_against_report *report);

#endif
