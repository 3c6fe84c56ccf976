/* Rows of which each of several GPUs has a part, put together on all of them: every GPU writes its part into the
 * others' memory (peer access) and waits for theirs. The bits are those that one GPU would have left there. */
#ifndef FD_KERNELS_GATHER_GATHER_H
#define FD_KERNELS_GATHER_GATHER_H

#include "kernels/launch_context.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FD_MAX_RANKS = 16 };

/* At the start of a block of fd_mailbox_bytes in the memory of each rank, all of it zero at first. Behind it are two
 * pages of elements, each with the number of the gather that it belongs to: ranks write into each other's, and
 * gathers take turns with the pages. */
typedef struct fd_mailbox {
    uint32_t turn;    /* gathers of the passes so far */
    uint32_t arrived; /* blocks of a gather into `to` that have written their part */
    uint32_t
        through[FD_MAX_RANKS]; /* the last gather into `to` that each other rank has written; the others write it */
} fd_mailbox;

/* For gathers of up to n_element elements through the pages; below 2^31. */
size_t fd_mailbox_bytes(int64_t n_element);

/* One gather of a pass, as rank `rank` of n_rank takes part in it: all launch the same gathers in the same order. What a
 * kernel needs to send its elements to all ranks' pages itself, as it finishes them; the gather is the next launch. */
typedef struct fd_send {
    int32_t rank, n_rank;           /* n_rank 0: nothing is sent */
    uint32_t index;                 /* of the pass's gathers, from 1 */
    int64_t first;                  /* where in a row of the whole its own elements begin */
    int64_t n_page;                 /* elements of a page */
    fd_mailbox *mail[FD_MAX_RANKS]; /* of each rank */
} fd_send;

/* All pointers are device memory but `stop`. Of rows of `stride` elements this rank has `width`: x [n_row, width], of
 * which `pos0` rows are skipped (NULL: none). x NULL: the kernel before has sent its one row.
 *
 * Up to n_page elements go through the pages, which is the shortest way: each element is known to have arrived by
 * itself. More are written straight into the others' `to`, as soon as those have passed the gather before: nothing
 * there may use this memory between the two. No row: the ranks wait for each other, that is all. */
typedef struct fd_gather {
    fd_send send;
    const float *x;
    const int32_t *pos0;
    int64_t n_row, width, stride;
    const float *plus; /* [n_row, stride]: added to the whole of x where it goes through the pages; NULL: nothing */
    float *to[FD_MAX_RANKS]; /* of each rank, [n_row, stride]; with x NULL nothing may use it since two launches ago */
    const uint32_t *stop;    /* pinned host memory: not 0 ends the waiting, as a rank has failed */
    bool alone; /* no two ranks on one device: the next kernel may take its place there while this one waits */
} fd_gather;

fd_code fd_launch_gather(const fd_launch_context *ctx, const fd_gather *in, fd_error *err);

/* After the n gathers of a pass, on each rank. The first kernel of a pass waits for it in the ordinary way
 * (ctx->overlap is false). */
fd_code fd_launch_gathered(const fd_launch_context *ctx, fd_mailbox *own, uint32_t n, fd_error *err);

#ifdef __cplusplus
}
#endif
#endif
