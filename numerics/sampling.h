/* The arithmetic of sampling (exec/sampler.h says what it is for): the same for the C compiler and nvcc, and free of
 * order. Probabilities are integers in steps of 2^-44 of the best candidate's, so that a sum of them is the same
 * whichever way it is added up; a candidate less than that probable is never drawn. */
#ifndef FD_NUMERICS_SAMPLING_H
#define FD_NUMERICS_SAMPLING_H

#include "numerics/contract.h"

/* Candidates whose weights, of 2^44 at most, can be summed in 63 bits. */
enum { FD_SAMPLING_MAX_VOCAB = 1 << 19 };

/* e^x for x = logit - best logit (≤ 0), in steps of 2^-44, rounded down. The scaling is exact. */
FD_HD uint64_t fd_sampling_weight(float x) { return (uint64_t)(fd_exp32(x) * 0x1p44f); }

/* What the sum of weights must reach for a share of it to be reached. */
FD_HD double fd_sampling_share(float share, uint64_t sum) { return (double)share * (double)sum; }

FD_HD float fd_sampling_penalise(float logit, float penalty) { return logit > 0 ? logit / penalty : logit * penalty; }

/* Rising with the logit, -0 as +0; no two candidates have the same: of equal logits the lower id is the larger. No
 * NaN. */
FD_HD uint64_t fd_sampling_order(float logit, int32_t id) {
    uint32_t bits = fd_bits32(logit + 0.0f);
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)bits << 32 | (uint32_t)~(uint32_t)id;
}

/* Draw number n from 0: output n + 1 of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
 * generators", 2014), whose state is the seed plus a multiple of a constant: draws can be made in any order. */
FD_HD uint64_t fd_sampling_random(uint64_t seed, uint64_t n) {
    uint64_t z = seed + (n + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* The random bits as a number below `sum`: the upper half of the 128-bit product. */
FD_HD uint64_t fd_sampling_below(uint64_t random, uint64_t sum) {
    uint64_t low = (random & 0xffffffffu) * (sum & 0xffffffffu);
    uint64_t mid = (random >> 32) * (sum & 0xffffffffu) + (low >> 32);
    uint64_t other = (random & 0xffffffffu) * (sum >> 32) + (mid & 0xffffffffu);
    return (random >> 32) * (sum >> 32) + (mid >> 32) + (other >> 32);
}

#endif
