/* The candidate of a check: whatever an engine left, as a trace with the GGUF's names. */
#ifndef FD_CLI_CHECK_CANDIDATE_H
#define FD_CLI_CHECK_CANDIDATE_H

#include "cli/check/reference.h"
#include "cli/import/mapped_trace.h"
#include "compare/remark.h"

typedef struct fd_check_input { /* as given; NULL: not given */
    const char *model_path, *path;
    const char *tokens, *tokens_file, *steps; /* lists of integers, as text */
    const char *map, *weights;
    const char *cache_type; /* of a dump's K/V cache */
    const char *keep;       /* a folder for cand.h5 and found.map */
} fd_check_input;

typedef struct fd_candidate {
    fd_trace *trace;            /* the caller closes it */
    bool of_files;              /* it was made from files, so it has no other name than where it was kept */
    fd_cli_unmatched unmatched; /* listed on stderr, too */
    bool ranks_disagree;        /* the dumps of a tensor-parallel engine's ranks contradict each other: */
    bool copies_differ;         /* in what every rank should have alike */
    fd_remark ranks;            /* where, and how */
} fd_candidate;

/* Opens a trace with the GGUF's names as it is, puts the dumps of a tensor-parallel engine's ranks together, and imports anything else with the map of fd_cli_choose_map. Where there
 * is none, or it leaves names over, the reference is run first and they are found from the values, as is how the tokens were shared
 * out over steps whose last logits alone were recorded: *ref then receives its trace; else it is left. Which map was taken is said on stderr. */
fd_code fd_candidate_open(const fd_check_input *input, const fd_check_reference *reference, fd_candidate *out,
                          fd_trace **ref, fd_error *err);

#endif
