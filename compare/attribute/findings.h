/* An attribution in the terms of a verdict: where it departs, what its inputs were, what to record to see more. */
#ifndef FD_COMPARE_ATTRIBUTE_FINDINGS_H
#define FD_COMPARE_ATTRIBUTE_FINDINGS_H

#include "compare/attribute/attribution.h"
#include "compare/diff/trace_pair.h"
#include "compare/verdict.h"

typedef struct fd_finding_context {
    const fd_graph *graph;
    const fd_trace *ref; /* findings number its steps */
    fd_trace_pair *pair;
    int32_t n_pos; /* positions whose tokens agree: beyond them nothing of the reference is set next to the candidate */
} fd_finding_context;

/* Replaces *out. The worst element stands first: the first bit that differs may be noise. */
fd_code fd_finding_divergence(const fd_finding_context *context, const fd_node_finding *finding, bool of_reference,
                              fd_divergence *out, fd_error *err);

/* The first finding of an attribution, with what to record where it is about a span; its counts, and `source`, how the class is
 * known. */
void fd_finding_replay(const fd_graph *graph, const fd_attribution *attribution, bool of_reference,
                       fd_verdict_replay *out);
void fd_finding_counts(const fd_graph *graph, const fd_attribution *attribution, const char *source,
                       fd_verdict_replay *out);

/* The unrecorded nodes that the first finding's replay went through, into `missing`: as many names as there is room for, and how many
 * more. found [n_node]: findings of its step. */
void fd_finding_missing(const fd_graph *graph, const uint8_t *found, fd_attribution *attribution);

/* What to record so that the next verdict is about one node of the span first … last: its layer with what that reads,
 * or, where it runs through several, the stream between them. Globs joined by commas. */
void fd_finding_globs(const fd_graph *graph, int32_t first, int32_t last, char *to, size_t size);

#endif
