/* What an executor works out of its tensors for an observer, beside what scalar C gets from the reference's. */
#ifndef FD_TESTS_GPU_SUMMARIES_H
#define FD_TESTS_GPU_SUMMARIES_H

#include "exec/exec.h"

typedef struct summary {
    fd_fingerprint print;
    fd_stats stats;
    float *entropy, *sink; /* malloc'ed, [n_head]: attention weights; else NULL */
    fd_top_logits top;     /* the last node */
} summary;

typedef struct summaries {
    const fd_graph *graph;
    summary *expected; /* malloc'ed, [n_pos, n_node] */
    int32_t n_pos;
    int32_t at;        /* position whose step has begun; -1: none */
    int64_t n_compared, n_differ; /* rows */
    bool out_of_order;
} summaries;

fd_code summaries_open(summaries *s, const fd_graph *graph, int32_t n_pos, fd_error *err);
void summaries_close(summaries *s);

/* Of the reference's tensors, shown as data. */
fd_observer summaries_expect(summaries *s);
/* Wants no elements; compares what comes. Steps may come late. */
fd_observer summaries_compare(summaries *s);
/* Prints; true when `n_compared` rows were compared and none differs. */
bool summaries_report(const summaries *s, int64_t n_compared);

#endif
