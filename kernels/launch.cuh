/* The launch that every launcher ends with, and its check. */
#ifndef FD_KERNELS_LAUNCH_CUH
#define FD_KERNELS_LAUNCH_CUH

#include <cuda_runtime.h>

#include "kernels/launch_context.h"

/* Checks the request for dynamic shared memory, and asks CUDA for it where it may exceed 48 KiB together with the
 * kernel's static shared memory, which is below 24 KiB in all kernels. */
template <typename... Parameters>
static fd_code fd_allow_shared(const fd_launch_context *ctx, const char *name, void (*kernel)(Parameters...),
                               size_t shared, fd_error *err) {
    if (shared > ctx->max_shared)
        return fd_fail(err, FD_ERR_UNSUPPORTED,
                       "kernel %s: needs %zu bytes of shared memory, the device gives a block %zu", name, shared,
                       ctx->max_shared);
    if (shared <= 24 * 1024) return FD_OK;
    return fd_cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared), name,
                         err);
}

/* Blocks in clusters of `cluster` along x, which divides the grid's x; more than one only where ctx->has_clusters. */
template <typename... Parameters, typename... Arguments>
static fd_code fd_launch_clusters(const fd_launch_context *ctx, const char *name, void (*kernel)(Parameters...),
                                  dim3 grid, unsigned cluster, int block, size_t shared, fd_error *err,
                                  const Arguments &...arguments) {
    FD_TRY(fd_allow_shared(ctx, name, kernel, shared, err));
    cudaLaunchAttribute attributes[2] = {};
    unsigned n_attribute = 0;
    if (cluster > 1) {
        attributes[n_attribute].id = cudaLaunchAttributeClusterDimension;
        attributes[n_attribute].val.clusterDim.x = cluster;
        attributes[n_attribute].val.clusterDim.y = 1;
        attributes[n_attribute++].val.clusterDim.z = 1;
    }
    if (ctx->overlap) {
        attributes[n_attribute].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[n_attribute++].val.programmaticStreamSerializationAllowed = 1;
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3((unsigned)block);
    config.dynamicSmemBytes = shared;
    config.stream = ctx->stream;
    config.attrs = attributes;
    config.numAttrs = n_attribute;
    FD_TRY(fd_cuda_check(cudaLaunchKernelEx(&config, kernel, arguments...), name, err));
    return fd_cuda_check(cudaGetLastError(), name, err);
}

template <typename... Parameters, typename... Arguments>
static fd_code fd_launch(const fd_launch_context *ctx, const char *name, void (*kernel)(Parameters...), dim3 grid,
                         int block, size_t shared, fd_error *err, const Arguments &...arguments) {
    return fd_launch_clusters(ctx, name, kernel, grid, 1, block, shared, err, arguments...);
}

/* Dynamic shared memory of which no two blocks fit a multiprocessor. */
static inline size_t fd_shared_alone(const fd_launch_context *ctx) {
    return ctx->max_shared / 2 + 1024;
}
/* Bytes to ask for when `shared` are needed: enough to be alone when each multiprocessor shall have one block.
 * Otherwise, where the kernel before leaves room unevenly, several blocks would share one multiprocessor while another
 * has none. */
static inline size_t fd_shared_of_one_each(const fd_launch_context *ctx, bool one_each, size_t shared) {
    const size_t alone = fd_shared_alone(ctx);
    return one_each && shared < alone ? alone : shared;
}

static inline unsigned fd_blocks(int64_t items, int64_t per_block) {
    return (unsigned)((items + per_block - 1) / per_block);
}

#endif
