/* Tensors that a sound engine recorded wrongly: late, at another stage, or under another name. Such a tensor is not what
 * its op gives, and what reads it does not follow from it either: it follows from what the op should have given. A
 * bug is the other way about: its readers follow from the wrong values. */
#ifndef FD_COMPARE_DUMP_MISRECORDED_H
#define FD_COMPARE_DUMP_MISRECORDED_H

#include "compare/attribute/attribution.h"
#include "compare/dump/held_values.h"
#include "compare/explain/explanation.h"

enum { FD_MAX_MISRECORDED = 4 };

/* One kind of tensor, in one layer or in several. */
typedef struct fd_misrecorded_kind {
    char node[64];   /* the first of them */
    char reader[64]; /* a recorded tensor that agrees with what `node` should be */
    char layers[48]; /* "0…21"; "" outside the layers */
    int32_t n_node;
    char holds[FD_HELD_SIZE]; /* "blk.0.attn_k_rope", "blk.0.attn_k of position 3": whose values it has; "" nobody's */
    char summary[192];        /* else what it looks like, in a bug's words; "" nothing known */
} fd_misrecorded_kind;

typedef struct fd_misrecorded {
    int32_t n; /* 0: nothing was recorded wrongly, as far as readers tell */
    fd_misrecorded_kind kinds[FD_MAX_MISRECORDED];
} fd_misrecorded;

/* `found`: what the options gave; their `ref` tells whose values a tensor has. Where what reads a tensor
 * follows from what it should be, ignored[node] [n_node] is set: taken for not recorded, it hides nothing. */
fd_code fd_find_misrecorded(const fd_attribution_options *options, const fd_attribution *found, bool *ignored,
                            fd_misrecorded *out, fd_error *err);

#endif
