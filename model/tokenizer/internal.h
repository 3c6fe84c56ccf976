/* What the tokenizer's files share; no other file includes this. */
#ifndef FD_MODEL_TOKENIZER_INTERNAL_H
#define FD_MODEL_TOKENIZER_INTERNAL_H

#include "model/tokenizer/piece_map.h"
#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/merge.h"
#include "model/tokenizer/pre.h"

typedef struct fd_tokenizer_kind fd_tokenizer_kind;
typedef struct fd_wordpiece fd_wordpiece; /* its patterns and flags (wordpiece.c) */

typedef struct fd_merge_rule { /* one slot of the merge table (BPE) */
    int32_t left, right;       /* pieces; left is -1 in an empty slot */
    int32_t rank, piece;       /* place in the file's list; what they become */
} fd_merge_rule;

struct fd_tokenizer {
    const fd_tokenizer_kind *kind;
    char name[80];
    int32_t n_token, bos, eos, unk; /* -1: none */
    bool add_bos, add_eos, add_space_prefix;

    uint8_t *types; /* [n_token] fd_token_type */
    bool *is_end;   /* [n_token] */
    float *scores;  /* [n_token] (SPM) */
    char *bytes;    /* the tokens as they appear in text, end to end */
    size_t *starts; /* [n_token + 1] into bytes */

    int32_t *special; /* [n_special] control, unknown and user-defined tokens, longest text first */
    int32_t n_special;
    bool *drops_space; /* [n_token] white space after this special token is dropped; NULL: after none */

    fd_piece_map pieces; /* with marks: the tokens' texts (spaces as U+2581); BPE: raw bytes of tokens and of merges */
    int32_t *token_of_piece;    /* [pieces.n] -1: only a step on the way to a token */
    int32_t token_of_byte[256]; /* fallback for what no token covers; -1: none */
    size_t longest[256];        /* of the pieces that begin with this byte (RWKV, WordPiece) */
    struct fd_wordpiece *wordpiece;

    fd_pre *pre;          /* BPE */
    unsigned pre_flags;   /* fd_pre_flag */
    fd_merge_rule *rules; /* [n_rule_slot] hash table, a power of two, at most half full */
    size_t n_rule_slot;
};

typedef struct fd_ids { /* a growing list of ids */
    int32_t *data;
    int32_t n, capacity;
} fd_ids;

fd_code fd_ids_push(fd_ids *ids, int32_t id, fd_error *err);

/* The tokens of single bytes, for what no token covers: unk where a byte has none, and an error where there is no
 * unk. */
fd_code fd_push_bytes(const fd_tokenizer *tokenizer, const char *data, size_t size, fd_ids *ids, fd_error *err);

/* Of vocabularies with U+2581 for spaces and <0x0A> for bytes (space_mark.c): the bytes a token stands for in a text, at
 * most text.size of them; the tokens of bytes, once the pieces are there; a text with its spaces, and one before it where
 * there is to be one, as marks (malloc'ed). */
fd_code fd_marked_token_text(fd_string text, int32_t token, uint8_t type, char *to, size_t *size, fd_error *err);
void fd_list_byte_tokens(fd_tokenizer *tokenizer);
fd_code fd_mark_spaces(const char *text, size_t size, bool space_prefix, char **marked, size_t *n, fd_error *err);

/* Tokens that end a turn, by their texts: fills is_end, corrects types. (ends.c) */
void fd_find_ends(fd_tokenizer *tokenizer, const fd_vocab *vocab);

/* A stretch of text, or one special token found in it. */
typedef struct fd_fragment {
    int32_t token; /* -1: text [start, start + size) */
    size_t start, size;
} fd_fragment;

/* Cuts the text at special tokens. *fragments is malloc'ed; the caller frees it. (special.c) */
fd_code fd_find_special(const fd_tokenizer *tokenizer, const char *text, size_t size, bool parse_special,
                        fd_fragment **fragments, size_t *n_fragment, fd_error *err);
/* Fills tokenizer->special from the types. */
fd_code fd_list_special(fd_tokenizer *tokenizer, fd_error *err);

/* A row a kind (tokenizer.c): the tables (types, n_token and the flags are there already), and one stretch of text to
 * ids. `after_special`: nothing stands before it, or a special token does. */
typedef fd_code (*fd_encode_fn)(const fd_tokenizer *tokenizer, const char *text, size_t size, bool after_special,
                                fd_merge *merge, fd_ids *ids, fd_error *err);
struct fd_tokenizer_kind {
    const char *model, *name; /* in tokenizer.ggml.model, and to readers */
    const char *pre;          /* the pre-tokeniser, whatever the file says; NULL: the file's */
    fd_code (*build)(fd_tokenizer *tokenizer, const fd_vocab *vocab, fd_error *err);
    fd_encode_fn encode;
    bool has_merges;
    int32_t bos, eos, unk; /* where the file names none; -1: none */
    bool adds_bos, adds_eos, adds_space;
    const char *bos_key, *eos_key; /* where the file has neither bos_token_id nor eos_token_id; NULL: those alone */
};
const fd_tokenizer_kind *fd_tokenizer_kind_find(const char *model); /* NULL: unknown */
#define FD_TOKENIZER_MODELS "llama, gpt2, gemma4, rwkv or bert"

fd_code fd_spm_build(fd_tokenizer *tokenizer, const fd_vocab *vocab, fd_error *err);
fd_code fd_spm_encode(const fd_tokenizer *tokenizer, const char *text, size_t size, bool after_special, fd_merge *merge,
                      fd_ids *ids, fd_error *err);
fd_code fd_bpe_build(fd_tokenizer *tokenizer, const fd_vocab *vocab, fd_error *err);
fd_code fd_bpe_encode(const fd_tokenizer *tokenizer, const char *text, size_t size, bool after_special, fd_merge *merge,
                      fd_ids *ids, fd_error *err);
/* The longest piece that the text begins with, of *n bytes; -1: none. fd_note_longest: while the map is filled. */
int32_t fd_longest_piece(const fd_tokenizer *tokenizer, const char *text, size_t size, size_t *n);
void fd_note_longest(fd_tokenizer *tokenizer, fd_string piece);
void fd_wordpiece_free(fd_wordpiece *wordpiece);
fd_code fd_wordpiece_build(fd_tokenizer *tokenizer, const fd_vocab *vocab, fd_error *err);
fd_code fd_wordpiece_encode(const fd_tokenizer *tokenizer, const char *text, size_t size, bool after_special,
                            fd_merge *merge, fd_ids *ids, fd_error *err);
fd_code fd_rwkv_build(fd_tokenizer *tokenizer, const fd_vocab *vocab, fd_error *err);
fd_code fd_rwkv_encode(const fd_tokenizer *tokenizer, const char *text, size_t size, bool after_special,
                       fd_merge *merge, fd_ids *ids, fd_error *err);

#endif
