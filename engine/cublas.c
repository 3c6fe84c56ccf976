#include "engine/cublas.h"

#include <dlfcn.h>
#include <library_types.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

/* The part of cuBLAS's interface that is used here, so that building needs no header of it: names, order of parameters
 * and values of the enumerations as in NVIDIA's cublas_api.h of CUDA 12 and 13. */
enum { OP_N = 0, OP_T = 1, COMPUTE_32F = 68, GEMM_DEFAULT = -1 };
typedef int (*create_fn)(void **handle);
typedef int (*destroy_fn)(void *handle);
typedef int (*set_stream_fn)(void *handle, cudaStream_t stream);
typedef int (*set_workspace_fn)(void *handle, void *workspace, size_t size);
typedef const char *(*status_fn)(int status);
typedef int (*gemm_fn)(void *handle, int op_a, int op_b, int m, int n, int k, const void *alpha, const void *a,
                       cudaDataType a_type, int lda, const void *b, cudaDataType b_type, int ldb, const void *beta,
                       void *c, cudaDataType c_type, int ldc, int compute, int algorithm);

struct fd_cublas {
    void *library, *handle;
    destroy_fn destroy;
    status_fn status;
    gemm_fn gemm;
    fd_block workspace;
};

static fd_code check(const fd_cublas *c, int status, const char *what, fd_error *err) {
    return status == 0 ? FD_OK : fd_fail(err, FD_ERR_DEVICE, "cuBLAS, %s: %s", what, c->status(status));
}

static fd_code load(fd_cublas *c, fd_error *err) {
    static const char *const folders[] = {"", "/usr/local/cuda/lib64/"};
    char name[96], why[256] = "";
    for (size_t i = 0; !c->library && i < sizeof folders / sizeof *folders; i++) {
        snprintf(name, sizeof name, "%slibcublas.so.%d", folders[i], CUDART_VERSION / 1000);
        c->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        if (!c->library && i == 0) snprintf(why, sizeof why, "%s", dlerror());
    }
    if (!c->library)
        return fd_fail(err, FD_ERR_DEVICE,
                       "fast numerics need cuBLAS, exact ones do not: %s (install CUDA's libcublas, or name its folder "
                       "in LD_LIBRARY_PATH)",
                       why);
    return FD_OK;
}

fd_code fd_cublas_open(cudaStream_t stream, fd_cublas **out, fd_error *err) {
    fd_cublas *c = calloc(1, sizeof *c);
    *out = c;
    if (!c) return fd_fail(err, FD_ERR_MEMORY, "cuBLAS: out of memory");
    fd_code code = load(c, err);
    create_fn create = NULL;
    set_stream_fn set_stream = NULL;
    set_workspace_fn set_workspace = NULL;
    if (code == FD_OK) {
        /* POSIX gives functions as object pointers. */
        *(void **)&create = dlsym(c->library, "cublasCreate_v2");
        *(void **)&set_stream = dlsym(c->library, "cublasSetStream_v2");
        *(void **)&set_workspace = dlsym(c->library, "cublasSetWorkspace_v2");
        *(void **)&c->destroy = dlsym(c->library, "cublasDestroy_v2");
        *(void **)&c->status = dlsym(c->library, "cublasGetStatusString");
        *(void **)&c->gemm = dlsym(c->library, "cublasGemmEx");
        if (!create || !set_stream || !set_workspace || !c->destroy || !c->status || !c->gemm)
            code = fd_fail(err, FD_ERR_DEVICE, "cuBLAS: libcublas.so.%d lacks a function that fast numerics call",
                           CUDART_VERSION / 1000);
    }
    if (code == FD_OK) code = check(c, create(&c->handle), "starting", err);
    if (code == FD_OK) code = check(c, set_stream(c->handle, stream), "stream", err);
    if (code == FD_OK) code = fd_device_alloc(&c->workspace, FD_CUBLAS_WORKSPACE, "cuBLAS's workspace", err);
    if (code == FD_OK)
        code = check(c, set_workspace(c->handle, c->workspace.data, c->workspace.size), "workspace", err);
    if (code == FD_OK) return FD_OK;
    fd_cublas_close(c);
    *out = NULL;
    return code;
}

void fd_cublas_close(fd_cublas *c) {
    if (!c) return;
    if (c->handle) (void)c->destroy(c->handle);
    fd_device_free(&c->workspace);
    /* The library stays: the device's code in it may be in use elsewhere in the process. */
    free(c);
}

/* Row-major out = x Wᵀ is, column by column, outᵀ = W xᵀ of a W stored turned. */
fd_code fd_cublas_multiply(fd_cublas *c, const fd_cublas_product *in, fd_error *err) {
    const float one = 1.0f, zero = 0.0f;
    if (in->n_row > INT_MAX || in->stride > INT_MAX)
        return fd_fail(err, FD_ERR_UNSUPPORTED, "cuBLAS: a matrix of %lld rows of %lld", (long long)in->n_row,
                       (long long)in->n_col);
    int status = c->gemm(c->handle, OP_T, OP_N, (int)in->n_row, in->n_tok, (int)in->n_col, &one, in->weight, CUDA_R_16F,
                         (int)in->stride, in->x, CUDA_R_16F, (int)in->n_col, in->add ? &one : &zero, in->out,
                         CUDA_R_32F, (int)in->n_row, COMPUTE_32F, GEMM_DEFAULT);
    return check(c, status, "matrix product", err);
}
