/* What may be wrong with an op: a row of the table of faults, or one of the mistakes that any op can have (another
 * weight, another input, a factor, another order of its elements, …). A hypothesis is a value: it owns nothing. */
#ifndef FD_COMPARE_HYPOTHESIS_HYPOTHESIS_H
#define FD_COMPARE_HYPOTHESIS_HYPOTHESIS_H

#include "faults/faults.h"

typedef enum fd_guess {
    FD_GUESS_NONE, /* the op as it should be */
    FD_GUESS_FAULT,
    /* what the op is given */
    FD_GUESS_PARAMETER, /* parameter `which` (parameters.h) is `value`; `other` 1: and RoPE's scaling is ignored */
    FD_GUESS_SCALING, /* RoPE's frequencies are scaled for longer contexts: `which` is fd_rope_scaling, by factor `value`, from a
                           context of `n`; `other` 1: and cos and sin as YaRN's paper has it */
    FD_GUESS_POSITION, /* RoPE turns by another position: `which` is fd_position_rule */
    FD_GUESS_WEIGHT, /* slot `which` reads weight `other`, and with `n` the bias its bias; with `end`, elements [first, end) of every row alone are its; node -1: all of
                        `layer` read those of layer `other` (`n` 1: and these read those), or those of one `kind` the ones of the layer `n` further on, with `other` their biases as well */
    FD_GUESS_INPUT,  /* slot `which` reads node `other`, `n` positions earlier */
    FD_GUESS_INPUT_ORDER, /* a product reads the elements of its rows in another order: `which` is fd_order_rule, of `end` heads */
    FD_GUESS_INPUT_FACTOR, /* slot `which` is multiplied by `value` */
    FD_GUESS_INPUT_TAIL, /* the last `n` elements of every input row, or of every `end` elements of it, or (`other` 1) those from `first` on, count `value` times, 0 or 2; of
                              attention's weights: keys after the last whole tile of `n`, counted to the row's own (`which`
                              0) or to the step's last (1) */
    FD_GUESS_PARTIAL, /* elements [first, end) of every input row count `value` times: rank `which` of `n`; `other` 1: and the bias is left out; `keys` 1: the
                              elements outside are left out, its sum stands alone */
    FD_GUESS_STRIDES, /* rows of slot `which`, of `n` heads, stand otherwise in memory than they are read: `other` is fd_stride_rule;
                         Q's from `first` on, where their step begins. `which` -1: Q, K and V; -2: K and V, of `end` heads */
    FD_GUESS_TILES, /* attention in tiles or parts, put together wrongly: `which` is fd_tile_rule, `n` its tile */
    FD_GUESS_CACHE, /* rows [first, end) of the cache that attention reads, `end` 0: all from `first` on, are others:
                              `which` is fd_cache_rule */
    FD_GUESS_MAPPED, /* what is read under number i of `n` is that of bits 4i … 4i + 3 of `keys`: `which` is fd_mapped_rule */
    FD_GUESS_EXPERTS,      /* `which` is fd_expert_rule */
    FD_GUESS_HEAD_NUMBERS, /* the number that each head has (ALiBi's slopes, sinks): `which` is fd_head_numbers_rule */
    FD_GUESS_UNWRITTEN,    /* the cache's rows from position `n` on, to `end` if not 0, are read as zeros */
    FD_GUESS_STATE,        /* what a recurrent op has of earlier steps: `which` is fd_state_rule */
    FD_GUESS_KEYS, /* softmax does not see some keys: `which` is fd_key_rule; with `first` their scores are `value`, not -Inf */
    FD_GUESS_SLOTS, /* softmax counts every slot of a cache of `n` positions: those nobody wrote have a score of 0, and values of 0;
                       `which` 1: no mask hides the step's own rows either */
    FD_GUESS_BLOCKS, /* int8 blocks of what a product multiplies: `which` is fd_block_rule */
    FD_GUESS_TOKEN,  /* an embedding reads the row of another token: `which` is fd_token_rule */
    /* how it computes */
    FD_GUESS_STATISTIC, /* what an RMSNorm divides by: `which` is fd_statistic */
    FD_GUESS_TWICE,     /* an op of one input, applied again to what it gave */
    /* what comes out */
    FD_GUESS_FACTOR, /* elements [first, end) of every row, or of every `n` of it (of scores and weights: heads), times `value` */
    FD_GUESS_ORDER, /* the elements in another order: `which` is fd_order_rule; of `end` heads, where the node is one row */
    FD_GUESS_ROWS, /* elements [first, end) (`end` 0: all) of other rows: `which` is fd_row_rule */
    FD_GUESS_COPY, /* elements [first, end) are those of node `other` from `n` on, or (`which` 1) these are added to them */
    FD_GUESS_CAP, /* value·tanh(x / value); `which` 1: of the scores that softmax reads */
    FD_GUESS_CLAMP, /* no larger than ± value; `which` 1: from above alone; 2: smaller ones are zero; 3: softmax's scores no less
                       than the row's largest less `value`; 4: of a gated activation what up is multiplied by, ± value */
    FD_GUESS_OWN,     /* every row, or every column, has a number of its own: `which` is fd_own_rule */
    FD_GUESS_ROUNDED, /* rounded to the type `other` (round_type.h): `which` is fd_round_rule; of a type that has a scale `n` is fd_scale_of */
} fd_guess;

