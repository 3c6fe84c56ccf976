/* What the files of a comparison by replay share: compare_model.c asks for the steps of a verdict, judge_side.c judges a side. */
#ifndef FD_COMPARE_COMPARISON_H
#define FD_COMPARE_COMPARISON_H

#include "compare/attribute/argmax_flip.h"
#include "compare/compare_model.h"
#include "compare/diagnose/diagnose.h"
#include "compare/diff/trace_pair.h"
#include "compare/measure/measures.h"
#include "compare/weights/weights.h"

enum { FD_REFERENCE, FD_CANDIDATE };

typedef struct fd_comparison {
    const fd_compare_model_options *o;
    fd_verdict *verdict;
    fd_trace_pair pair;
    fd_loaded_weights loaded[2]; /* reference's, candidate's */
    fd_product_memo *memo;       /* of both sides' replays; owned */
    fd_flips flips;
    fd_verdict_map map[2]; /* of the reference's trace, of the candidate's */
    fd_measures measures[2];
    int32_t n_pos;        /* positions whose tokens agree */
    bool *ignored;        /* [n_node] of the candidate: recorded wrongly; owned */
    bool records_rounded; /* the candidate's: fused kernels read what was rounded after them (attribute/unrounded.h) */
    fd_explanation below; /* named: a bug below the bounds */
    fd_explanation first; /* of the candidate's first finding, `explained` when it was asked for */
    int32_t explained_node, explained_pos;
    bool explained;
    fd_hypothesis likely; /* by it the candidate's class was found, at node `likely_at` - 1 */
    int32_t likely_at;    /* 0: it was not found so */
    bool own_ways;        /* from n_pos on, each side follows its own choices, and is judged on its own tokens */
} fd_comparison;

/* Of one side, the other giving what its inputs had brought along; without a class. Borrows from the comparison. */
fd_attribution_options fd_comparison_options(const fd_comparison *c, int side);

/* fd_diagnose_options of that finding, which is borrowed. */
fd_diagnose_options fd_comparison_question(const fd_comparison *c, const fd_node_finding *finding,
                                           const fd_attribution *of, int side);

/* The candidate's first finding, asked about once. */
fd_code fd_comparison_explain(fd_comparison *c, const fd_diagnose_options *ask, fd_explanation *out, fd_error *err);
void fd_comparison_keep(fd_comparison *c, const fd_node_finding *of,
                        const fd_explanation *e); /* as if it had been asked */

#endif
