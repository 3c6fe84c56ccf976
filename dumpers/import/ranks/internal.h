/* Between the files of dumpers/import/ranks/: rank_name.c (which rank a name speaks of), join.c (which tensors belong
 * together), shards.c and layout.c (how they are sharded), report.c (what is said of it), assemble.c (the whole
 * tensor), contradictions.c and sums.c (where ranks disagree), odd_copies.c (which copy is
 * wrong). */
#ifndef FD_DUMPERS_IMPORT_RANKS_INTERNAL_H
#define FD_DUMPERS_IMPORT_RANKS_INTERNAL_H

#include "dumpers/import/plan_internal.h"
#include "dumpers/import/ranks/ranks.h"
#include "dumpers/import/source_internal.h"

/* The tensors of all ranks that are one, and how they are. */
typedef struct fd_joined {
    size_t *parts;         /* [n_rank] tensors of the dumps */
    int64_t first, length; /* elements of the last axis that are read: a third of a fused qkv; length 0: all */
    int32_t node, weight;  /* of the graph; -1: the map names none */
    fd_shard shard;
    bool alone;      /* no rank's, or recorded by one alone: taken as it is */
    bool whole_each; /* every rank has as many elements as the whole: replicated, or summed */
    int axis;        /* along which shards lie one after the other */
    int32_t copies;  /* neighbouring ranks with the same K/V heads; 1: none */
    int64_t padding; /* elements at the end of the last axis that the model does not have */
    int map_axis;    /* axis= of the map's rule, from the end; 0: it says none */
    int positions;   /* the axis that runs over the step's positions; -1: none */
    int32_t pos0, n_pos;
} fd_joined;

struct fd_ranks {
    fd_source *dumps; /* owned */
    int32_t n_rank;
    fd_joined *joined; /* [n_joined]: one for each tensor of the joined source */
    size_t n_joined;
    int32_t copies_of; /* the rank whose copies are given */
    fd_rank_report report;
};
void fd_ranks_free(struct fd_ranks *ranks);

/* The joined source while it is made. */
typedef struct fd_joiner {
    struct fd_ranks *ranks;
    fd_source *whole;
    const fd_import_options *options;
    const fd_import_plan *steps; /* tokens and steps alone */
    size_t room;
    fd_error *err;
} fd_joiner;
/* One more tensor, put together of parts [n_rank] of the dumps; its shape is like's until its shards are found. NULL:
 * out of memory. */
fd_joined *fd_joiner_add(fd_joiner *joiner, const char *name, const fd_source_tensor *like, const size_t *parts);
/* How each tensor is sharded, and so its shape. Without a map it adds a second reading of some. */
fd_code fd_joiner_find_shards(fd_joiner *joiner);
fd_code fd_joiner_make_report(fd_joiner *joiner);
/* Takes the sums out that the engine added in an order of its own, where what reads them was recorded. */
fd_code fd_joiner_leave_out_sums(fd_joiner *joiner);
/* The name of its node or weight, without the layer. */
const char *fd_joined_suffix(const fd_graph *graph, const fd_joined *joined);

/* SGLang's hooks number forward passes: "Pass00003/NAME" becomes "step_3/NAME", in `name` [size], whatever folders stand before it. */
void fd_rename_pass(char *name, size_t size);
/* Takes the rank out of a name: "rank0/q-3", "TP1_PP0_Rank1_pid77/Pass00003/NAME", "sglang_dump_1763_1/…",
 * "step_0/model.norm/outputs_cuda_1", "…___rank=1___…". False where it has none. `out` [size] receives the rest. */
bool fd_rank_of_name(const char *name, char *out, size_t size, int32_t *rank);
/* The rank of a tensor of the dumps, "q-3:rank1", and the length of its name without it. */
int32_t fd_rank_of_tensor(const char *name, size_t *length);

/* Sets shard, axis, copies, padding by sizes alone; whole_each where values have to decide between replicated and summed. */
fd_code fd_joined_find_layout(const struct fd_ranks *ranks, const fd_graph *graph, fd_joined *joined, fd_error *err);
/* The shape of the whole tensor. */
void fd_joined_shape(const struct fd_ranks *ranks, const fd_joined *joined, int *rank, int64_t *shape);

/* The whole tensor, in memory of its own. */
fd_code fd_joined_view(const struct fd_ranks *ranks, const fd_joined *joined, fd_source_view *out, fd_error *err);

fd_array_type fd_joined_type(const struct fd_ranks *ranks, const fd_joined *joined); /* of its elements */

/* Rows of one position: how many a part has (1 where nothing runs over positions), and row `row` of rank r's, malloc'ed. */
int32_t fd_joined_n_row(const struct fd_ranks *ranks, const fd_joined *joined);
fd_code fd_joined_row(const struct fd_ranks *ranks, const fd_joined *joined, int32_t r, int32_t row, double **values,
                      int64_t *n, fd_error *err);

/* What the ranks' values say of a tensor that each has whole. */
typedef struct fd_rank_values {
    bool equal;        /* in every bit, or NaN beside NaN */
    bool rows_of_some; /* there are rows that are zeros on some ranks and not on others */
    double difference; /* the largest ||a - b||^2 / (||a||^2 + ||b||^2) of rank 0 and another; NaN: not finite */
} fd_rank_values;
fd_code fd_joined_values(const struct fd_ranks *ranks, const fd_joined *joined, fd_rank_values *out, fd_error *err);

/* The same for an addition whose input is partial sums of all ranks: f->text, where one is missing or added twice (sums.c). */
fd_code fd_joined_check_sum(struct fd_ranks *ranks, const fd_graph *graph, const fd_source *whole, size_t i,
                            fd_rank_finding *f, fd_error *err);

/* Adds to the report what contradicts the sharding of tensor i, at the first position that shows it. */
fd_code fd_joined_check(struct fd_ranks *ranks, const fd_graph *graph, const fd_source *whole, size_t i, fd_error *err);

#endif
