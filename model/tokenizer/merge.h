/* The merge loop that both tokenizers share: a text cut into symbols, of which the best neighbouring pair is joined
 * until no pair is left. What a pair is worth and what it becomes is the tokenizer's own business (fd_merge_pair_fn).
 * A linked list and a binary heap: n log n in the number of symbols. */
#ifndef FD_MODEL_TOKENIZER_MERGE_H
#define FD_MODEL_TOKENIZER_MERGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct fd_merge_symbol {
    size_t start, size;  /* its bytes in the text; size 0: swallowed by its left neighbour */
    int32_t piece;       /* its number in the piece map; -1: no such piece                 */
    int32_t left, right; /* neighbours in the list; -1 at the ends                         */
} fd_merge_symbol;

typedef struct fd_merge_candidate {
    double key; /* smaller first; among equals the leftmost */
    int32_t left, right, piece;
    size_t size; /* of both symbols when it was made: another size now means that it is outdated */
} fd_merge_candidate;

typedef struct fd_merge { /* scratch, reused from word to word; all zero: empty */
    fd_merge_symbol *symbols;
    int32_t n_symbol, symbol_capacity;
    fd_merge_candidate *heap;
    size_t n_heap, heap_capacity;
} fd_merge;

/* True when left and right (neighbours) may join: *key says how early, *piece what they become. */
typedef bool (*fd_merge_pair_fn)(const void *user, const fd_merge_symbol *left, const fd_merge_symbol *right,
                                 double *key, int32_t *piece);

/* Appends a symbol [start, start + size) that stands right of the last one. fd_merge_clear starts a new text. */
fd_code fd_merge_push(fd_merge *merge, size_t start, size_t size, int32_t piece, fd_error *err);
void fd_merge_clear(fd_merge *merge);

/* Joins until nothing more joins. Then: symbols 0, symbols[0].right, … to -1 (nothing when n_symbol is 0). */
fd_code fd_merge_run(fd_merge *merge, fd_merge_pair_fn pair, const void *user, fd_error *err);

void fd_merge_free(fd_merge *merge);

#endif
