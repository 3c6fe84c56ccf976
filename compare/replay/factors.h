/* Classes in which a product rounds its factors or does not, by its shape (numerics_class.h, `either`): cuBLAS with TF32 allowed, or kernels
 * that give binary32 to tensor cores, which cut it off (`in_truncates`), beside others that do not. What was recorded of its input and its
 * result says which. Where one of them was not, the bounds have room for both. */
#ifndef FD_COMPARE_REPLAY_FACTORS_H
#define FD_COMPARE_REPLAY_FACTORS_H

#include "compare/replay/internal.h"

/* After the op ran on its factors as they are, into replay->y: each row is that, or of rounded factors, or of factors that are cut off where
 * the class does so, whichever gives more of its recorded elements better. *class_ NULL: it cannot be asked; else the class of its bounds,
 * which is the replay's until the next node. */
fd_code fd_replay_choose_factors(fd_replay *replay, const fd_node *node, fd_op_args args,
                                 const fd_numerics_class **class_, fd_error *err);

/* In classes that make factors as ggml does: recorded rows that such factors do not give may be another kernel's, as its CUDA backend
 * chooses them by the product's shape (cuda_kernels.h), or TF32, rounded or cut off, beside weights of binary32; where that is nearer it is
 * taken. */
fd_code fd_replay_choose_kernel(fd_replay *replay, const fd_node *node, fd_op_args args, fd_error *err);

/* The op as an engine of another class computes it. */
fd_code fd_replay_run_as(fd_replay *replay, const fd_numerics_class *own, fd_op_args args, fd_error *err);

/* The op with both factors of products in TF32, rounded, or cut off where `cuts`. */
fd_code fd_replay_run_tf32(fd_replay *replay, fd_op_args args, bool cuts, fd_error *err);

/* Are more of a row's elements nearer to the candidate's so than as in `best`? Most, because those that a bug damaged are off by much in
 * all. Then: is it as near as sums in binary32 leave it? */
bool fd_replay_is_nearer(const double *candidate, const double *y, const double *best, int64_t n);
bool fd_replay_is_near(const double *candidate, const double *y, int64_t n);

#endif
