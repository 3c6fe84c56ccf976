/* What the files of evidence share. */
#ifndef FD_COMPARE_INFER_EVIDENCE_INTERNAL_H
#define FD_COMPARE_INFER_EVIDENCE_INTERNAL_H

#include "compare/infer/evidence.h"

/* A class rounds much more than another where its bound is so many times as wide: its errors, a sixth of it as a
 * rule, are then beyond the other's. */
#define MUCH_MORE 16.0f

/* A sample has 16 rows of a node at most, at the beginning or half of them at the end. */
enum { MOST_SLOTS = 32 };

enum { F16_DIGITS = 11, BF16_DIGITS = 8 }; /* of mantissas */

/* Rows of one node, counted. */
typedef struct tally {
    int32_t rounded, needed, spared;
} tally;

/* Copies, whose values may have been narrow from the start, and ids say nothing of an engine's tensors. */
static inline bool is_copy(const fd_node *node) {
    return node->op == FD_OP_EMBED || node->op == FD_OP_KV_WRITE || node->op == FD_OP_TOP_K;
}

static inline bool of_attention(fd_op op) {
    return op == FD_OP_ATTN_SCORES || op == FD_OP_ATTN_MIX;
}

#endif
