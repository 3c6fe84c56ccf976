/* Dumps of a tensor-parallel engine, one for each rank, put together: `import --ranks` (docs/mapping.md).
 *
 *     fd_source_open_ranks(path, &dumps, err);        names lose their rank: "rank1/q-0", "…_cuda_1", "…___rank=1___…"
 *     fd_ranks_join(dumps, &options, &whole, err);    a source of whole tensors; owns the dumps
 *     fd_ranks_report_of(whole)                       how each tensor was sharded, and where ranks contradict each other
 *
 * How a tensor is sharded is decided by the sizes that the model's graph expects and by values: nothing has to be said. What
 * needs no reference is found here: a tensor that every rank should hold and one holds otherwise, a token that no rank or
 * two ranks embed. What is wrong with the whole tensor is for `compare`. */
#ifndef FD_DUMPERS_IMPORT_RANKS_RANKS_H
#define FD_DUMPERS_IMPORT_RANKS_RANKS_H

#include "dumpers/import/import.h"

enum { FD_MAX_RANKS = 1024 };

/* How the ranks' tensors make the whole one. */
typedef enum fd_shard {
    FD_SHARD_REPLICATED, /* every rank has it whole */
    FD_SHARD_COLUMN,     /* each has some outputs, or some heads: one after the other */
    FD_SHARD_KV,         /* K/V heads, fewer than ranks: neighbouring ranks have the same ones */
    FD_SHARD_ROW,        /* each has a sum over its inputs: the whole is their sum */
    FD_SHARD_VOCABULARY, /* each has the rows of its tokens and zeros elsewhere: their sum; or its logits */
    FD_SHARD_EXPERT,     /* each has its experts' rows and zeros elsewhere: their sum */
    FD_SHARD_SEQUENCE,   /* each has some positions */
    FD_SHARD_COUNT
} fd_shard;
const char *fd_shard_name(fd_shard shard);    /* "column" */
const char *fd_shard_summary(fd_shard shard); /* in words */

/* Where the ranks contradict each other. */
typedef struct fd_rank_finding {
    char node[64];
    int32_t step, position; /* position: in the whole run */
    int32_t order;          /* of the node in the graph */
    int32_t odd;    /* of copies that differ, the first rank that is not like most; -1: no copies, or no majority */
    bool copies;    /* it is about copies that differ */
    char text[288]; /* "rank 2 differs from the other 3, …" */
} fd_rank_finding;

typedef struct fd_rank_kind { /* tensors of one name, over layers and steps */
    char name[64];            /* of the node without its layer: "attn_q" */
    fd_shard shard;
    int32_t order, n; /* the first's place in the graph; how many tensors */
} fd_rank_kind;

typedef struct fd_rank_report {
    int32_t n_rank;
    fd_rank_kind *kinds; /* [n_kind] in the graph's order */
    size_t n_kind;
    fd_rank_finding *findings; /* [n_finding] in order of execution; a tensor has one at most */
    size_t n_finding;
    char absent[256]; /* globs of nodes whose partial sums are there, but not the sum that the engine read; "" */
    double rounding; /* the largest relative difference between replicated tensors that is too small for a finding; 0 */
} fd_rank_report;

/* As fd_source_open; FD_ERR_INPUT where no name holds a rank, or ranks are missing between 0 and the last. */
fd_code fd_source_open_ranks(const char *path, fd_source **out, fd_error *err);

/* options: map and graph are needed; tokens and step_sizes as for a plan. Takes `dumps` on success. FD_ERR_INPUT, with what
 * each rank holds and the model expects, for sizes that no sharding explains. */
fd_code fd_ranks_join(fd_source *dumps, const fd_import_options *options, fd_source **out, fd_error *err);

const fd_rank_report *fd_ranks_report_of(const fd_source *source); /* NULL: no joined source */

/* Of what every rank should hold whole, the source gives rank 0's copy. Where copies differ one of them is wrong, and a trace of
 * that one shows what is wrong with it. Of the first tensor whose copies differ: the rank that is not like most, or, where
 * `ref` is given (a trace of the model's nodes on the same steps), the one that is farthest from it. From then on the source gives this
 * rank's copies. *rank: which; -1: none differ, or nothing says which is wrong. */
fd_code fd_ranks_take_odd_copies(fd_source *joined, const fd_trace *ref, int32_t *rank, fd_error *err);

/* fd_source_open_ranks where the names are of two ranks or more, else fd_source_open. *of_ranks: which. */
fd_code fd_source_open_any(const char *path, fd_source **out, bool *of_ranks, fd_error *err);

#endif
