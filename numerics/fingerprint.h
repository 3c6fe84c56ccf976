/* A tensor's fingerprint at one position: 128 bits of its raw bits, position-sensitive, NaN canonicalised.
 *
 * Every pair of neighbouring elements gives two pseudo-random 64-bit terms that depend on the pair's index; the terms
 * are added modulo 2^64. Integer addition has no order, so a GPU may add them in any order and a permuted tensor still
 * differs, because the index is inside the term. Not meant against an adversary: against bugs. */
#ifndef FD_NUMERICS_FINGERPRINT_H
#define FD_NUMERICS_FINGERPRINT_H

#include "numerics/contract.h"

typedef struct fd_fingerprint {
    uint64_t lo, hi;
} fd_fingerprint;

/* The 64-bit finaliser of MurmurHash3 (Appleby, public domain): every input bit moves every output bit. */
FD_HD uint64_t fd_mix64(uint64_t x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdu;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53u;
    x ^= x >> 33;
    return x;
}

/* Adds the term of the 64-bit word `bits` at word index i. Words: elements (2i, 2i+1) of a binary32 tensor, low half
 * first, 0 after the last element of an odd count; element i of a binary64 tensor. */
FD_HD void fd_fingerprint_add(fd_fingerprint *f, uint64_t i, uint64_t bits) {
    uint64_t term = fd_mix64(bits + (i + 1) * 0x9e3779b97f4a7c15u);
    f->lo += term;
    f->hi += fd_mix64(term + bits);
}

/* Ends the hash of n elements. */
FD_HD fd_fingerprint fd_fingerprint_end(fd_fingerprint f, uint64_t n) {
    f.lo = fd_mix64(f.lo ^ n);
    f.hi = fd_mix64(f.hi + n);
    return f;
}

FD_HD fd_fingerprint fd_fingerprint_f32(const float *x, int64_t n) {
    fd_fingerprint f = {0, 0};
    for (int64_t i = 0; i < n; i += 2) {
        uint64_t low = fd_canonical32(x[i]);
        uint64_t high = i + 1 < n ? fd_canonical32(x[i + 1]) : 0;
        fd_fingerprint_add(&f, (uint64_t)i / 2, low | high << 32);
    }
    return fd_fingerprint_end(f, (uint64_t)n);
}

FD_HD fd_fingerprint fd_fingerprint_f64(const double *x, int64_t n) {
    fd_fingerprint f = {0, 0};
    for (int64_t i = 0; i < n; i++) fd_fingerprint_add(&f, (uint64_t)i, fd_canonical64(x[i]));
    return fd_fingerprint_end(f, (uint64_t)n);
}

#endif
