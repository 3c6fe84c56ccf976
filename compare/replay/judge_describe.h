/* A judgement in the terms of a verdict: where it departs, what its inputs were, what to record to see more. */
#ifndef FD_COMPARE_REPLAY_JUDGE_DESCRIBE_H
#define FD_COMPARE_REPLAY_JUDGE_DESCRIBE_H

#include "compare/replay/judge.h"
#include "compare/diff/trace_pair.h"
#include "compare/verdict.h"

typedef struct fd_judged {
    const fd_graph *graph;
    const fd_trace *ref; /* its steps are those that findings number */
    fd_trace_pair *pair;
    int32_t n_pos; /* positions whose tokens agree: beyond them nothing of the reference is set beside the candidate */
} fd_judged;

/* Replaces *out. At the worst element, which stands first: the first bit that differs may be noise. */
fd_code fd_describe_divergence(const fd_judged *judged, const fd_node_finding *finding, bool of_reference,
                               fd_divergence *out, fd_error *err);

/* The first finding of a judgement, with what to record where it is about a span. */
void fd_describe_finding(const fd_graph *graph, const fd_judgement *judgement, bool of_reference,
                         fd_verdict_replay *out);
void fd_describe_counts(const fd_graph *graph, const fd_judgement *judgement, fd_class_source source,
                        fd_verdict_replay *out);

/* What to record so that the next verdict is about one node of the span first … last: its layer with what that reads, or,
 * where it runs through several, the stream between them. Globs joined by commas. */
void fd_describe_globs(const fd_graph *graph, int32_t first, int32_t last, char *to, size_t size);

#endif
