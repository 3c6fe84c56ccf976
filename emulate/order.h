/* Orders of summation that production kernels have: some vector lanes, the sum cut into blocks or not. */
#ifndef FD_EMULATE_ORDER_H
#define FD_EMULATE_ORDER_H

#include <stdbool.h>
#include <stdint.h>

typedef struct fd_emulate_order {
    int32_t lanes;    /* 1, 4, 8, 16 or 32 partial sums; element k goes to lane k mod lanes. 1: sequential */
    int32_t block;    /* elements that are summed apart, the blocks' sums being added in order; 0: all at once */
    int32_t f16_step; /* products added in binary32 before one addition in f16: 4, 8 or 16, the depth of an MMA */
} fd_emulate_order;

/* `kernel` tells apart the sums that one engine computes by different kernels. */
fd_emulate_order fd_emulate_order_pick(uint64_t seed, uint32_t kernel);

/* Products are rounded before they are added (no fused multiply-add). Lanes are joined halves upon halves, as vector
 * units do, not neighbour to neighbour as the contract does. */
float fd_emulate_dot(const fd_emulate_order *order, const float *w, const float *x, int64_t n);
float fd_emulate_sum(const fd_emulate_order *order, const float *x, int64_t n);

/* The running sum is an f16. Overflows to Inf past 65504. */
float fd_emulate_dot_f16(const fd_emulate_order *order, const float *w, const float *x, int64_t n);

/* The same of w with FD_EMULATE_DOTS vectors of n elements: a sum waits for its own roundings, not for the others'. */
enum { FD_EMULATE_DOTS = 8 };
void fd_emulate_dots_f16(const fd_emulate_order *order, const float *w, const float *const x[FD_EMULATE_DOTS],
                         int64_t n, float out[FD_EMULATE_DOTS]);

#endif