typedef enum fd_mapped_rule {
    FD_MAPPED_KV_HEADS, /* of the cache that attention reads */
    FD_MAPPED_EXPERTS,  /* matrices and biases */
    FD_MAPPED_NUMBERS,  /* each head's own, as of FD_GUESS_HEAD_NUMBERS */
    FD_MAPPED_QUERIES,  /* `n` query heads to the `other` K/V heads that they read */
    FD_MAPPED_OUTPUTS,  /* what the chosen experts gave, where it is added up */
} fd_mapped_rule;
enum { FD_MOST_MAPPED = 16 };
typedef enum fd_head_numbers_rule {
    FD_HEAD_NUMBERS_TIMES, /* times `value` */
    FD_HEAD_NUMBERS_ARE,   /* `value`, all of them */
} fd_head_numbers_rule;
typedef enum fd_expert_rule {
    FD_EXPERTS_LEFT_OUT,        /* expert `n` gives zeros */
    FD_EXPERTS_INPUTS_WEIGHTED, /* their weights are applied to what they read, not to what they give */
} fd_expert_rule;

typedef enum fd_position_rule {
    FD_POSITION_OFFSET,  /* below 0 too: an angle may be negative */
    FD_POSITION_CLAMPED, /* not below 0 */
    FD_POSITION_MODULO,
    FD_POSITION_AT_MOST,
    FD_POSITION_IS,
    FD_POSITION_DIVIDED,  /* whole numbers */
    FD_POSITION_OF_TILE,  /* that of the first row of its tile of `n`; tiles begin with the step, at position `end` */
    FD_POSITION_ROUNDED,  /* to so many bits: 8 of bfloat16, 11 of binary16 */
    FD_POSITION_OF_STEP,  /* such steps have that of their first row in all rows, or (`other` 1) of their last */
    FD_POSITION_RESTARTS, /* it begins again at 0 where `keys` has a bit: at position b */
    FD_POSITION_REVERSED, /* steps of `n` rows have theirs the last one first, up to position `first`, where decode begins */
    FD_POSITION_ROLLED, /* such steps have each the one `other` rows before, the first rows the last ones' */
} fd_position_rule;
typedef enum fd_key_rule {
    FD_KEYS_LAST_N,
    FD_KEYS_SINKS, /* the last `n` and the first `other` alone are seen, as by a cache that forgets */
    FD_KEYS_NOT_FIRST_N,
    FD_KEYS_FIRST_N, /* `other` 1: nor a row its own */
    FD_KEYS_NOT_OWN,
    FD_KEYS_NOT_LAST, /* the last row of what is asked about, that is of its step, does not see itself */
    FD_KEYS_CHUNK,    /* the step that begins at position `n` sees as many keys as if it were the first */
    FD_KEYS_TILE,     /* those after the last whole tile of `n`, where there is one */
    FD_KEYS_OF_TILE, /* a row sees the keys that the first row of its tile of `n` sees; tiles begin at position `end` */
    FD_KEYS_FAR,     /* every `n`th of those that are more than `other` positions before its own */
    FD_KEYS_SET
} fd_key_rule;
typedef enum fd_cache_rule {
    FD_CACHE_ZEROS,     /* with `keys`: those of them that have their bit there */
    FD_CACHE_MOVED,     /* those `n` positions further on; past the last they stay, or (`other` 1) are zeros */
    FD_CACHE_SHIFTED,   /* all of them `n` elements further on in memory; past both ends there are zeros */
    FD_CACHE_EXCHANGED, /* the same, and those are these */
    FD_CACHE_RING,      /* of `n` rows: a position overwrites the one `n` before it, which is then read from it */
    FD_CACHE_OF,        /* those of the cache that node `other` writes */
    FD_CACHE_PAST,      /* of earlier steps: those of the layer `other` further on, or (0) K's for V and V's for K */
    FD_CACHE_UNKNOWN,   /* none of this run's: what they are is fitted to what attention made of them */
    FD_CACHE_LATE,      /* from `first` on written `n` further on: the `n` that nothing was written to are fitted */
    FD_CACHE_OWN,       /* written after they are read: each position's own is fitted */
    FD_CACHE_OUTSIDE,   /* as they are, and besides them `n` that are in no row of this run */
    FD_CACHE_BLOCKS, /* all, in blocks that are taken apart or put together by rule `n` of fd_cache_block_rule (internal.h) */
} fd_cache_rule;
typedef enum fd_stride_rule {
    FD_STRIDES_HEADS_FIRST, /* [heads, rows, …] read as if rows came first */
    FD_STRIDES_ROWS_FIRST,  /* and the other way about */
    FD_STRIDES_FIRST_ROW,   /* the stride of a row is zero */
} fd_stride_rule;
typedef enum fd_row_rule {
    FD_ROWS_EARLIER,
    FD_ROWS_ALL_ARE,         /* from position `other` on: the row of position `n`, which may be of an earlier step */
    FD_ROWS_ROLLED,          /* `n` earlier, the first ones the last */
    FD_ROWS_EXCHANGED,       /* those of positions `n` and `other`, of one step, are each other's */
    FD_ROWS_LAST_OF_EARLIER, /* of a cache: every row is the last one of earlier steps */
    FD_ROWS_REVERSED,        /* from position `n` on the last one first */
    FD_ROWS_BLOCKS, /* of every `n` from position `other` on, row i is row 4i … 4i + 3 of `keys`; the rest is right */
    FD_ROWS_STEP_LAST, /* the last one of a step is the one `n` earlier, or (`n` 0) the step's first */
    FD_ROWS_LATE, /* of a cache: from position `other` on they stand `n` further on, and nothing was written to the first `n` */
    FD_ROWS_ADDED, /* the row `n` earlier is added to each, from position `other` on */
} fd_row_rule;
typedef enum fd_token_rule {
    FD_TOKEN_OFFSET, /* id + n */
    FD_TOKEN_BEFORE, /* of `n` positions before; below 0: after */
    FD_TOKEN_MODULO, /* id mod n */
} fd_token_rule;
typedef enum fd_state_rule {
    FD_STATE_FRESH,  /* zeros: the state of earlier steps is not read */
    FD_STATE_FROZEN, /* what the first of the steps of one position found: later ones are not stored */
    FD_STATE_LATE,   /* the same, without its newest row: it never gets there */
} fd_state_rule;
typedef enum fd_statistic {
    FD_STATISTIC_FIRST_OF_ALL, /* squares of the first `n` elements, over all */
    FD_STATISTIC_FIRST,        /* over these */
    FD_STATISTIC_ABSOLUTE,     /* the mean of absolute values, no root */
    FD_STATISTIC_LARGEST,      /* the largest absolute value */
    FD_STATISTIC_FIRST_ROW,    /* every row's is that of its step's first row */
    FD_STATISTIC_VARIANCE,     /* the variance, the mean taken off for it alone */
    FD_STATISTIC_PARTS,        /* of each of `n` parts of the row its own */
    FD_STATISTIC_WHOLE_ROW,    /* of a norm of heads: of all heads together */
} fd_statistic;
/* Fitted to the candidate's rows: one number explains all elements of a row (or of a head's part of it), or of a column; or one
 * choice of the terms of a sum does. */
