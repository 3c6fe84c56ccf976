/* What the files of a hypothesis share. */
#ifndef FD_COMPARE_HYPOTHESIS_INTERNAL_H
#define FD_COMPARE_HYPOTHESIS_INTERNAL_H

#include "compare/hypothesis/hypothesis.h"

/* FD_GUESS_MAPPED: a cache has heads; an op of experts reads which. */
bool fd_hypothesis_may_be_mapped(const fd_hypothesis *h, const fd_node *node);

/* FD_GUESS_HEAD_NUMBERS: ALiBi, or a softmax with sinks. */
bool fd_has_head_numbers(const fd_node *node);

/* Where the element comes from that FD_GUESS_ORDER or _INPUT_ORDER has at place i of a row of so many heads. */
int64_t fd_hypothesis_order_of(const fd_hypothesis *h, int64_t n_head, int64_t i, int64_t width);

/* -Inf in rows of scores, [n_row, n_head, pos0 + n_row], where FD_GUESS_KEYS hides a key. */
void fd_hypothesis_hide_keys(const fd_hypothesis *h, float *rows, int32_t pos0, int64_t n_row, int64_t width);

/* FD_GUESS_SLOTS: rows of softmax's weights; out->in[0] are the scores that it reads. */
void fd_hypothesis_count_slots(const fd_hypothesis *h, const fd_output_rows *out);

/* FD_GUESS_TILES: rows of softmax's weights, [n_row, n_head, pos0 + n_row]. */
void fd_hypothesis_weigh_tiles(const fd_hypothesis *h, float *rows, int32_t pos0, int64_t n_row, int64_t width);

typedef enum fd_cache_block_rule {
    FD_BLOCKS_SCALE_BEFORE,
    FD_BLOCKS_SCALE_NEXT,
    FD_BLOCKS_SCALE_FIRST,
    FD_BLOCKS_NIBBLES,
    FD_BLOCKS_HALVES,
    FD_BLOCKS_LAST_MISSING,
    FD_N_CACHE_BLOCKS,
} fd_cache_block_rule;

/* FD_CACHE_BLOCKS: rows [n_row, width] that are kept in blocks of a type, else they stay as they are; and the rule in words, "each has …". */
void fd_cache_blocks(int rule, uint32_t type, float *rows, int64_t n_row, int64_t width);
const char *fd_cache_blocks_text(int rule);

/* FD_CACHE_RING, for which each row has a cache of its own, and FD_CACHE_UNKNOWN: scores, or what is mixed of the values
 * (cache.c). */
void fd_hypothesis_cache_output(const fd_hypothesis *h, const fd_node *node, const fd_output_rows *out);

/* FD_GUESS_ROUNDED: rows in place; and, with `tau`, their bounds in place, while the rows stay. */
void fd_hypothesis_round(const fd_hypothesis *h, const fd_node *node, const fd_output_rows *out, double *tau);

/* FD_OWN_FUNCTION: rows in place, or, with `tau`, their bounds; nothing, where the candidate's elements are no function. */
void fd_hypothesis_function(const fd_node *node, const fd_output_rows *out, double *tau);

/* Are rows of the cache others before they are read? */
bool fd_hypothesis_moves_cache(const fd_hypothesis *h);

/* The `rank` directions that most of the differences of n rows have, [rank, n] at v; false: out of memory. */
bool fd_directions_of(const double *difference, int n, int64_t width, int rank, double *v);

/* The rows [*first, *end) of the cache that are fitted where the row at position `own` reads it. */
void fd_hypothesis_fitted_rows(const fd_hypothesis *h, int64_t own, int64_t n_kv, int64_t *first, int64_t *end);

/* Of attention's output alone, scores and weights not known: rows of K and of V that are fitted (attended.c). */
void fd_hypothesis_attended(const fd_hypothesis *h, const fd_node *node, const fd_output_rows *out);

/* FD_OWN_LOW_RANK, FD_OWN_INPUT_ELEMENT: rows in place. */
void fd_hypothesis_low_rank(const fd_hypothesis *h, const fd_output_rows *out);
void fd_hypothesis_input_element(const fd_hypothesis *h, const fd_output_rows *out);

/* Adds what `value` is of the model's sizes: ", equal to sqrt(head_dim)"; nothing, where it is none (sizes.c). */
void fd_hypothesis_say_size(double value, const fd_graph *graph, char *to, size_t size);

/* FD_GUESS_KEYS, _TILES, _CACHE, _UNWRITTEN in words. */
void fd_hypothesis_rows_text(const fd_hypothesis *h, const fd_graph *graph, char *to, size_t size);
/* ", in layer 2", "(heads 0, 1 alone)"; may be empty. */
void fd_hypothesis_where_text(const fd_hypothesis *h, const fd_graph *graph, char *to, size_t size);
void fd_hypothesis_attention_text(const fd_hypothesis *h, const fd_graph *graph, char *to, size_t size);
void fd_hypothesis_position_text(const fd_hypothesis *h, char *to, size_t size); /* of RoPE and of added positions */

#endif
