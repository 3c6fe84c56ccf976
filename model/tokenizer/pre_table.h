/* The table of pre-tokenisers: what each name in tokenizer.ggml.pre stands for. Included by pre.c and pre_table.c. */
#ifndef FD_MODEL_TOKENIZER_PRE_TABLE_H
#define FD_MODEL_TOKENIZER_PRE_TABLE_H

#include "base/status.h"

enum { FD_PRE_MAX_REGEX = 6 };

typedef struct fd_pre_row {
    const char *names; /* separated by spaces, one space before and after each */
    unsigned flags;    /* fd_pre_flag (pre.h) */
    const char *regex[FD_PRE_MAX_REGEX + 1];
} fd_pre_row;

/* FD_ERR_UNSUPPORTED names the pre-tokeniser and lists the known ones. */
fd_code fd_pre_row_of(const char *name, const fd_pre_row **row, fd_error *err);

#endif
