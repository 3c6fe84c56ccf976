/* What a trace shows about where its engine rounds. A class must not be chosen because the error then fits: the bound of a
 * coarse class has room for a small bug in every layer. So a class has to be shown by the trace, in three ways:
 *
 * - storage: a class whose tensors have 16 bits cannot have left values of 24 bits;
 * - need: where a class says that an engine rounds much more than a finer one does, the errors are that large. Not in one
 *   kind of op, one layer or some rows, but in most tensors that it rounds, and no row of these is spared;
 * - sight: tensors that show it lie close to their own recorded inputs. Through whole layers any small error looks like
 *   rounding.
 *
 * Use: open; for each class, open a case, judge the sample with fd_evidence_add as fd_attribution_options.on_row, then
 * fd_evidence_weigh. The first class is the finest, beside which the others are weighed: once it is, they may be judged and
 * weighed by several threads, each with a case of its own. docs/verdicts.md has an example to follow by hand. */
#ifndef FD_COMPARE_INFER_EVIDENCE_H
#define FD_COMPARE_INFER_EVIDENCE_H

#include "compare/attribute/attribution.h"

typedef struct fd_evidence_row { /* one node at one position */
    float z;                     /* largest; negative: not judged */
    float tau, error;            /* root mean square: the bound's, the error's */
    float typical;               /* root mean square of what the class's roundings leave as a rule; Inf: not asked */
    bool unknown;                /* which is as large as the row: it says nothing */
    float left, remains;         /* fd_row_oddness, fd_row_left */
    bool through;                /* computed through unrecorded tensors */
    bool long_span;              /* through a layer's worth of them */
    bool vague;                  /* τ of a span that exceeds half of the tensor: anything would be within */
} fd_evidence_row;

typedef struct fd_evidence {
    const fd_graph *graph;
    const fd_trace *trace;
    int32_t n_pos, n_slot; /* rows that are kept of a node: a sample's first and last */
    const fd_evidence_row
        *finest; /* [n_node, n_slot] of the first class, whose case owns them; NULL: not weighed yet */
    double finest_remains;
    uint8_t *wide;            /* [n_node, 2]: a recorded value needs more than 11 bits, more than 8; owned */
    bool *seen;               /* [n_node] values were seen; owned */
    bool *stored;             /* [n_node] values of 32 or 64 bits were seen; owned */
    int32_t n_mix, n_mix_f16; /* heads of attention's output in binary32; of those, sums of binary16 (f16_sums.h) */
    int64_t *n_value,
        *n_rounded; /* [n_node] elements; of those, what the finest class gives, rounded once to 16 bits; owned */
    bool *
        through_attention; /* [n_node] unrecorded tensors of attention are on the way, and their rounding in it; owned */
    int32_t *n_way;        /* [n_node] unrecorded tensors that a recorded one is computed through; owned */
    int32_t *kind;         /* fd_fault_kinds; owned */
} fd_evidence;

/* Twice as much is left, for `remains`. */
#define FD_TWICE_LEFT 0.7

