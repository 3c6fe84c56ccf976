/* Processes that run one model together: each computes a share of the items of every large op, and all get all of
 * them. What an item is worth never depends on who computed it, so no number of processes changes a bit. mpi/mpi.h
 * makes them. */
#ifndef FD_EXEC_PEERS_H
#define FD_EXEC_PEERS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* `data`: n_block blocks of n_item items of item_bytes each; of every block each process has its share of the items. */
typedef struct fd_shared_rows {
    void *data;
    int64_t n_block, n_item;
    size_t item_bytes;
    const char *name; /* of the tensor, for messages */
} fd_shared_rows;

typedef struct fd_peers fd_peers;
struct fd_peers {
    int32_t rank, n; /* this process, of how many; n ≥ 2 */
    /* Brings the other processes' items. All call it for the same tensors in the same order. FD_ERR_IO where one does
     * not come within a bounded time. */
    fd_code (*gather)(fd_peers *peers, const fd_shared_rows *rows, fd_error *err);
    double wait_seconds; /* that time, for whatever else waits for another process */
};

/* The first item of share `rank` of n shares of n_item items, which differ by one item at most. Processes and GPUs
 * share alike. */
static inline int64_t fd_share_first(int64_t n_item, int32_t n, int32_t rank) {
    return n_item / n * rank + (n_item % n) * rank / n;
}

static inline int64_t fd_peers_first(const fd_peers *peers, int32_t rank, int64_t n_item) {
    return fd_share_first(n_item, peers->n, rank);
}

#endif
