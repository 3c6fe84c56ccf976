/* The metadata of a made model. */
#ifndef FD_MODEL_MADE_KEYS_H
#define FD_MODEL_MADE_KEYS_H

#include "model/builder.h"
#include "model/gguf_writer/gguf_writer.h"
#include "model/gguf_writer/made_model.h"

/* Keys without the vocabulary. The description's keys go before its sizes, these before the architecture's made_keys, and these
 * before the defaults. */
fd_code fd_made_keys(const fd_made_model *what, const fd_arch *arch, fd_gguf_writer *writer, fd_error *err);
/* A tokenizer of n tokens; "no_vocab" where n is less than 259. */
fd_code fd_made_vocabulary(int64_t n, fd_gguf_writer *writer, fd_error *err);

#endif
