/* Pre-tokenisers: what cuts a text into words before byte-level BPE merges inside each. Named as tokenizer.ggml.pre has
 * them; each is one regular expression or several, applied in turn to the pieces that the one before left. */
#ifndef FD_MODEL_TOKENIZER_PRE_H
#define FD_MODEL_TOKENIZER_PRE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

typedef struct fd_pre fd_pre;

/* FD_ERR_UNSUPPORTED names the pre-tokeniser and lists the known ones. */
fd_code fd_pre_new(const char *name, fd_pre **out, fd_error *err);
void fd_pre_free(fd_pre *pre); /* NULL is fine */

bool fd_pre_ignores_merges(const fd_pre *pre); /* a word that is a token is that token, whatever merges would make */
bool fd_pre_adds_bos(const char *name);        /* when the file does not say; false for an unknown name */

/* Cuts text [size] into *n_piece pieces; piece i is [ends[i - 1], ends[i]), the first from 0, the last to size: no byte
 * is lost or doubled. Bytes that are no UTF-8 are judged as U+FFFD each, and stay as they are. *ends is malloc'ed (also
 * when n_piece is 0), the caller frees it. Safe from several threads. */
fd_code fd_pre_split(const fd_pre *pre, const char *text, size_t size, size_t **ends, size_t *n_piece, fd_error *err);

/* Length 1…4 of the well-formed UTF-8 sequence at data [size], size > 0; 0 when there is none (Unicode 15, table
 * 3-7). */
size_t fd_utf8_length(const char *data, size_t size);

#endif
