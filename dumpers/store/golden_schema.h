/* The schema firstdiff-golden 1, shared by golden_write.c and golden_read.c (docs/trace-format.md):
 *
 *   /                 schema, version, producer, model_name, model_hash, arch, backend, device, numerics, contract,
 *                     n_vocab, n_generate, complete
 *   /nodes            char[64] [n_node], in order of execution
 *   /prompts/0000     attributes n_prompt, text (absent when given as tokens)
 *     tokens          int32 [n_token]
 *     logits          float32 [n_pos, n_vocab]
 *     fingerprints    uint64 [n_pos, n_node, 2] */
#ifndef FD_DUMPERS_STORE_GOLDEN_SCHEMA_H
#define FD_DUMPERS_STORE_GOLDEN_SCHEMA_H

#include "dumpers/store/golden.h"
#include "dumpers/hdf5/h5.h"

#define FD_GOLDEN_SCHEMA "firstdiff-golden"
enum { FD_GOLDEN_VERSION = 1, FD_GOLDEN_NAME = 64, FD_GOLDEN_MAX_PROMPTS = 10000 };

typedef struct fd_golden_field {
    const char *name;
    size_t offset, size;
} fd_golden_field;
extern const fd_golden_field fd_golden_texts[7];
extern const fd_golden_field fd_golden_numbers[3]; /* int32_t */

/* char[64], NUL-padded; released by the caller. */
hid_t fd_golden_name_type(void);

#endif
