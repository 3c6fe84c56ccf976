/* A CUDA runtime in host memory, linked in place of the real one (--wrap, tests/gpu/CMakeLists.txt): allocations are
 * counted, copies copy, kernels do nothing. Several threads may use it. It lets a machine without a GPU see what an
 * engine asks of one. */
#ifndef FD_TESTS_GPU_FAKE_CUDA_RUNTIME_H
#define FD_TESTS_GPU_FAKE_CUDA_RUNTIME_H

#include <stdbool.h>
#include <stdint.h>

enum { FAKE_CUDA_SM = 132 }; /* multiprocessors of a device */

typedef struct fake_cuda {
    uint64_t free_bytes; /* what cudaMemGetInfo says, and what can be taken */
    uint64_t taken;      /* of it, in whole units of 256 bytes */
    uint64_t peak;
    int64_t n_alloc, n_pinned; /* now */
    int64_t n_launch;
    int n_device;       /* 0 counts as 1; all take from the same memory */
    bool no_peers;      /* they do not reach each other's */
    bool stuck;         /* what is asked never completes */
    int64_t fail_alloc; /* the allocation that is refused, counted down; 0: none */
} fake_cuda;

extern fake_cuda fake;

#endif
