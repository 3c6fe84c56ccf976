/* Engines whose products read factors of 8 bits: FP8 with one scale a row, a block of 128 or a tensor, int8 activations
 * beside int8 weights. There are more such rules than classes, so the trace is asked for what they have in common: every product of the
 * layers is off by much more than its 16 bits are, or 16 bits of its factors would be, in every row and every part of it alike, and in no direction. */
#ifndef FD_COMPARE_CLASS_OWN_PRODUCTS_H
#define FD_COMPARE_CLASS_OWN_PRODUCTS_H

#include "compare/diagnose/diagnose.h"

typedef struct fd_own_products {
    bool are;     /* most products are such ones */
    double error; /* the largest, relative to the result */
    int32_t
        other; /* then: the first node that departs from its own recorded inputs and is none of them; -1: none does */
} fd_own_products;

fd_code fd_find_own_products(const fd_diagnose_options *ask, const fd_attribution *of, fd_own_products *out,
                             fd_error *err);

#endif
