/* Argmax flips: the one discrete thing that a run does with its logits is to choose the best token of each position.
 * Rounding may turn a near tie over; a run that feeds its own choices then goes another way, and from there only its
 * own trace can judge it. */
#ifndef FD_COMPARE_ATTRIBUTE_ARGMAX_FLIP_H
#define FD_COMPARE_ATTRIBUTE_ARGMAX_FLIP_H

#include "compare/attribute/attribution.h"
#include "compare/verdict.h"

typedef struct fd_position_argmax { /* reference's, candidate's */
    bool known;                     /* both sides' logits are recorded, without NaN */
    int32_t best[2];                /* the lowest id of a tie */
    int32_t last[2];                /* its highest id */
    double margin[2];               /* by how much a side prefers its own best to the other's; ≥ 0 */
    double tau[2];                  /* of these two logits together; 0 until the side was replayed */
} fd_position_argmax;

typedef struct fd_flips {
    int32_t logits;         /* node; -1: the graph has none */
    int32_t n_pos;          /* positions whose tokens agree */
    int32_t side;           /* that is being judged: 0 the reference's trace, 1 the candidate's */
    fd_position_argmax *at; /* [n_pos] owned */
} fd_flips;

fd_code fd_flips_open(const fd_graph *graph, int32_t n_pos, fd_flips *out, fd_error *err);
void fd_flips_close(fd_flips *flips);

/* Rows of other nodes than the logits are ignored. */
void fd_flips_add(fd_flips *flips, const fd_attribution_row *row);

/* Fills verdict->flip: the flips, and, where the tokens part at n_pos, whether each side was fed its own best token
 * (within its τ). A note says where a side was fed the highest id of equal logits: the contract's best is the
 * lowest. */
void fd_flips_report(const fd_flips *flips, const fd_trace *ref, const fd_trace *cand, fd_verdict *verdict);

#endif
