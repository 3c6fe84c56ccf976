/* Tokenizers: SentencePiece-style (ggml model "llama"), BPE with a pre-tokeniser, of bytes ("gpt2") or characters ("gemma4",
 * and some pre-tokenisers), RWKV's longest match ("rwkv"), WordPiece ("bert"). Built from a GGUF's tokenizer.ggml.* keys, or from raw tables (tests).
 * Thread-safe after creation. */
#ifndef FD_MODEL_TOKENIZER_TOKENIZER_H
#define FD_MODEL_TOKENIZER_TOKENIZER_H

#include "model/gguf/gguf.h"

typedef enum fd_token_type { /* ids as in tokenizer.ggml.token_type */
                             FD_TOKEN_NORMAL = 1,
                             FD_TOKEN_UNKNOWN,
                             FD_TOKEN_CONTROL,
                             FD_TOKEN_USER_DEFINED,
                             FD_TOKEN_UNUSED,
                             FD_TOKEN_BYTE
} fd_token_type;

typedef struct fd_vocab { /* everything borrowed during creation only */
    const char *model;    /* "llama", "gpt2", "gemma4", "rwkv" or "bert" */
    const char *pre;      /* "gpt-2", "llama-bpe", "qwen2", … as in pre_table.c; gpt2 alone reads it */
    int32_t n_token;
    const fd_string *tokens; /* [n_token] as in the file */
    const float *scores;     /* [n_token] or NULL */
    const int32_t *types;    /* [n_token] fd_token_type, or NULL: all normal */
    const fd_string *merges; /* [n_merge] "left right", best first (gpt2, gemma4) */
    int64_t n_merge;
    int32_t bos, eos, unk; /* -1 when the file has none */
    bool add_bos, add_eos;
    bool add_space_prefix;         /* llama model: a leading space before text */
    bool lowercase, strip_accents; /* bert: what is done to text before it is looked up */
    bool strip_after_special;      /* phi-3: white space after a special token is dropped (not after <s>, <unk>, …) */
} fd_vocab;

typedef struct fd_tokenizer fd_tokenizer;

fd_code fd_tokenizer_from_vocab(const fd_vocab *vocab, fd_tokenizer **out, fd_error *err);
/* FD_ERR_INPUT when the file has no tokenizer (message: use --tokens), FD_ERR_UNSUPPORTED for a model or pre-tokeniser
 * this build does not know (named, with the known ones). */
fd_code fd_tokenizer_from_gguf(const fd_gguf *gguf, fd_tokenizer **out, fd_error *err);
void fd_tokenizer_free(fd_tokenizer *tokenizer);

int32_t fd_tokenizer_n_token(const fd_tokenizer *tokenizer);
int32_t fd_tokenizer_bos(const fd_tokenizer *tokenizer); /* -1: none */
int32_t fd_tokenizer_eos(const fd_tokenizer *tokenizer);
bool fd_tokenizer_is_end(const fd_tokenizer *tokenizer, int32_t token); /* eos, eot and their like */
const char *fd_tokenizer_name(const fd_tokenizer *tokenizer);           /* "llama (SentencePiece)", "gpt2 / qwen2" */

/* text [size] to ids. add_special: BOS/EOS as the vocabulary asks. parse_special: control tokens written out in the
 * text become their ids; user-defined tokens always do. *ids is malloc'ed (also when *n_id is 0), the caller frees it.
 * Any bytes are accepted; those that are no UTF-8 become byte tokens. A byte that has no token becomes the unknown
 * token, and where the vocabulary has none that is FD_ERR_INPUT, never a silent loss. */
fd_code fd_tokenize(const fd_tokenizer *tokenizer, const char *text, size_t size, bool add_special, bool parse_special,
                    int32_t **ids, int32_t *n_id, fd_error *err);

/* The bytes of one token as they appear in text (byte tokens and the space mark resolved; control tokens give nothing
 * unless `special`). Returns the size; writes at most `capacity` bytes to `to`. -1: no such token. */
int32_t fd_token_bytes(const fd_tokenizer *tokenizer, int32_t token, bool special, char *to, int32_t capacity);

#endif
