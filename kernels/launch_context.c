#include "kernels/launch_context.h"

fd_code fd_cuda_check(cudaError_t status, const char *what, fd_error *err) {
    if (status == cudaSuccess) return FD_OK;
    fd_code code = status == cudaErrorMemoryAllocation ? FD_ERR_MEMORY : FD_ERR_DEVICE;
    return fd_fail(err, code, "%s: %s (%s)", what, cudaGetErrorString(status), cudaGetErrorName(status));
}