typedef enum fd_own_rule {
    FD_OWN_ROW_FACTOR, /* of attention's weights `other` is fd_outside_rule */
    FD_OWN_COLUMN_TERM,
    FD_OWN_COLUMN_FACTOR, /* of what a weight makes; a bias, where the op has one, is added afterwards */
    FD_OWN_ELEMENTS,      /* [first, end) of every row, all of them: rows of a weight */
    FD_OWN_INPUT_ELEMENT, /* element `first` of each row that a product reads (rank.c) */
    FD_OWN_LOW_RANK,      /* a matrix of rank `n` is added to the weight (rank.c) */
    FD_OWN_FUNCTION,      /* of an activation's input, or of a score less the largest (function.c) */
    FD_OWN_LOG_SOFTMAX,   /* a term, and which: less log Σ e^x */
    FD_OWN_CONSTANT,      /* every element is `value` */
    FD_OWN_DROPPED,       /* some elements are 0, which the candidate's show, the others divided by 1 - `value` */
    FD_OWN_EXPERTS, /* of a sum of experts, which of the chosen ones are added; of their products, which give zeros */
    FD_OWN_EXPERT_BIAS, /* of a chosen expert, whose bias is added */
} fd_own_rule;
/* What softmax's sum has more: keys that are in no row of the trace, which what mixes the values tells. */
typedef enum fd_outside_rule { FD_OUTSIDE_NONE, FD_OUTSIDE, FD_OUTSIDE_OR_SUM } fd_outside_rule;
typedef enum fd_round_rule {
    FD_ROUNDED_RESULT,
    FD_ROUNDED_INPUT,
    FD_ROUNDED_BOTH,
    FD_ROUNDED_FACTOR, /* what a norm multiplies by its weight, or a gated activation by up */
    FD_ROUNDED_TABLE,  /* and gate before it, as where a table holds the activation */
} fd_round_rule;
typedef enum fd_order_rule {
    FD_ORDER_REVERSED,
    FD_ORDER_HEADS_REVERSED,
    FD_ORDER_HEADS_ROTATED,  /* by `n` */
    FD_ORDER_HEADS_STRIDED,  /* head h is head (h % n) · (n_head / n) + h / n */
    FD_ORDER_HEADS_SWAPPED,  /* `n` and `other` */
    FD_ORDER_HEADS_REPEATED, /* of every `n` heads, all are the first */
    FD_ORDER_TRANSPOSED,     /* [n_head, head_dim] laid out as [head_dim, n_head] */
    FD_ORDER_UNTRANSPOSED,
    FD_ORDER_HALVES_TO_PAIRS, /* in each head: the halves interleaved */
    FD_ORDER_PAIRS_TO_HALVES,
    FD_ORDER_HALVES_SWAPPED, /* in each head */
    FD_ORDER_PAIRS_SWAPPED,
    FD_ORDER_ROTATED, /* by `n` elements */
    FD_ORDER_PIECES,  /* [first, end) are those from `n` on; from element `other` on, if not 0, those from `keys` on */
    FD_ORDER_BLOCKS,  /* of every `n` groups of `other` elements, group i is that of bits 4i … 4i + 3 of `keys` */
    FD_ORDER_COUNT
} fd_order_rule;

