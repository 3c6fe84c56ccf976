/* Explanations while they are tried: each is computed and set against the candidate's values; those that are not
 * clearly beyond stay as contenders. */
#ifndef FD_COMPARE_EXPLAIN_TRIAL_H
#define FD_COMPARE_EXPLAIN_TRIAL_H

#include "compare/explain/explanation.h"
#include "compare/explain/trial_rows.h"

typedef struct fd_contender {
    fd_hypothesis h;
    fd_explain_fit fit;
    fd_variant variant;
    int64_t
        evidence;  /* finite elements that it explains and the op as it should be does not, here and at other nodes */
    bool refuted;  /* by another node */
    bool asked;    /* readers.h */
    bool in_group; /* named together with the best one */
} fd_contender;

/* Rows of which the middle one is taken; more are never asked about at once (MOST_ROWS of diagnose.c). */
enum { FD_TRIAL_MIDDLE = 64 };

typedef struct fd_trial {
    fd_trial_rows all, few; /* few.bench NULL: there are none */
    fd_trial_rows early;    /* bench NULL: the same */
    fd_trial_rows smooth;   /* all, as a class computes them that takes no steps; bench NULL: not asked for yet */
    fd_explain_request without_steps; /* its request */
    fd_explanation *out;
    double few_left, early_left,
        all_left;  /* what the op as it should be leaves of the few rows, and of all, as fd_trial_distance says it */
    int32_t *span; /* [n_span] the nodes that the one asked about is computed through, itself last; owned */
    int32_t n_span;
    fd_contender *contenders; /* owned; not clearly beyond, best first */
    int32_t n;
    uint64_t heads;       /* what is tried holds in these alone; 0: in all */
    int32_t from, to;     /* what is tried holds in elements [from, to) of a row alone; to 0: in all */
    int32_t since;        /* what is tried holds from this position on; 0: everywhere */
    int32_t rank, n_rank; /* what is tried holds on this rank alone; n_rank 0: on all */
    double spent;         /* multiplications on few rows so far */
    bool op_refuted;      /* the op as it should be is clearly beyond, here or at another node that a fault explains */
} fd_trial;

/* out->unmodified is filled. plain.state of trial->all says whether the node can be computed at all. */
fd_code fd_trial_open(const fd_explain_request *request, fd_explanation *out, fd_trial *trial, fd_error *err);
void fd_trial_close(fd_trial *trial);

fd_code fd_trial_try(fd_trial *trial, const fd_hypothesis *h, fd_error *err);

/* trial_steps.c. Does the class round what products read to steps, through more than one layer? */
bool fd_trial_in_steps(const fd_trial *trial);
/* Root mean square of all residuals; in such a class what the middle row leaves. */
double fd_trial_left_of_rows(const fd_trial *trial, const fd_variant *variant);
/* Rows that it gives to their last bits, and the op as it should be does not; within a layer 0 where they are not most, or where another one
 * is not explained. */
int32_t fd_trial_repeats(const fd_trial *trial, const fd_variant *variant);
/* Where a value near the middle between two steps went to the other side, any small change may take it back. So the change by
 * itself, no steps taken, must be as large as what it explains, in most rows. */
fd_code fd_trial_turns_steps_alone(fd_trial *trial, const fd_hypothesis *h, bool *yes, fd_error *err);
/* Two that differ in last bits alone where no steps are taken: steps make hundredths of them. */
fd_code fd_trial_same_without_steps(fd_trial *trial, const fd_hypothesis *a, const fd_hypothesis *b, bool *yes,
                                    fd_error *err);
/* trial_contenders.c. Keep takes the variant, also after a failure. */
fd_code fd_trial_keep(fd_trial *trial, fd_contender *contender, fd_error *err);
void fd_trial_drop(fd_trial *trial, int32_t contender);

/* Does the span run through more than one layer? */
bool fd_trial_many_layers(const fd_trial *trial);
/* The first norm of so many dimensions in the span, which has norms of rows and of heads; NULL: it has not. */
const fd_node *fd_trial_norm_of_both(const fd_trial *trial, int32_t n_dim);
int32_t fd_trial_first_layer(const fd_trial *trial); /* -1: it has none */
/* Did the step's first rows come out right, or nearly? */
bool fd_trial_begins_late(const fd_trial *trial);
/* More than the table is asked for, and there are rows to solve numbers on. */
bool fd_trial_may_guess(const fd_trial *trial);

/* The heads of a node; of a product that is normed as a whole before it has any, those of what becomes of it. */
int32_t fd_trial_heads_of(const fd_trial *trial, const fd_node *node);

/* Was all recorded that the node asked about reads, but for caches, which hold rows that were, and what a kernel of attention keeps to
 * itself? */
bool fd_trial_alone(const fd_trial *trial);

/* trial_cost.c. So much was tried that a person would wait too long for more: then nothing more is tried. What trying `h` on those rows costs, so
 * many times, is added to it. */
bool fd_trial_exhausted(const fd_trial *trial);
void fd_trial_spend(fd_trial *trial, const fd_explain_request *on, const fd_hypothesis *h, double times);
void fd_trial_spend_on_few(fd_trial *trial, double times); /* whatever the hypothesis */

/* By other steps: not to be tried. */
bool fd_trial_is_refuted(const fd_trial *trial, const fd_hypothesis *h);

/* Some contender gives the candidate's values, and far better than the op as it should be. */
bool fd_trial_fits(const fd_trial *trial);

/* Does `a` leave so much less than `b` that chance cannot have done it? Bounds say how far rounding may go, which through
 * many ops is further than it goes: errors of rounding are many and unordered, so an explanation that takes most of them
 * away, over hundreds of elements, is no rounding however small they are. */
enum { FD_FEWEST_REPEATED = 2 }; /* rows to their last bits; one may be spared by a bug */
bool fd_fit_decides(const fd_explain_fit *a, const fd_explain_fit *b);

/* z ≤ 1; through a span, whose bounds are sampled, a little more where little is left of the residual. */
bool fd_trial_is_fit(const fd_trial *trial, const fd_explain_fit *fit);

/* How far `rows`, the few or all, are from a hypothesis: the root of the mean square of the residuals over the bounds of the op
 * as it should be; +Inf where it cannot be computed or a NaN is one side's alone. */
fd_code fd_trial_distance(fd_trial *trial, const fd_trial_rows *rows, const fd_hypothesis *h, double *distance,
                          fd_error *err);

/* Of what was tried, the nearest are kept (explanation.h). left: of few rows, beside what the op as it should be leaves of them. */
void fd_trial_note_near(fd_trial *trial, const fd_hypothesis *h, double left);
void fd_trial_note_runner_up(fd_trial *trial, const fd_explain_fit *fit);
fd_explain_fit fd_trial_fit(const fd_trial *trial, const fd_hypothesis *h, const fd_variant *variant);

#endif
