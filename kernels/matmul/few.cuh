/* What the matrix products of few tokens share (kernels/matmul/few_f16.cu, kernels/int8/matmul_few.cu): a ring of stages
 * in shared memory that some warps fill and others multiply, and how rows of weights and tokens are laid over these. */
#ifndef FD_KERNELS_MATMUL_FEW_CUH
#define FD_KERNELS_MATMUL_FEW_CUH

#include "kernels/matmul/tile.cuh"
#include "kernels/pipeline.cuh"

enum {
    FEW_WARPS = 14,     /* that multiply, at most */
    FEW_REGISTERS = 96, /* of a thread: the most that 20 warps can have, FEW_WARPS and those that fill the ring */
    FEW_RING = 8        /* stages, at most */
};

/* A place of the ring, and the parity of how often the ring has come round. */
struct few_place {
    int at = 0;
    unsigned round = 0;
    __device__ __forceinline__ void advance(int n_ring) {
        if (++at == n_ring) at = 0, round ^= 1u;
    }
};

/* A block's `rows` rows of weights and `tokens` tokens: a warp has 16·mt of the rows, 8·nw of the tokens and half of
 * each stage's columns. */
struct few_form {
    int rows, tokens, mt, nw, warps;
};

/* A warp has up to two tiles of 16 rows and four of eight tokens; fewer where that leaves too few warps to hide each
 * other's waits. */
static inline few_form few_form_with(int rows, int tokens) {
    enum { BUSY = 8 };
    const int tiles = tokens / 8;
    few_form form = {rows, tokens, rows % 32 == 0 ? 2 : 1, tiles < 4 ? tiles : 4, 0};
    const auto warps = [&] { return 2 * (rows / 16 / form.mt) * (tiles / form.nw); };
    while (form.nw > 1 && warps() < BUSY) form.nw /= 2;
    if (form.mt > 1 && warps() < BUSY) form.mt = 1;
    form.warps = warps();
    return form;
}

/* The form with `rows` rows; with 0 the one in which the multiprocessor with most rows has the fewest, and of those the
 * one whose blocks have most: the more rows a block has, the less often activations are read. `ring_of(form)`: how many
 * stages fit, of which three are wanted. */
template <class Ring>
static few_form few_form_of(const fd_launch_context *ctx, const fd_matmul &in, int tokens, int rows, Ring ring_of) {
    few_form best = few_form_with(rows, tokens);
    int64_t least = INT64_MAX;
    for (int some = 16 * FEW_WARPS; some > 0 && rows == 0; some -= 16) {
        const few_form form = few_form_with(some, tokens);
        int64_t blocks = 0;
        for (int i = 0; i < in.n_part; i++) blocks += (in.part[i].weight.n_row + some - 1) / some;
        const int64_t busiest = (blocks + ctx->n_sm - 1) / ctx->n_sm * some;
        if (form.warps > FEW_WARPS || ring_of(form) < 3 || busiest >= least) continue;
        least = busiest;
        best = form;
    }
    return best;
}

#endif
