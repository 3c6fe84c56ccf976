/* What the engines of one run share, a rank each on a GPU and a thread of its own: every rank makes the same passes
 * over its own split of the graph (engine/split.h), and in these passes the ranks meet at every GATHER, on the
 * devices. The hosts meet before a pass is launched, when all have made the memory for it: a device that waits for
 * another must not be asked for memory.
 *
 * Ranks that are processes (`peers`, on one machine or several) do not reach each other's devices: they meet at every
 * GATHER, by NCCL or else through memory of the host (ranks_apart.c), and nowhere else. */
#ifndef FD_ENGINE_RANKS_H
#define FD_ENGINE_RANKS_H

#include <pthread.h>

#include "engine/memory.h"
#include "engine/nccl.h"
#include "model/graph.h"
#include "kernels/gather/gather.h"

struct fd_engine;
struct fd_item;
struct fd_pass;

typedef struct fd_ranks {
    int32_t n;
    fd_peers *peers;             /* borrowed: the ranks are processes, of which this is one; NULL: threads */
    bool alone;                  /* no GPU has two ranks */
    struct fd_pass *passes;      /* owned, [n]: of the pass that is being launched, for where the others' tensors are */
    fd_block mail[FD_MAX_RANKS]; /* device, each on its rank's: fd_mailbox_bytes */
    int32_t n_page_row;          /* rows of a pass whose every gather goes through the mailboxes' pages, */
    int64_t n_page;              /* and their elements */
    fd_block stop;               /* pinned: uint32_t; not 0: a rank has failed */
    fd_nccl *nccl;               /* owned: of processes, by which they gather; NULL: through their hosts */
    fd_block staging;            /* device: of NCCL, shares of rows before they are put in place */
    fd_block host;               /* pinned: without NCCL, the rows that are gathered */
    pthread_mutex_t launching; /* where a GPU has two: a kernel's attributes are the device's, and each wants its own */
    pthread_mutex_t lock;      /* of all below */
    pthread_cond_t changed;
    int32_t n_met, turn; /* ranks that wait to meet, and meetings so far */
    bool failed;
    fd_error why; /* of the rank that failed first */
} fd_ranks;

/* Elements of the widest row of a split graph that is gathered in steps, times n_seq. */
int64_t fd_ranks_page(const fd_graph *graph, int32_t n_seq);

/* Everything but the mailboxes, which each rank makes on its device, as large as n_page and n_page_row say; processes have none,
 * and with NCCL room to gather in. */
fd_code fd_ranks_make(fd_ranks *ranks, int32_t n, bool alone, fd_error *err);
fd_code fd_ranks_make_mailbox(fd_ranks *ranks, int32_t rank, fd_error *err); /* on the current device */
void fd_ranks_release(fd_ranks *ranks);

/* Waits until all ranks have called it. A failure where one of them has failed. */
fd_code fd_ranks_meet(fd_ranks *ranks, fd_error *err);
/* A rank has failed, or stops: nobody waits for it any more, on the hosts or on the devices. */
void fd_ranks_stop(fd_ranks *ranks, const fd_error *why);
/* After all have come back: as new. */
fd_code fd_ranks_resume(fd_ranks *ranks, fd_error *err);

/* Around the launches of a pass: the ranks meet, know where each other's tensors are, and wait on the devices until
 * each other's pass before is through. Without ranks (NULL) these do nothing. */
fd_code fd_ranks_begin_pass(struct fd_pass *pass, fd_error *err);
fd_code fd_ranks_end_pass(const struct fd_pass *pass, fd_error *err);
/* Now and then during a pass: where ranks share a GPU its queue of launches must not fill up, as who waits for room
 * there keeps the others from launching. */
fd_code fd_ranks_drain(const struct fd_pass *pass, fd_error *err);
/* Around the launch of one item. */
void fd_ranks_begin_launch(fd_ranks *ranks);
void fd_ranks_end_launch(fd_ranks *ranks);
/* GATHER node `id` of a pass, ready but for what it adds and where it leaves the whole: n_tok rows, whose part is at
 * x unless they were sent; pos0 as fd_gather's. */
fd_gather fd_ranks_gather(struct fd_pass *pass, int32_t id, const float *x, const int32_t *pos0, int32_t n_tok);
/* The same of the part's rows in binary16, two elements in place of one. */
fd_gather fd_ranks_gather_half(struct fd_pass *pass, int32_t id, int32_t n_tok);
/* Of a part that no node reads, for an observer: the whole is then in *whole on every rank, until the gather after the
 * next one. Fast numerics alone. */
fd_gather fd_ranks_gather_shown(struct fd_pass *pass, int32_t id, const float *x, int32_t n_tok, float **whole);
/* Launches what one of these made for GATHER `id`. */
fd_code fd_ranks_launch_gather(struct fd_pass *pass, int32_t id, const fd_gather *in, fd_error *err);
/* How `item` sends what it leaves, for the gather that comes next; not at all where it leaves several rows. */
fd_send fd_ranks_send(struct fd_pass *pass, const struct fd_item *item);

/* ---- ranks_apart.c ---- */
/* How processes gather: by NCCL where all of them can; what it will take beside (fd_nccl_staging_bytes) later. What is chosen,
 * in words. */
fd_code fd_ranks_choose_gather(fd_ranks *ranks, char *words, size_t room, fd_error *err);
fd_code fd_ranks_gather_apart(struct fd_pass *pass, int32_t id, const fd_gather *in, fd_error *err);
/* Waits for the event of an engine's stream, or with NULL for all of the stream: bounded, where other processes' GPUs are waited
 * for. Without ranks as CUDA waits. */
fd_code fd_engine_wait(const struct fd_engine *engine, cudaEvent_t event, const char *what, fd_error *err);

#endif
