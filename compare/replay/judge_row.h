/* One row of one node, judged: which elements lie beyond their bounds, what was introduced and what came along. */
#ifndef FD_COMPARE_REPLAY_JUDGE_ROW_H
#define FD_COMPARE_REPLAY_JUDGE_ROW_H

#include "compare/replay/judge.h"

typedef struct fd_judged_row {
    const fd_node *node;
    const fd_replayed *rows;
    int32_t r; /* of the rows */
    int32_t pos, step;
    int32_t n_kv;            /* width of a slice of attention weights */
    const double *reference; /* [stride] the other run's row; NULL: none */
} fd_judged_row;

/* growth [2], NULL where nobody asks: Σ(c − r)² and Σ r² of the row are added. */
fd_node_finding fd_judge_row(const fd_judged_row *row, double *growth);

/* No element is beyond, but the bound of the span that ends here would hide an error of the tensor's own size. */
bool fd_row_is_blind(const fd_judged_row *row, const fd_node_finding *f);

#endif
