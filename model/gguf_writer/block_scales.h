/* Blocks of random bytes are valid weights of every quantised type, but for their scales, which may be huge or NaN: this
 * sets them, for models and tests that want such weights. */
#ifndef FD_MODEL_BLOCK_SCALES_H
#define FD_MODEL_BLOCK_SCALES_H

#include <stdint.h>

/* One block of `dtype`, quantised: its scale becomes d, in the type's own precision, and the scale of its minimum dmin,
 * where it has one. MXFP4 and NVFP4 take of |d| the power of two; NVFP4's four scales keep the bits below it. */
void block_set_scales(uint32_t dtype, void *block, float d, float dmin);

/* The same for n_block blocks of random bytes, so that their values have about this standard deviation, and the mean
 * zero where the type has a minimum. */
void blocks_set_deviation(uint32_t dtype, void *blocks, int64_t n_block, float deviation);

#endif
