/* Matrix products: which of the kernels takes them. The choice changes no bit. */
#include "kernels/matmul/matmul.h"

fd_code fd_launch_matmul_tile(const fd_launch_context *ctx, const fd_matmul *in, fd_error *err) {
    enum { SMALL = 16 };
    int device, major;
    FD_TRY(fd_cuda_check(cudaGetDevice(&device), "matmul_tile", err));
    FD_TRY(
        fd_cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "matmul_tile", err));
    return in->n_tok <= SMALL || major < 9 ? fd_launch_matmul_tile_small(ctx, in, err)
                                           : fd_launch_matmul_tile_large(ctx, in, err);
}

fd_code fd_launch_matmul(const fd_launch_context *ctx, const fd_matmul *in, fd_error *err) {
    if (in->n_tok > FD_MATMUL_VECTORS || !fd_matvec_fits(ctx, in->part[0].weight.n_col, 1))
        return fd_launch_matmul_tile(ctx, in, err);
    fd_matvec own = {};
    own.x = in->x;
    own.n_tok = in->n_tok;
    own.n_part = in->n_part;
    for (int i = 0; i < in->n_part && i < FD_MATVEC_PARTS; i++) {
        own.part[i].weight = in->part[i].weight;
        own.part[i].bias = in->part[i].bias;
        own.part[i].out = in->part[i].out;
    }
    return fd_launch_matvec(ctx, &own, NULL, err);
}
