/* A bundled model in other clothes, for faults that it gives no hold as it is: weights of another type, a scaled or
 * partial rotation. Its text is nonsense; its graph is as good as any. */
#ifndef FD_TESTS_FAULTS_DRESSED_H
#define FD_TESTS_FAULTS_DRESSED_H

#include "model/graph.h"

typedef struct fd_dress {
    const char *name;
    uint32_t dtype; /* of every matrix: Q4_0, Q4_1, Q5_0 (requantised), others (random blocks) */
    double linear;  /* factor of linear RoPE scaling; 1: none */
    int32_t n_rot;  /* 0: as it is */
    double yarn;    /* factor of YaRN; 0: none */
    bool longrope;  /* with short and long frequency factors */
} fd_dress;

/* Those from FD_N_DRESS on are for decoders' faults alone. */
enum { FD_N_DRESS = 5, FD_N_DRESS_ALL = 11 };
extern const fd_dress fd_dresses[FD_N_DRESS_ALL];

typedef struct fd_dressed {
    fd_graph *graph; /* owned, and so are the blocks */
    void **blocks;
    int32_t n_block;
} fd_dressed;

/* `graph` must outlive it. Aborts when memory runs out. */
fd_dressed fd_dress_up(const fd_graph *graph, const fd_dress *dress);
void fd_undress(fd_dressed *dressed);

#endif
