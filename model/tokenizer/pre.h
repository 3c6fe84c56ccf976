/* Pre-tokenisers: what cuts a text into words before byte-level BPE merges inside each. Named as tokenizer.ggml.pre has
 * them; each is one regular expression or several, applied in turn to the pieces that the one before left. */
#ifndef FD_MODEL_TOKENIZER_PRE_H
#define FD_MODEL_TOKENIZER_PRE_H

#include <stddef.h>

#include "base/status.h"

typedef struct fd_pre fd_pre;

/* FD_ERR_UNSUPPORTED names the pre-tokeniser and lists the known ones. */
fd_code fd_pre_new(const char *name, fd_pre **out, fd_error *err);
void fd_pre_free(fd_pre *pre); /* NULL is fine */

enum fd_pre_flag {                             /* what else a pre-tokeniser's name says of its vocabulary */
                   FD_PRE_IGNORES_MERGES = 1,  /* a word that is a token is that token, whatever merges would make */
                   FD_PRE_WHOLE_NEWLINES = 2,  /* so is a word of newlines */
                   FD_PRE_ADDS_BOS = 4,        /* when the file does not say */
                   FD_PRE_ALWAYS_ADDS_BOS = 8, /* whatever the file says */
                   FD_PRE_MARKS_SPACES = 16,   /* tokens are UTF-8 with U+2581 for spaces, not bytes in GPT-2's table */
};
unsigned fd_pre_flags(const char *name); /* 0 for an unknown name */

/* Cuts text [size] into *n_piece pieces; piece i is [ends[i - 1], ends[i]), the first from 0, the last to size: no byte
 * is lost or doubled. Bytes that are no UTF-8 are judged as U+FFFD each, and stay as they are. *ends is malloc'ed (also
 * when n_piece is 0), the caller frees it. Safe from several threads. */
fd_code fd_pre_split(const fd_pre *pre, const char *text, size_t size, size_t **ends, size_t *n_piece, fd_error *err);

/* Length 1…4 of the well-formed UTF-8 sequence at data [size], size > 0; 0 when there is none (Unicode 15, table
 * 3-7). */
size_t fd_utf8_length(const char *data, size_t size);

#endif
