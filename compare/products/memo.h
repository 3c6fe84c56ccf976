/* Rows of products that were computed before. Classes are tried one after another on the same recorded vectors, and a trace is judged
 * again where tensors are left out or another class is taken: a row of a product depends on its vector and the weight alone
 * (exec/products.h), so it is kept with the vector and found by it. The bits are those of computing it again. Explanations ask for four
 * fifths of their products again: hypotheses are tried in several classes, and differ in some rows alone.
 *
 * Any thread may ask. What does not fit any more is not kept. */
#ifndef FD_COMPARE_PRODUCTS_MEMO_H
#define FD_COMPARE_PRODUCTS_MEMO_H

#include "exec/products.h"

typedef struct fd_product_memo fd_product_memo;

/* PAIRS, TILES: sums of binary16, then what these may be off (replay/half_sums.h). EXACT: vectors and rows are float, not double. */
typedef enum fd_memo_kind {
    FD_MEMO_PRODUCT,
    FD_MEMO_SIZE,
    FD_MEMO_SQUARE,
    FD_MEMO_PAIRS,
    FD_MEMO_TILES,
    FD_MEMO_EXACT,
} fd_memo_kind;

/* Everything that a result depends on besides the vector. */
typedef struct fd_memo_key {
    fd_memo_kind kind;
    const void *weight, *bias; /* their data, which live as long as the memo */
    int32_t rounding; /* what the weight is rounded to before (fd_dot_type and more); 0: nothing. Of TILES, the part */
    int64_t first_row, n_row, n; /* rows of the weight; elements of a vector */
} fd_memo_key;

/* Bytes that a memo keeps at most, of EXACT as many again: sixteen positions of three layers and the logits of a model of 8·10^9 weights, which is what
 * classes are tried on, take 10^8. Sums of binary16 have half of it at most: there are as many of a row as cuBLAS has ways to split it. */
#define FD_MEMO_MOST ((size_t)1 << 27)

fd_product_memo *fd_product_memo_new(size_t most); /* NULL: out of memory, and then nothing is kept */
void fd_product_memo_free(fd_product_memo *memo);  /* NULL is fine */

/* Results [key->n_row] of the vector x [key->n]; NULL: not known. Borrowed, until the memo is freed. memo NULL: nothing is known. */
const void *fd_product_memo_find(fd_product_memo *memo, const fd_memo_key *key, const void *x);

void fd_product_memo_keep(fd_product_memo *memo, const fd_memo_key *key, const void *x, const void *result);

#endif
