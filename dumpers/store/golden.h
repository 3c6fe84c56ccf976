/* Golden files (HDF5): for each prompt the tokens, the logits and the fingerprint of every tensor at every position,
 * with the model's hash and the contract's version. Exact, so there is no tolerance. */
#ifndef FD_DUMPERS_STORE_GOLDEN_H
#define FD_DUMPERS_STORE_GOLDEN_H

#include "dumpers/store/trace.h"

typedef struct fd_golden_prompt {
    char *text;                   /* NULL when given as tokens */
    int32_t n_prompt;             /* leading tokens that are the prompt */
    int32_t n_token;              /* with the generated ones */
    int32_t *tokens;              /* [n_token] */
    int32_t n_pos;                /* positions computed: n_token or n_token - 1 */
    float *logits;                /* [n_pos, n_vocab] */
    fd_fingerprint *fingerprints; /* [n_pos, n_node] */
} fd_golden_prompt;

typedef struct fd_golden {
    char producer[64], model_name[128], model_hash[48], arch[32], backend[16], device[128], numerics[16];
    int32_t contract, n_vocab, n_node, n_generate;
    char (*nodes)[64];         /* [n_node] in order of execution */
    fd_golden_prompt *prompts; /* [n_prompt] */
    int32_t n_prompt;
} fd_golden;

/* Whether a golden can be put there, asked before its prompts are run: makes and removes a file. FD_ERR_IO with the reason. */
fd_code fd_golden_can_write(const char *path, fd_error *err);
/* Written under a temporary name and renamed when whole. */
fd_code fd_golden_write(const fd_golden *golden, const char *path, fd_error *err);
/* Refuses a file that is not a golden, is incomplete or inconsistent. */
fd_code fd_golden_read(const char *path, fd_golden **out, fd_error *err);
void fd_golden_free(fd_golden *golden); /* frees everything it points to, and itself */

#endif
