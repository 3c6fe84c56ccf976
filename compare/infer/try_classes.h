/* The classes that may be the engine's, each judged on a sample of the trace: the finest first, and no coarser ones once one
 * explains everything. Several at once where there are cores for them. */
#ifndef FD_COMPARE_INFER_TRY_CLASSES_H
#define FD_COMPARE_INFER_TRY_CLASSES_H

#include "compare/infer/evidence.h"

enum { FD_MOST_CLASSES = 48 };

typedef struct fd_class_cases {
    fd_class_case at[FD_MOST_CLASSES]; /* the finest first; owned: fd_class_case_free */
    bool refuted[FD_MOST_CLASSES];
    bool by_tighter_alone
        [FD_MOST_CLASSES]; /* refuted only because a tighter class gives the sample, or all but one kind of tensor */
    bool other_kernel[FD_MOST_CLASSES]; /* a whole kind of tensors is as a class says that leaves fewer beyond */
    int32_t n;
    const fd_numerics_class *untried[FD_MOST_CLASSES]; /* coarser, and not needed; nothing refutes them */
    int32_t n_untried;
    fd_storage storage; /* of the widest type that was refuted; digits 0: none */
    double stored;      /* unit roundoff of what most tensors are stored in, or of what all values have */
} fd_class_cases;

/* options->numerics is ignored; options->progress counts classes. `refuted` by the class's own case alone (fd_case_refuted);
 * `by_tighter_alone` and `other_kernel` are left to the caller. *out owns its cases also after a failure. */
fd_code fd_try_classes(const fd_attribution_options *options, fd_evidence *evidence, fd_class_cases *out,
                       fd_error *err);

/* What was left out of a refuted class's case (fd_class_case.part). */
fd_code fd_class_case_complete(const fd_attribution_options *options, fd_class_case *c, fd_error *err);

/* Scores or weights in the candidate's trace have left the kernel: attention is not fused. */
bool fd_shows_attention(const fd_attribution_options *options);

/* Attention's sums show that they were kept in binary16 (f16_sums.h): classes that keep them in binary32 are refuted, whatever else
 * departs. */
void fd_refute_sums_in_binary32(fd_class_cases *cases);

/* Sums of V in 16 bits, which have room for a bug, in a class that repeats all else; and no product shows it. */
bool fd_case_is_for_sums_alone(const fd_class_case *c);
/* Beside a cache in binary16: the case where such sums leave nothing of what the chosen one leaves, else that one. */
int32_t fd_case_with_sums_in_16_bits(const fd_class_cases *c, int32_t chosen);

/* Results of 16 bits have room for steps that the class says the engine takes, and for others: nothing shows them. */
bool fd_case_hides_its_steps(const fd_class_cases *cases, int32_t i);

#endif
