/* Guesses beside the table of faults: mistakes that any op can have, and numbers that are solved for. Each is tried by
 * the rule that the table's rows are tried by. */
#ifndef FD_COMPARE_EXPLAIN_GUESSES_H
#define FD_COMPARE_EXPLAIN_GUESSES_H

#include "compare/explain/trial.h"

/* Another parameter, RoPE position, set of keys (guess_numbers.c). `parts`: not only in the whole span, but in each layer
 * or at each node of it alone, too. */
fd_code fd_guess_numbers(fd_trial *trial, bool parts, fd_error *err);
fd_code fd_guess_scale_of_scores(fd_trial *trial, fd_error *err);

/* Keys that a mask hides, at one node or at all of its op (guess_keys.c). */
enum { FD_MOST_ROWS_OF_TILE = 16 };
fd_code fd_guess_keys_at(fd_trial *trial, fd_hypothesis h, const fd_node *node, fd_error *err);

/* Slots of a cache that are empty, and are not hidden; likewise. */
fd_code fd_guess_slots_at(fd_trial *trial, fd_hypothesis h, const fd_node *node, fd_error *err);

/* Of the node asked about: all its values are one number, or single ones were dropped (guess_elements.c). */
fd_code fd_guess_elements(fd_trial *trial, fd_error *err);

/* Values are cut off, by a number that is solved for (guess_clamps.c). */
fd_code fd_guess_clamps(fd_trial *trial, fd_error *err);

/* Two rows of the cache stand in each other's place (guess_exchanged.c). */
fd_code fd_guess_exchanged_rows(fd_trial *trial, fd_error *err);

fd_code fd_guess_restarts(fd_trial *trial, fd_hypothesis h, fd_error *err); /* guess_restarts.c */

/* Through several layers: either side of every addition left out, twice or halved (guess_layers.c). */
fd_code fd_guess_branches(fd_trial *trial, fd_error *err);
/* What an op gives, or a head of it, times a number that is solved for. */
fd_code fd_guess_factors(fd_trial *trial, fd_error *err);
/* And what few trials tell, of the first layer and of all alike, or of each of the others. */
fd_code fd_guess_layers(fd_trial *trial, bool first, fd_error *err);
/* The rows of Q's and of K's heads alike in another order, in one layer or in all. */
fd_code fd_guess_orders_of_q_and_k(fd_trial *trial, fd_error *err);

/* Another weight, another tensor as input, a branch left out or taken twice, a sum cut short (guess_inputs.c). */
fd_code fd_guess_own_weights(fd_trial *trial, fd_error *err); /* of the node asked about alone */
fd_code fd_guess_inputs(fd_trial *trial, fd_error *err);

/* Between steps: a recurrent state that is not read, rows of K, of V or of both that are not written. Within attention: tiles and
 * parts put together wrongly, one head's factor (guess_attention.c). */
fd_code fd_guess_steps(fd_trial *trial, fd_error *err);
fd_code fd_guess_unwritten_chunk(fd_trial *trial, fd_error *err);
fd_code fd_guess_attention(fd_trial *trial, fd_error *err);

/* Rows of the cache that are read from another place or another cache; then, of the node asked about, rows that nothing in this run
 * has (guess_cache.c). */
fd_code fd_guess_cache(fd_trial *trial, fd_error *err);
fd_code fd_guess_cache_blocks(fd_trial *trial, fd_error *err);
fd_code fd_guess_unknown_cache(fd_trial *trial, fd_error *err);

/* Rows of earlier steps that are another cache's (guess_past.c). */
fd_code fd_guess_past(fd_trial *trial, fd_error *err);

/* ALiBi's slopes and sinks (guess_head_numbers.c). */
fd_code fd_guess_head_numbers(fd_trial *trial, fd_error *err);

/* K/V heads or experts' matrices that are read under another one's number (guess_mapped.c). */
fd_code fd_guess_mapped(fd_trial *trial, fd_error *err);

/* The same of values alone, where what is mixed of them is the node asked about (guess_values.c). */
fd_code fd_guess_values(fd_trial *trial, fd_error *err);
/* Rows `h` of the cache; to the end of what the step sees is perhaps to the end of whatever a step sees: later steps tell. Then those
 * rows of other caches, of this layer and its neighbours. */
fd_code fd_guess_zero_keys(fd_trial *trial, fd_error *err); /* beside a mask that makes scores 0 */
fd_code fd_guess_cache_rows(fd_trial *trial, fd_hypothesis h, fd_error *err);
fd_code fd_guess_other_caches(fd_trial *trial, fd_hypothesis h, fd_error *err);

/* The elements that a product reads stand otherwise than it takes them (guess_input_orders.c). */
fd_code fd_guess_input_orders(fd_trial *trial, fd_error *err);

/* What RMSNorms divide by, at one or, through several layers, at all (guess_statistics.c). */
fd_code fd_guess_statistics(fd_trial *trial, const fd_node *node, fd_error *err);
fd_code fd_guess_statistics_everywhere(fd_trial *trial, fd_error *err);

/* Rounding, or a branch times a factor, at all nodes of an op in the span together; rounding at one (guess_rounding.c). */
fd_code fd_guess_everywhere(fd_trial *trial, fd_error *err);
fd_code fd_guess_rounding(fd_trial *trial, const fd_node *node, fd_error *err);

/* Of the node asked about: another tensor's elements, that tensor as a further term, the right ones in another place, rows of other
 * positions (guess_places.c); then a clamp, and numbers that every row or column has of its own (guess_own_numbers.c). */
fd_code fd_guess_places(fd_trial *trial, fd_error *err);
/* Of a product, in another place before its bias is added; after the orders that have a rule. */
fd_code fd_guess_places_beside_bias(fd_trial *trial, fd_error *err);
fd_code fd_guess_own_numbers(fd_trial *trial, fd_error *err);
fd_code fd_guess_log_probabilities(fd_trial *trial, fd_error *err); /* of the logits, which costs nothing */

/* Of the node asked about elements, rows of a step, or blocks of them in another order; rows added to others; a fault of the table in
 * some elements alone (guess_regions.c). */
fd_code fd_guess_regions(fd_trial *trial, fd_error *err);
fd_code fd_guess_in_elements(fd_trial *trial, fd_error *err);

/* Of the node asked about zeros that come again along its rows; of a product blocks of its sums that do (guess_periods.c). */
fd_code fd_guess_periodic_zeros(fd_trial *trial, fd_error *err);
fd_code fd_guess_blocks_of_sums(fd_trial *trial, const fd_node *node, fd_error *err);

/* Of a product: what its rows depart by has few directions (guess_periods.c). */
fd_code fd_guess_low_rank(fd_trial *trial, fd_error *err);

/* A factor, zeros, a softcap, another order of elements or rows, a tail that was not written
 * (guess_outputs.c). Through several layers those of the node asked about come first, for they cost next to nothing. */
fd_code fd_guess_own_outputs(fd_trial *trial, fd_error *err);
fd_code fd_guess_places_inside(fd_trial *trial,
                               fd_error *err); /* of the span: attention's heads, an embedding's rows */
fd_code fd_guess_outputs(fd_trial *trial, fd_error *err);

#endif
