/* Which way a sample of rounding goes: +1 or −1 by node and element, the same in every run of the program. */
#ifndef FD_COMPARE_REPLAY_SAMPLE_SIGN_H
#define FD_COMPARE_REPLAY_SAMPLE_SIGN_H

#include <stdint.h>

/* Four draws know a spread to a third. */
#define FD_SAMPLED_SPREAD (4.0 / 3)

static inline double fd_sample_sign(int32_t node, int64_t i, int sample) {
    uint64_t h = ((uint64_t)(uint32_t)node << 40 ^ (uint64_t)i << 2 ^ (uint64_t)sample) + 1;
    h = (h ^ h >> 33) * 0xff51afd7ed558ccdu;
    h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53u;
    return (h ^ h >> 33) & 1 ? 1 : -1;
}

#endif
