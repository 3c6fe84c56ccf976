/* Where and how kernels are launched: a stream and the few facts of the device that grids are sized by. None of it
 * changes a bit of any result: every sum's order is fixed by the contract, not by the launch. */
#ifndef FD_KERNELS_QUEUE_H
#define FD_KERNELS_QUEUE_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fd_queue {
    cudaStream_t stream;
    int32_t n_sm;      /* multiprocessors */
    size_t max_shared; /* bytes of shared memory one block may ask for */
    bool has_clusters; /* blocks can be launched in clusters that share their memory: sm_90 */
    bool overlap;      /* a kernel may start while its predecessor drains (programmatic dependent launch): it fetches
                          weights and waits for the predecessor before it reads anything else */
} fd_queue;

/* `what` and CUDA's own words for the failure. FD_OK for cudaSuccess. */
fd_code fd_cuda_check(cudaError_t status, const char *what, fd_error *err);

#ifdef __cplusplus
}
#endif
#endif
