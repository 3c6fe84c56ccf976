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

/* Copying warps fill the ring: weights of two stages are requested before the kernel before has ended. A stage's
 * barriers, shared addresses of those of all places: `copied` completes when what `weights(s, at)` and `panel(s, at,
 * barrier)` have requested for stage s into place `at` has come, `free` when the stage is multiplied. */
template <class Weights, class Panel>
__device__ __forceinline__ void few_fill(int n_stage, int n_ring, uint32_t copied, uint32_t free, Weights weights,
                                         Panel panel) {
    const int early = n_stage < 2 ? n_stage : 2;
    for (int s = 0; s < early; s++) weights(s, s);
    fd_pdl_wait();
    few_place place;
    for (int s = 0; s < n_stage; s++) {
        const uint32_t at = (uint32_t)place.at * 8;
        if (s >= n_ring) fd_mbarrier_wait_asleep(free + at, place.round ^ 1u);
        if (s >= early) weights(s, place.at);
        panel(s, place.at, copied + at);
        fd_mbarrier_arrive_after_copies(copied + at);
        place.advance(n_ring);
    }
    fd_cp_async_wait_all();
}

/* A stage's panel of activations, by the copy engine where there is one: the copying thread's arrival at `barrier` after
 * it waits for its bytes. `thread` of `threads` that copy. */
__device__ __forceinline__ void few_copy_panel(uint32_t to, const uint8_t *from, int bytes, uint32_t barrier,
                                               int thread, int threads) {
#if __CUDA_ARCH__ >= 900
    if (thread != 0) return;
    fd_mbarrier_expect_tx(barrier, (uint32_t)bytes);
    fd_cp_async_bulk(to, from, (uint32_t)bytes, barrier, fd_policy_evict_last());
    (void)threads;
#else
    for (int i = thread * 16; i < bytes; i += threads * 16) fd_cp_async16(to + (uint32_t)i, from + i);
    (void)barrier;
#endif
}

/* Two halves of the multiplying threads, `half` each, have parts of the same sums: the second hands its own over, and is
 * through: false. `exchange`: MT·NW·half float4. */
template <int MT, int NW>
__device__ __forceinline__ bool few_add_up(float4 *exchange, int half, float (&acc)[NW][MT][4]) {
    const bool second = (int)threadIdx.x >= half;
    float4 *mine = exchange + (int)threadIdx.x - (second ? half : 0);
    fd_bar_sync(1, 2 * half);
    if (second) {
#pragma unroll
        for (int n = 0; n < NW; n++)
#pragma unroll
            for (int m = 0; m < MT; m++)
                mine[(n * MT + m) * half] = make_float4(acc[n][m][0], acc[n][m][1], acc[n][m][2], acc[n][m][3]);
    }
    fd_bar_sync(1, 2 * half);
    if (second) return false;
#pragma unroll
    for (int n = 0; n < NW; n++)
#pragma unroll
        for (int m = 0; m < MT; m++) {
            const float4 from = mine[(n * MT + m) * half];
            acc[n][m][0] += from.x, acc[n][m][1] += from.y, acc[n][m][2] += from.z, acc[n][m][3] += from.w;
        }
    return true;
}

/* ---- on the host ---- */

/* Tokens of a panel that has room for n_tok: 8, 16, 32 or 64. */
static inline int32_t few_panel_of(int32_t n_tok) {
    int32_t panel = 8;
    while (panel < n_tok) panel *= 2;
    return panel;
}

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

/* The form with `rows` rows; with 0 the one in which the multiprocessor with most blocks reads the fewest bytes, and of
 * those the one whose blocks have most rows. `ring_of(form)`: how many stages fit, of which three are wanted;
 * `bytes_of(form)`: what a block reads. */
template <class Ring, class Bytes>
static few_form few_form_of(const fd_launch_context *ctx, const fd_matmul &in, int tokens, int rows, Ring ring_of,
                            Bytes bytes_of) {
    few_form best = few_form_with(rows, tokens);
    int64_t least = INT64_MAX;
    for (int some = 16 * FEW_WARPS; some > 0 && rows == 0; some -= 16) {
        const few_form form = few_form_with(some, tokens);
        int64_t blocks = 0;
        for (int i = 0; i < in.n_part; i++) blocks += (in.part[i].weight.n_row + some - 1) / some;
        const int64_t busiest = (blocks + ctx->n_sm - 1) / ctx->n_sm * bytes_of(form);
        if (form.warps > FEW_WARPS || ring_of(form) < 3 || busiest >= least) continue;
        least = busiest;
        best = form;
    }
    return best;
}

/* How many stages fit, of the most that are wanted, beside `barriers` bytes. */
static inline int few_ring_of(const fd_launch_context *ctx, int stage_bytes, int barriers) {
    const int n = ((int)ctx->max_shared - barriers) / stage_bytes;
    return n < FEW_RING ? n : (int)FEW_RING;
}

/* A form's tiles as a type, and its shared memory beside the barriers: the ring, where the sums meet at the end. */
template <int MT, int NW> struct few_tiles {
    static constexpr int mt = MT, nw = NW;
    static size_t shared(const few_form &form, int ring_bytes) {
        const size_t end = (size_t)form.warps * 16 * MT * NW * sizeof(float4);
        return (size_t)ring_bytes > end ? (size_t)ring_bytes : end;
    }
};

/* Calls `launch` with the form's tiles. */
template <class Launch> static fd_code few_with_tiles(const few_form &form, Launch launch) {
    if (form.mt == 2)
        return form.nw == 4   ? launch(few_tiles<2, 4>())
               : form.nw == 2 ? launch(few_tiles<2, 2>())
                              : launch(few_tiles<2, 1>());
    return form.nw == 4   ? launch(few_tiles<1, 4>())
           : form.nw == 2 ? launch(few_tiles<1, 2>())
                          : launch(few_tiles<1, 1>());
}

#endif
