/* What the 16 codes of a nibble stand for, times a block's scale: facts of ggml's formats (ggml-common.h), one list for
 * all who read them. */
#ifndef FD_BASE_LEVELS_H
#define FD_BASE_LEVELS_H

/* IQ4_NL and IQ4_XS. */
#define FD_IQ4_LEVELS -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113
/* MXFP4 and NVFP4: twice E2M1's values; code 8, its −0, is 0. */
#define FD_FP4_LEVELS 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12

#endif
