/* An executor of several engines, each on its GPU with its split of the graph, and each driven by a thread of its
 * own: the first by the caller's. All make the same calls; what the caller sees is the first one's.
 *
 * Where the ranks are processes (ranks.peers), this one has a single engine, and each process's caller makes the same
 * calls, with an observer or without. Logits and tokens are seen by all of them, nodes by the first process alone. */
#ifndef FD_ENGINE_MANY_H
#define FD_ENGINE_MANY_H

#include "engine/internal.h"

_Static_assert((int)FD_MAX_RANKS == (int)FD_ENGINE_MAX_DEVICES, "a rank a device");

typedef struct fd_many fd_many;
/* What rank `rank` does in a call of all. */
typedef fd_code (*fd_rank_fn)(fd_many *m, int32_t rank, void *call, fd_error *err);

typedef struct fd_worker {
    fd_many *m;
    int32_t rank;
    pthread_t thread;
    bool started;
} fd_worker;

struct fd_many {
    fd_exec exec; /* first */
    fd_ranks ranks;
    int32_t n; /* engines of this process */
    int32_t devices[FD_MAX_RANKS];
    fd_engine *engines[FD_MAX_RANKS];
    fd_split splits[FD_MAX_RANKS];
    fd_worker workers[FD_MAX_RANKS]; /* [0] has no thread */
    unsigned *wants; /* [n_node] of the caller's observer, of processes the first one's; room for each process; owned */
    /* The call under way; under ranks.lock. */
    fd_rank_fn fn;
    void *call;
    int32_t n_call, n_busy;
    bool ends;
    bool broken; /* a call has failed in the middle: the ranks' caches and graphs may differ */
};

/* All ranks do `fn`, each on its thread and device; the failure of the first that fails. */
fd_code fd_many_call(fd_many *many, fd_rank_fn fn, void *call, fd_error *err);
/* For a rank in a call: what the caller has set since the last one. */
fd_code fd_many_follow(fd_many *many, int32_t rank, fd_error *err);

/* ---- many_generate.c ---- */
fd_code fd_many_generate(fd_exec *exec, const fd_generation *run, int32_t *n_done, fd_error *err);

#endif
