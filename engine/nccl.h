/* Gathers between the GPUs of several processes by NVIDIA's NCCL, on the devices: over NVLink or shared memory inside a
 * machine, over its network between machines. The library (libnccl.so.2) is loaded when processes share a run, and
 * only then.
 *
 * What waits for another process's GPU waits for a bounded time: fd_nccl_wait, in place of CUDA's own waiting. */
#ifndef FD_ENGINE_NCCL_H
#define FD_ENGINE_NCCL_H

#include "engine/memory.h"
#include "exec/peers.h"

typedef struct fd_nccl fd_nccl;

/* All processes call it, each with its device current. *out NULL, and why not in `why`: NCCL is not loaded in each of
 * them, they have different releases of it, two of them have one GPU, or FIRSTDIFF_NCCL=0 forbids it. They all get the
 * same answer. NCCL has then taken the device memory that it wants for itself. */
fd_code fd_nccl_open(fd_peers *peers, fd_nccl **out, char *why, size_t room, fd_error *err);
/* With the other processes, which must all do so. NULL is fine. */
void fd_nccl_close(fd_nccl *nccl);
/* Whether a wait has failed: kernels on the device may then wait without end, and what they use must not be given back. False
 * for NULL. */
bool fd_nccl_lost(const fd_nccl *nccl);
const char *fd_nccl_release(const fd_nccl *nccl); /* "2.28.9" */

/* Device memory that rows are gathered in before they are put in place, where the widest has so many bytes. */
size_t fd_nccl_staging_bytes(size_t widest_row);

/* n_row rows of n_item items of item_bytes each; of every row each process has its share of the items
 * (exec/peers.h). All pointers are device memory. */
typedef struct fd_nccl_rows {
    const void *part; /* [n_row, items of this process] */
    void *whole;      /* [n_row, n_item] */
    int64_t n_row, n_item;
    size_t item_bytes;
    const fd_block *staging; /* of fd_nccl_staging_bytes or more; not used for one row */
    const char *name;        /* of the tensor, for messages */
} fd_nccl_rows;

/* In the stream, or as a part of the graph that it captures. */
fd_code fd_nccl_gather(fd_nccl *nccl, const fd_nccl_rows *rows, cudaStream_t stream, fd_error *err);

/* Waits for the event, or with NULL for all of the stream. FD_ERR_IO where NCCL has lost another process, or none of its
 * work came for peers->wait_seconds; nothing can be gathered any more then. */
fd_code fd_nccl_wait(fd_nccl *nccl, cudaStream_t stream, cudaEvent_t event, const char *what, fd_error *err);

#endif
