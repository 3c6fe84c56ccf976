/* A graph as one of several GPUs runs it: of every large product it has some output rows, of attention some heads
 * with their K and V, of every expert's matrices some rows. What follows such a node row by row or head by head is
 * split too; where the whole is read a node GATHER brings it together. Nothing is ever summed across GPUs, so no bit
 * depends on their number. What cannot be split (a node that a fault replaces, ALiBi, fewer K/V heads than GPUs,
 * embeddings, routers) every GPU computes whole. Pure host code. */
#ifndef FD_ENGINE_SPLIT_H
#define FD_ENGINE_SPLIT_H

#include "engine/weights.h"
#include "model/graph.h"

/* The engine's own op: the node before it in the list, whole. input[0] is that node, or -1 where only an observer
 * wants the whole. */
#define FD_OP_GATHER ((fd_op)FD_OP_COUNT)

typedef struct fd_split {
    const fd_graph *full; /* borrowed */
    fd_graph *graph;      /* owned; its weights point into the full one's */
    fd_weight_runs *rows; /* owned, [graph->n_weight]: where their rows are in the file */
    int32_t *full_id; /* owned, [graph->n_node]: the full graph's node whose whole rows it has; -1: a part of them */
    int32_t *first;   /* owned, [graph->n_node]: of a GATHER: fd_place.first; of over_kv nodes in heads */
    int32_t *units;   /* owned, [graph->n_node]: of a GATHER: equal parts of a piece, shared as exec/peers.h shares */
} fd_split;

/* The share of GPU `rank` of n ≥ 2: the nodes are the same ones for every rank, their sizes are its own. */
fd_code fd_split_make(const fd_graph *graph, int32_t n, int32_t rank, fd_split *out, fd_error *err);
void fd_split_free(fd_split *split);

/* Node `id` of a split graph with the whole's shape: the GATHER that follows a part, else the node itself. */
const fd_node *fd_split_whole(const fd_graph *graph, int32_t id);
/* A GATHER that no node reads. */
bool fd_split_for_observers(const fd_node *node);

/* Where this GPU's part of GATHER `id` goes: a row is n_piece pieces of `stride` elements, and in each of them
 * `width` elements from `first` on are its own. n_kv: positions of over_kv rows. */
typedef struct fd_place {
    int32_t n_piece, units; /* units: of a piece, equal ones; each GPU has some */
    int64_t first, width, stride;
} fd_place;
fd_place fd_split_place(const fd_split *split, int32_t id, int32_t n_kv);

#endif