/* What speaks for a class. Tensors are nodes of the sample. */
typedef struct fd_class_case {
    fd_evidence *evidence; /* borrowed */
    const fd_numerics_class *numerics;
    int32_t n_judged, n_beyond; /* beyond: not comfortably within the class's bounds, or these say nothing */
    int32_t n_outside;          /* of those, tensors that such an engine does not give: beyond by their size */
    int32_t first;              /* the first of those beyond; -1: none */
    int32_t n_rounded;          /* tensors where the class rounds much more than the finest */
    int32_t n_needed; /* of those, tensors that the finest class does not explain, and no row of which is spared */
    int32_t n_spans, n_spans_needed; /* the same of tensors that are no products, computed through unrecorded ones */
    int32_t n_seen;            /* of n_needed, tensors computed from recorded ones of the same part of the layer */
    int32_t n_through, n_left; /* tensors reached through unrecorded ones; of those, the ones whose rows have more left
                                   than binary32 leaves, most of them */
    int32_t n_rows_left;       /* rows of such tensors that have more left */
    int32_t
        n_rows_repeated; /* rows of such tensors of which nothing is left, and of which the finest class leaves far more */
    int32_t n_alone,
        n_alone_left; /* rows of steps of one position; of those, the ones that have more left, or are beyond */
    double remains, finest_remains; /* mean logarithm of fd_row_left, of their middle rows */
    bool loses_to_steps;            /* of most of their rows something is lost to the other side of steps (steps.h) */
    int32_t n_direct, n_failed; /* tensors computed from recorded ones alone; of those, the ones beyond the bounds */
    bool products, attention;   /* most of these need it, as far as the class rounds them */
    int32_t n_sized, n_small;   /* rows of them judged in the class's typical bounds; of those, the ones far below */
    int32_t n_plain, n_plain_needed; /* products computed from recorded tensors alone: rounded, needed, as above */
    bool rounds_products;            /* any of those that were judged */
    fd_evidence_row *rows;           /* [n_node, n_slot]; owned */
    int32_t n_table,
        n_not_of_table; /* rows of GELU that the class reads from a table, their inputs recorded; of those, others */
    bool values_alone;  /* rows come without bounds, and count as within */
    bool part;          /* no more was computed than what refutes it: n_beyond is at least that, n_outside not known */
} fd_class_case;

fd_code fd_evidence_open(const fd_graph *graph, const fd_trace *trace, int32_t n_pos, fd_evidence *out, fd_error *err);
void fd_evidence_close(fd_evidence *evidence);

/* FD_ERR_MEMORY. The first one weighed is not freed while others are. */
fd_code fd_class_case_open(fd_evidence *evidence, const fd_numerics_class *numerics, fd_class_case *out, fd_error *err);
void fd_class_case_free(fd_class_case *c);  /* {0} is fine */
void fd_class_case_again(fd_class_case *c); /* without rows, which then come with bounds */

/* fd_attribution_options.on_row, with the fd_class_case as `user`. */
void fd_evidence_add(void *user, const fd_attribution_row *row);

/* The same rows again, judged in the class's fd_numerics_class_typical. */
void fd_evidence_add_typical(void *user, const fd_attribution_row *row);

/* What the rows that were added say of the class: the fields of the case. May be asked again after more. */
void fd_evidence_weigh(fd_class_case *c);

/* Tensors that `wide` rounds much more than `tight` does, and of those the ones that `tight` does not explain. A kind is
 * attn_q of every layer; it departs where `tight` leaves half of its tensors or more unexplained. */
typedef struct fd_class_need {
    int32_t n_rounded, n_needed;
    int32_t n_products, n_products_depart; /* kinds of products with a weight */
    int32_t n_products_fit;                /* of those, kinds of which `tight` explains most tensors */
    int32_t n_attention_depart;            /* kinds of attention's tensors: a kernel may compute it in its own way */
    int32_t n_mix_depart, n_mix_fit; /* kinds of weighted sums of V that depart, or of which `tight` explains most */
    int32_t n_depart;                /* kinds */
} fd_class_need;
fd_class_need fd_evidence_need(const fd_evidence *evidence, const fd_class_case *wide, const fd_class_case *tight);

/* All kinds of products, as `need` says, are to their last bits what `tight` makes of factors that it rounds to a type, and `wide` rounds
 * them to a coarser one. */
bool fd_evidence_factors_are_others(const fd_evidence *evidence, const fd_class_case *wide, const fd_class_case *tight,
                                    const fd_class_need *need);

/* A whole kind of tensors is beyond the class's bounds, and within those of `best`: two of them or more, or what `best` gives
 * by repeating the engine's roundings. */
bool fd_evidence_other_kernel(const fd_evidence *evidence, const fd_class_case *c, const fd_class_case *best);

