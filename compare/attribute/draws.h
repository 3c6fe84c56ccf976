/* How far apart engines of one class are that differ in binary32's last bits alone. Where products read int8 blocks, last bits push values to
 * the next step, and behind an unrecorded cache all later rows are moved with them: of one model a layer's output by a hundredth, of another,
 * of 256 elements, by 3.5. No constant says how far, but other engines can be drawn: the replay, with last bits of every unrecorded tensor
 * moved at random. What is left of the candidate's rows is set against what is left of theirs. */
#ifndef FD_COMPARE_ATTRIBUTE_DRAWS_H
#define FD_COMPARE_ATTRIBUTE_DRAWS_H

#include "compare/attribute/attribution.h"

typedef struct fd_draws {
    int32_t n_pos;
    float *
        excess; /* [n_node, n_pos] what is left of a row, over what is left of the farthest draw; -1: not drawn; owned */
} fd_draws;

/* In the class of `of`, what these options came to, for tensors behind unrecorded products of blocks. Nothing is drawn of those that the class,
 * unless it is `known`, gives no two rows of to their last bits. excess NULL: the class makes no blocks, or of no tensor is more left than
 * binary32 leaves. FD_ERR_MEMORY, and what a trace that cannot be read gives; freed with fd_draws_free also then. */
fd_code fd_draws_measure(const fd_attribution_options *options, const fd_attribution *of, bool known, fd_draws *out,
                         fd_error *err);
void fd_draws_free(fd_draws *draws);

/* A row of the candidate: not drawn, among the draws, further off than any, and by more than another engine of the class is. */
typedef enum fd_drawn { FD_DRAWN_NOT, FD_DRAWN_AMONG, FD_DRAWN_APART, FD_DRAWN_BEYOND, FD_DRAWN_COUNT } fd_drawn;
fd_drawn fd_draws_of(const fd_draws *draws, int32_t node, int32_t pos); /* draws NULL: not drawn */

/* So many of a tensor's rows are further off than any draw that no sound engine is so. */
bool fd_draws_mostly_apart(int32_t n_apart, int32_t n_row);

/* Two rows of one tensor are beyond, or it is mostly apart. */
bool fd_draws_say_more(const fd_draws *draws, const fd_graph *graph);

#endif
