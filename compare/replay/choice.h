/* The one discrete thing that a run does with its logits: the best token of each position. Rounding may turn a near tie
 * over; a run that feeds its own choices then goes another way, and from there only its own trace can judge it. */
#ifndef FD_COMPARE_REPLAY_CHOICE_H
#define FD_COMPARE_REPLAY_CHOICE_H

#include "compare/verdict.h"
#include "exec/exec.h"

typedef struct fd_position_choice { /* reference's, candidate's */
    bool known;       /* both sides' logits are recorded, without NaN */
    int32_t best[2];  /* the lowest id of a tie */
    int32_t last[2];  /* its highest id */
    double margin[2]; /* by how much a side prefers its own best to the other's; ≥ 0 */
    double tau[2];    /* of these two logits together; 0 until the side was replayed */
} fd_position_choice;

typedef struct fd_choices {
    int32_t logits; /* node; -1: the graph has none */
    int32_t n_pos;  /* positions whose tokens agree */
    int32_t side;   /* that is being judged: 0 the reference's trace, 1 the candidate's */
    fd_position_choice *at; /* [n_pos] owned */
} fd_choices;

fd_code fd_choices_open(const fd_graph *graph, int32_t n_pos, fd_choices *out, fd_error *err);
void fd_choices_close(fd_choices *choices);

/* fd_judge_options.see, with the fd_choices as `user`. */
void fd_choices_see(void *user, const fd_node *node, int32_t pos, int64_t stride, const double *candidate,
                    const double *replayed, const double *tau, const double *reference);

/* Fills verdict->choice: the flips, and, where the tokens part at n_pos, whether each side was fed its own best token
 * (within its τ). A note says where a side was fed the highest id of equal logits: the contract's best is the lowest. */
void fd_choices_report(const fd_choices *choices, const fd_trace *ref, const fd_trace *cand, fd_verdict *verdict);

/* The first position that both have and were fed different tokens at; -1: none. */
int32_t fd_tokens_part(const fd_trace *ref, const fd_trace *cand);

/* True when that is in the prompt of a side: nobody's choice made the difference. */
bool fd_tokens_part_in_prompt(const fd_trace *ref, const fd_trace *cand);

/* True when it is there although both prompts are recorded as the same text: a tokenizer is wrong. */
bool fd_tokens_of_one_text(const fd_trace *ref, const fd_trace *cand);

/* Makes the verdict DIVERGED at those tokens. */
void fd_tokens_diverge(const fd_trace *ref, const fd_trace *cand, fd_verdict *verdict);

/* Where the tokens part inside a prompt: two different texts are no comparison, which is a reason for INCOMPLETE. Equal
 * texts with different tokens stay a divergence, the tokenizers'. Where a text is not recorded nobody can tell: a reason too. */
void fd_tokens_of_prompts(const fd_trace *ref, const fd_trace *cand, fd_verdict *verdict);

#endif