/* The product with the output matrix; what follows are logits too, scaled or capped. */
int32_t fd_first_of_logits(const fd_graph *graph);

/* Tensors that were seen, and of those with values that a type of so many bits of mantissa cannot hold. Logits with such
 * values say nothing beside tensors that have none. */
typedef struct fd_storage {
    int32_t digits, n_seen, n_wide;
} fd_storage;
fd_storage fd_evidence_storage(const fd_evidence *evidence, const fd_numerics_class *numerics);

/* Attention alone speaks for a class that keeps K and V in 16 bits, and most of the caches that were seen hold values that
 * such a type cannot, or none was seen. (Some engines round them where they read them: then it may be this class all the same.) */
bool fd_evidence_cache_speaks_against(const fd_evidence *evidence, const fd_class_case *c);

/* A cache was recorded whose values all are of binary16: the engine keeps K or V in it. */
bool fd_evidence_shows_f16_cache(const fd_evidence *evidence);
/* K and V were stored in binary16. Then each op is right by what was stored, whether or not the class rounds a cache. */
bool fd_evidence_stores_f16_cache(const fd_evidence *evidence);
/* Most heads of attention's output are sums that were kept in binary16. */
bool fd_evidence_shows_f16_sums(const fd_evidence *evidence);

/* The class reads GELU from a table of binary16, and the trace has values of GELU that are not of that type. */
bool fd_evidence_refutes_table(const fd_evidence *evidence, const fd_numerics_class *numerics);

/* All products of the layers that were seen have more digits than the class, of mixed precision, leaves them, and fewer than two other ops give results
 * of so few in all layers (OpenVINO hands products out in binary32 before it rounds them, and RoPE's and attention's results as rounded). */
bool fd_evidence_nothing_is_narrow(const fd_evidence *evidence, const fd_numerics_class *numerics);

/* Of a class whose products round by their shape, products of one shape at one position, some of which do and some of which do not: a bug
 * then, or another class. */
bool fd_evidence_shapes_disagree(const fd_evidence *evidence, const fd_class_case *c);

/* Two classes whose products round by their shape, and all of those that were recorded with what they read are as one says and as the other;
 * not where fewer than three were. */
bool fd_evidence_same_products(const fd_evidence *evidence, const fd_class_case *a, const fd_class_case *b);

/* Tensors behind a layer or more of unrecorded ones that are what binary32 gives, rounded to 16 bits at the end; 0 where another tensor is
 * neither that nor binary32's. */
int32_t fd_evidence_n_one_rounding(const fd_evidence *evidence);

/* Most values are too wide for an engine that keeps its tensors in the class's type. */
bool fd_storage_refutes(const fd_storage *storage);

/* The class rounds factors, and most products have far smaller errors. */
bool fd_case_rounds_less(const fd_class_case *c);

/* Most of what the class rounds shows no such errors, or most of what is computed through that, or most rows of its table are others. */
bool fd_case_refuted(const fd_class_case *c);

/* A class of single rows that are not rounded as several are: no engine's that rounds them as well, and of a prompt alone nothing speaks for
 * it, nor where no tensor needs it. */
bool fd_case_rows_refute(const fd_class_case *c);

/* It repeats the engine's roundings: of most tensors that were reached through unrecorded ones nothing is left that
 * binary32 does not leave, and few of the others are beyond the bounds. No other class does that by chance. */
bool fd_case_leaves_nothing(const fd_class_case *c);

/* Some rows are to their last bits what the class gives, which shows it; most are off by what its steps leave, or by a bug that leaves no more. */
bool fd_case_shown_by_few_rows(const fd_class_case *c);

/* Tensors that it does not explain. */
static inline int32_t fd_case_unexplained(const fd_class_case *c) {
    return c->n_left + c->n_failed;
}

/* The trace shows the class by itself, not only by room for its errors. */
bool fd_case_shown(const fd_class_case *c);

#endif
