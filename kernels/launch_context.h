/* Where and how kernels are launched: a stream, and the facts of the device that size a grid. None of them changes a
 * bit of any result: the contract fixes the order of every sum, not the launch. */
#ifndef FD_KERNELS_LAUNCH_CONTEXT_H
#define FD_KERNELS_LAUNCH_CONTEXT_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fd_launch_context {
    cudaStream_t stream;
    int32_t n_sm;      /* multiprocessors */
    size_t max_shared; /* bytes of shared memory one block may ask for */
    bool has_clusters; /* blocks can be launched in clusters that share their memory: sm_90 */
    bool overlap;      /* programmatic dependent launch: a kernel may start while its predecessor drains. It prefetches
                          weights and waits for the predecessor before it reads anything else */
} fd_launch_context;

/* `what` and CUDA's own words for the failure. FD_OK for cudaSuccess. */
fd_code fd_cuda_check(cudaError_t status, const char *what, fd_error *err);

#ifdef __cplusplus
}
#endif
#endif
