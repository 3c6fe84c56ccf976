/* What speaks for another class than the one that was inferred, for a verdict to say. */
#ifndef FD_COMPARE_INFER_CLASS_EVIDENCE_H
#define FD_COMPARE_INFER_CLASS_EVIDENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "compare/bounds/numerics_class.h"

typedef enum fd_class_evidence_kind {
    FD_EVIDENCE_NONE,     /* the strictest class explains everything, or the class was not inferred */
    FD_EVIDENCE_STRICTER, /* `other`, the strictest, leaves n of n_of tensors beyond its bounds, first `node` */
    FD_EVIDENCE_FEW,      /* `other` has room for the errors, but only n of the n_of tensors that it rounds show any */
    FD_EVIDENCE_STORAGE,  /* n of n_of tensors have values that `digits` bits of mantissa cannot hold */
    FD_EVIDENCE_BUG, /* `other` has room for the errors, but in a stricter class one bug gives the values of `node` */
} fd_class_evidence_kind;

enum { FD_MOST_RIVALS = 8 };

typedef struct fd_class_evidence {
    fd_class_evidence_kind kind;
    char other[16], node[64];
    int32_t n, n_of, digits;
    const fd_numerics_class
        *rivals[FD_MOST_RIVALS]; /* explain all that the chosen class does not, and nothing refutes them */
    int32_t n_rival;
    bool outside;    /* the chosen class does not give all of the sample */
    bool yielded;    /* to one of them: `other` was inferred, and has a bug at `node` if it is true */
    bool one_tensor; /* it is the only one that was seen: a class from it proves nothing */
    bool few_rows;   /* rows to their last bits show the class, and most have as much left as its steps leave */
    bool undecided;  /* the class has room for what was seen, and that is all: a bug could look the same */
} fd_class_evidence;

#endif
