/* The contract's softplus, of C and CUDA alike. */
#ifndef FD_NUMERICS_SOFTPLUS_H
#define FD_NUMERICS_SOFTPLUS_H

#include "numerics/contract.h"

/* ln(1 + e^x), the logarithm in binary64. Beyond 20 the 1 is less than half an ulp; NaN stays NaN. */
FD_HD float fd_softplus32(float x) {
    return !(x <= 20.0f) ? x : (float)fd_log64(1.0 + (double)fd_exp32(x));
}

#endif
