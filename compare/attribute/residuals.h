/* What replay leaves of tensors that it reached through unrecorded ones. A bound grows with every op on the way, and with
 * every int8 block that rounding might have pushed to the next step: through a layer it may hide a bug. But a class that
 * repeats the engine's roundings leaves binary32's own, a millionth, of nearly every row, because blocks seldom turn over.
 * So where most rows are left so, a tensor whose rows are not is no rounding, though it stays within its bound.
 *
 * What is left of one layer, sixteen times what is left of any other, makes it a suspect though no row is odd.
 *
 * Two rows with more left than any steps can leave are no chance either. So a bug of decode alone is seen in a few decode steps.
 *
 * Where the class rounds to steps, a row that came to lie on the other side of one stays in the K/V cache, and all rows
 * after it have the error: behind an unrecorded cache odd rows are not independent, and make a tensor a suspect alone,
 * unless more is left than such values can leave.
 *
 * left = √Σ(c − ŷ)² / √Σŷ² of a row. With p the share of odd rows among all other tensors, k odd rows of n come about by
 * chance with probability C(n, k) p^k at most, and a tail of k with n p^k. A tensor departs where that, times the number of
 * tensors, is below FD_RESIDUAL_CHANCE. */
#ifndef FD_COMPARE_ATTRIBUTE_RESIDUALS_H
#define FD_COMPARE_ATTRIBUTE_RESIDUALS_H

#include "compare/attribute/attribution.h"
#include "compare/attribute/draws.h"

/* A row is odd where more is left than binary32 leaves of a layer (10^-7 measured, 10^-6 of a deep model's logits) and of
 * RoPE's angles, which engines round to binary32: by 2^-24 of the position, four times allowed. */
#define FD_RESIDUAL_ODD    FD_LAST_BITS
#define FD_RESIDUAL_TURN   0x1p-22
#define FD_RESIDUAL_CHANCE 1e-4
#define FD_RESIDUAL_MUCH   32.0f   /* of what is odd: more than one value of binary16 leaves (residuals.c) */
#define FD_RESIDUAL_LEAST  0x1p-5f /* of what is odd: 2^-21 of the row */

enum { FD_FIRST_ODD, FD_FIRST_FAR, FD_FIRST_LATE, FD_FIRST_NOTED, FD_FIRST_COUNT };

typedef struct fd_residuals {
    const fd_graph *graph;
    int32_t n_pos, n_first; /* positions; of the prompt, which may come in several steps */
    bool *begins;           /* [n_pos] a step after the first begins there; owned */
    float *left;            /* [n_node, n_pos] fd_row_oddness; -1: recorded inputs, or not judged; owned */
    bool *far;              /* [n_node, n_pos] more is left than int8 blocks, all rounded another way, leave; owned */
    fd_node_finding
        *odd; /* [n_node, FD_FIRST_COUNT] the first row that is odd, far, odd after the first step, not tiny; owned */
    bool *cached;          /* [n_node] behind an unrecorded cache, in a class that rounds to steps; owned */
    bool *routed;          /* [n_node] behind an unrecorded choice of experts: another one leaves any amount; owned */
    bool *unsure;          /* [n_node] computed through a product that the class may round or not; owned */
    int32_t *n_moved;      /* [n_node] rows with more left than binary32 leaves; owned */
    int32_t *n_room;       /* [n_node] rows with more left than binary32 leaves, less those with no more; owned */
    int32_t shown_at;      /* as fd_attribution_options has it */
    const fd_draws *draws; /* likewise */
    float much;            /* in fd_row_oddness: more than one value that fell to the other side leaves of a layer */
    bool blocks;           /* the class makes int8 blocks of what products read */
} fd_residuals;

/* Of options->graph, ->numerics, ->cand and ->n_pos. `whole` [n_node]: recorded at every position (plan.h). Where some rows alone were recorded, as the last of each step, the others came
 * to the K/V cache on a way that was not. FD_ERR_MEMORY; freed with fd_residuals_free also then. */
fd_code fd_residuals_open(const fd_attribution_options *options, const bool *whole, fd_residuals *out, fd_error *err);
void fd_residuals_free(fd_residuals *residuals);

/* A row, and what the bounds say of it. Returns whether what is left shows that the row is right. */
bool fd_residuals_add(fd_residuals *residuals, const fd_attribution_row *row, const fd_node_finding *finding);

/* residuals_judge.c. finding[i] of node i: its first odd row, where the node departs; suspect[i]: where more than half of its rows are odd, or
 * all that come after the prompt, or all from some row on, by much.
 * [n_node] both; else finding 0. FD_ERR_MEMORY alone. */
fd_code fd_residuals_judge(const fd_residuals *residuals, fd_node_finding *finding, fd_node_finding *suspect,
                           fd_error *err);

/* Of the rows [n] of one node (negative: not judged), the middle one; -1: none. Reorders them. */
double fd_residual_median(float *left, int32_t n);

/* √Σ(c − ŷ)² / √Σŷ²; NaN and Inf on one side count as +Inf. fd_row_oddness: that over what is odd at its position, so that
 * a row is odd beyond 1. */
double fd_row_left(const fd_attribution_row *row);
double fd_row_oddness(const fd_attribution_row *row);

#endif