enum { FD_ANY_LAYER = -2 };
typedef struct fd_hypothesis {
    fd_guess guess;
    int32_t fault;        /* FD_GUESS_FAULT: its row */
    int32_t node;         /* the one node that it edits; -1: every node that it concerns */
    int32_t layer;        /* node -1: of this layer alone; FD_ANY_LAYER: of all, and outside them */
    int32_t ops;          /* node -1, mistakes that any op can have: nodes of op `ops` - 1 alone */
    char kind[24];        /* node -1: of this kind alone, or of these two: "attn_q attn_k"; "" any */
    int32_t n_dim;        /* node -1: of nodes of so many dimensions alone, 1: rows, 2: heads; 0: any */
    int32_t readers;      /* node -1: those alone whose input `which` is node `readers` - 1; 0: any */
    uint64_t heads;       /* in these heads alone, of nodes with as many as the one asked about; 0: all */
    int32_t rank, n_rank; /* in what rank `rank` of `n_rank` has alone, of heads and of FFNs; n_rank 0: in all */
    int32_t from, to;     /* in elements [from, to) of every row alone, of the node asked about; to 0: in all */
    int32_t since;        /* from this position on: rows before it are as they should be, at every node */
    bool before_bias;     /* of a product, and its bias is added as it should be: factors and orders */
    int32_t which, other, n;
    int32_t first, end;
    double value;
    uint64_t keys; /* FD_KEYS_SET: bit t, key t is hidden; `n` 1: but not from its own row. FD_GUESS_MAPPED: the map */
} fd_hypothesis;

/* The op as it should be. */
extern const fd_hypothesis fd_no_hypothesis;

/* The map of FD_GUESS_MAPPED as it should be: each of n numbers its own, or each group of query heads that of one K/V head. */
uint64_t fd_hypothesis_right_map(const fd_hypothesis *h);

/* The bias that goes with `weight` by its name, where the node adds one that is as large; -1. */
int32_t fd_bias_of_weight(const fd_graph *graph, int32_t weight, const fd_node *node);

/* Scores read K's cache, what is mixed V's. */
bool fd_reads_kv_cache(const fd_node *node);

/* Does it say anything about this node? For a fault that means editing it: fd_hypothesis_edit knows. */
bool fd_hypothesis_may_concern(const fd_hypothesis *h, const fd_node *node);

/* The node as the hypothesis has it. out->owner: of a fault that concerns it. *edited: the hypothesis changes what this
 * node is given or what comes out. Freed with fd_faulty_node_free. */
