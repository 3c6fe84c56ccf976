/* Attention in binary32, written apart from reference_cpu: scores past a row's own position are -inf and weights 0
 * there; a rule says what else of it is another. All of a rule at its zero is attention as it should be. */
#ifndef FD_FAULTS_ATTENTION_RULE_H
#define FD_FAULTS_ATTENTION_RULE_H

#include "faults/internal.h"

/* Which K/V head query head h reads. */
typedef enum fd_head_rule {
    FD_HEADS_GROUPED,      /* h / group, a group being n_head / n_head_kv heads */
    FD_HEADS_MODULO,       /* h % n_head_kv */
    FD_HEADS_DIVISOR,      /* h / n_head_kv */
    FD_HEADS_FIRST,        /* 0 */
    FD_HEADS_GROUP_MODULO, /* h % group */
    FD_HEADS_IN_TURN,      /* on twice as many ranks as K/V heads, rank r has those of r % n_head_kv */
} fd_head_rule;

typedef struct fd_attention_rule {
    fd_head_rule heads;
    int32_t look_ahead; /* positions past its own that a row sees; INT32_MAX: all of the batch */
    bool room;          /* the cache is longer than what is written: looking ahead, a step's last row sees an empty slot */
    bool stale;         /* the batch's own rows are not in the cache yet: zeros */
    bool newest_before; /* for its own row of the cache a row reads the one before it */
    bool masked_zero;   /* scores past a row's own position are 0, and count */
    bool mask_added; /* 1 is added to the scores of keys that the mask lets through, 0 to the others, and all count */
    int32_t tile;    /* keys a tile that the mask hides whole or not at all; 0: it hides keys */
    bool new_first;  /* a step's own rows stand before those of earlier steps: key t of the mask is the t-th so */
    const float *past_k; /* what scores read of earlier steps' rows, laid out as the cache; NULL: the cache */
    int32_t page;        /* keys a page of the cache; the second page is read from the first one's place. 0: no pages */
} fd_attention_rule;

/* Overrides of ATTN_SCORES, ATTN_SOFTMAX (look_ahead and tile alone) and ATTN_MIX. */
void fd_rule_scores(const fd_op_args *args, fd_attention_rule rule);
void fd_rule_softmax(const fd_op_args *args, fd_attention_rule rule);
void fd_rule_mix(const fd_op_args *args, fd_attention_rule rule);

/* A score: its product scaled, and capped where the model caps. */
float fd_rule_score(const fd_node *scores, float dot);

/* A head's sink, -inf where the model has none; and what softmax makes of it: `sum` and exp(sink), which has the maximum
 * taken off already. */
float fd_rule_sink(const fd_op_args *softmax, int32_t head);
float fd_rule_with_sink(const fd_op_args *softmax, float sum, float sink);

#endif