fd_code fd_hypothesis_edit(const fd_hypothesis *h, const fd_graph *graph, const fd_node *node, fd_faulty_node *out,
                           bool *edited, fd_error *err);

/* Does it change the rows of input `slot` before the op runs? Then `rows` (n_row rows of `width`) is changed in place:
 * the op's own copy. `pos0`: position of the first row. */
bool fd_hypothesis_changes_input(const fd_hypothesis *h, const fd_node *node, int slot);
void fd_hypothesis_input(const fd_hypothesis *h, const fd_node *node, int slot, float *rows, int32_t pos0,
                         int64_t n_row, int64_t width);

/* Int8 blocks as another class has them: no bug of this one. */
bool fd_hypothesis_is_another_class(const fd_hypothesis *h);
/* Is some of the cache fitted to what attention made of it? */
bool fd_hypothesis_fits_cache(const fd_hypothesis *h);

/* FD_GUESS_CACHE: the rows of a cache, n_row of `width`, in place (cache.c). `other`: those of node h->other,
 * as wide; NULL where that is not asked for. */
void fd_hypothesis_cache(const fd_hypothesis *h, const float *other, float *rows, int64_t n_row, int64_t width);

/* FD_GUESS_STATISTIC: `rows`, n_row of `width` that the norm made of `x`, are changed in place (norm.c). `first`:
 * for each row, the row that its step begins with. */
void fd_hypothesis_statistic(const fd_hypothesis *h, const fd_node *node, const float *x, const int32_t *first,
                             float *rows, int64_t n_row, int64_t width);

/* Changes what came out, in place: the bounds, which read the rows as the op gave them, then the rows
 * (output.c). */
typedef struct fd_output_rows {
    float *rows;
    int32_t pos0;      /* position of the first row */
    int32_t n_earlier; /* rows of earlier steps */
    int32_t n_unjudged;
    int32_t step_first, step_end; /* positions of the step asked about; the same: several steps of one row */
    int64_t n_row, width;
    const float *candidate; /* laid out as rows; NULL: not the node asked about */
    const float *bias;      /* [width]; NULL: the node has none */
    const float *column;    /* [width] column h->first of the node's weight; NULL: not asked for */
    const float *before;    /* the candidate's rows at positions before pos0; NULL: not known, or not asked for */
    const float *other;     /* rows of node h->other at these positions; NULL: not recorded */
    int64_t other_width;
    const float *in[2];            /* what the op reads; NULL: no such input */
    const float *weights, *values; /* of ATTN_MIX: what it reads, values from position 0 on */
    bool weights_known;            /* these or their scores were recorded */
    int32_t n_kv_head;
    double *scratch; /* twice as many as rows has */
} fd_output_rows;
bool fd_hypothesis_changes_output(const fd_hypothesis *h, const fd_node *node);
void fd_hypothesis_output_bounds(const fd_hypothesis *h, const fd_node *node, const fd_output_rows *out, double *tau);
void fd_hypothesis_output_rows(const fd_hypothesis *h, const fd_node *node, const fd_output_rows *out);

bool fd_hypothesis_has_function(fd_op op); /* element by element, that FD_OWN_FUNCTION can find out */
/* A row may depend on rows after it, or on many: a few of them say nothing. */
bool fd_hypothesis_looks_ahead(const fd_hypothesis *h);
int32_t fd_hypothesis_position(const fd_hypothesis *h, int32_t pos); /* that RoPE turns by */

/* The same mistake at another node: a factor, a parameter, an order. False where it would be another one. */
bool fd_hypothesis_at(const fd_hypothesis *h, const fd_graph *graph, const fd_node *node, fd_hypothesis *out);
/* A hypothesis of one node, h->node ≥ 0, as one of another node with the same op (heads of K read as those of V): K's
 * RoPE as Q's, the FFN's norm as attention's. False where that node has nothing like it. */
bool fd_hypothesis_as(const fd_hypothesis *h, const fd_graph *graph, const fd_node *node, fd_hypothesis *out);

/* The same mistake in every layer: at all nodes of the kind that h->node ≥ 0 is one of. */
fd_hypothesis fd_hypothesis_everywhere(const fd_hypothesis *h, const fd_graph *graph);
bool fd_hypothesis_same(const fd_hypothesis *a, const fd_hypothesis *b);

/* "rope_base", and one line of what the engine does: "RoPE base 500000; the file says 10000". */
const char *fd_hypothesis_name(const fd_hypothesis *h);
void fd_hypothesis_summary(const fd_hypothesis *h, const fd_graph *graph, char *to, size_t size);

#endif
