/* Matrix-vector for 2, 4 or 8 token rows at once, weights through rings in shared memory (kernels/matvec/ring.cuh):
 * they are read once, each dequantised once, for all the rows.
 *
 * A warp follows two rows of weights, lane l their partials 2l and 2l + 1 of every group of 64, for T token rows of x,
 * which lie in shared memory, RMS-normed when asked. A token row gets the bits it gets alone. */
#include "kernels/matvec/ring.cuh"

#include "kernels/formats/pair.cuh"
#include "kernels/launch.cuh"
#include "kernels/matvec/add.cuh"
#include "kernels/matvec/finish.cuh"
#include "kernels/tree.cuh"

enum { P = 2, R = 2 };

struct tokens_args {
    matvec_ring_args ring;
    int n_tok; /* ≤ T; the rows past it are zero, and their sums are dropped */
};

/* x [T, n_col] in the order it has in memory, each row normed by a warp's sum; ends with a barrier. */
template <int T> __device__ __forceinline__ void stage_tokens(const matvec_args &a, int n_tok, float *xs) {
    float *factor = xs + T * a.n_col; /* [T] */
    float4 *quads = (float4 *)xs;
    const int n_quad = a.n_col / 4, n_warp = (int)blockDim.x / 32;
    for (int at = (int)threadIdx.x; at < n_quad; at += (int)blockDim.x)
#pragma unroll
        for (int t = 0; t < T; t++)
            quads[t * n_quad + at] = t < n_tok ? __ldcg((const float4 *)a.x + (int64_t)t * n_quad + at)
                                               : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    __syncthreads();
    if (!a.norm_weight) return;
    for (int row = (int)threadIdx.x / 32; row < n_tok; row += n_warp) {
        const float r = staged_inverse_rms<P>(a, xs + row * a.n_col);
        if (threadIdx.x % 32 == 0) factor[row] = r;
    }
    __syncthreads();
    for (int at = (int)threadIdx.x; at < n_quad; at += (int)blockDim.x) {
        const float4 w = __ldg((const float4 *)a.norm_weight + at);
#pragma unroll
        for (int t = 0; t < T; t++) {
            if (t >= n_tok) break;
            quads[t * n_quad + at] = fd_normed(quads[t * n_quad + at], factor[t], w);
        }
    }
    __syncthreads();
}

/* A stage's `n` units, those of the rows from `unit` on. */
template <class Format, int T>
__device__ __forceinline__ void add_tokens(const unsigned char *weights, int unit, int n, int lane, uint32_t magic,
                                           uint32_t fused_magic, const float *xs, int n_col, float (&acc)[R][T][P]) {
    using Stage = ring_stage<Format, P, R>;
    constexpr int unroll = Format::groups >= 4 ? 1 : 2;
    fd_cursor row[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
        row[r] = Format::begin(weights + r * Stage::row_bytes, Stage::units * Stage::unit_bytes, lane);
        row[r].shared += unit * Stage::scale_bytes % 16;
    }
#pragma unroll unroll
    for (int u = 0; u < n; u++) {
        typename Format::unit units[R];
#pragma unroll
        for (int r = 0; r < R; r++) units[r] = Format::template load<FD_READ_SHARED>(row[r], u, lane);
        if ((unit + u + 1) * Format::groups * 64 <= n_col)
            add_unit<Format, P, R, T, false, Format::fused>(units, unit + u, lane, magic, fused_magic, xs, n_col, n_col,
                                                            acc);
        else
            add_unit<Format, P, R, T, true, Format::fused>(units, unit + u, lane, magic, fused_magic, xs, n_col, n_col,
                                                           acc);
    }
}

/* The dots of rows from `first_row` on, and those that are ambiguous once more. */
template <class Format, int T>
__device__ __forceinline__ void token_sums(const tokens_args &s, int64_t first_row, int lane, uint32_t magic,
                                           const float *xs, float (&acc)[R][T][P], float (&sums)[R * T]) {
    const matvec_args &a = s.ring.matvec;
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int t = 0; t < T; t++) sums[r * T + t] = fd_tree_lanes<32>(fd_tree(acc[r][t]));
    if constexpr (Format::fused) {
        bool ambiguous = false;
#pragma unroll
        for (int i = 0; i < R * T; i++) ambiguous = ambiguous || (i % T < s.n_tok && fd_is_ambiguous(sums[i]));
        if (!__any_sync(0xffffffffu, ambiguous)) return;
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll 1
            for (int t = 0; t < s.n_tok; t++) {
                float again[P];
                recompute_dot<Format, P>(a, first_row + r, lane, magic, xs + t * a.n_col, again);
                const float sum = fd_tree_lanes<32>(fd_tree(again));
#pragma unroll
                for (int i = 0; i < T; i++)
                    if (i == t) sums[r * T + i] = sum;
            }
    }
}

template <class Format, int T>
__global__ void __launch_bounds__(RING_THREADS, 1) matvec_tokens(const __grid_constant__ tokens_args s) {
    using Stage = ring_stage<Format, P, R>;
    const matvec_args &a = s.ring.matvec;
    unsigned char *shared = (unsigned char *)fd_shared_floats();
    const int warp = (int)threadIdx.x / 32, n_warp = (int)blockDim.x / 32, lane = (int)threadIdx.x % 32;
    unsigned char *stages = shared + warp * s.ring.n_stage * Stage::bytes;
    float *xs = (float *)(shared + n_warp * s.ring.n_stage * Stage::bytes);

    fd_pdl_launch_dependents();
    matvec_ring<Format, P, R> ring;
    ring.begin(s.ring, stages);
    for (int i = 0; i < s.ring.n_stage; i++) ring.request(s.ring);
    const uint32_t magic = fd_opaque_magic(), fused_magic = Format::fused ? fd_opaque_magic(Format::fused_bits) : 0u;
    fd_pdl_wait();
    stage_tokens<T>(a, s.n_tok, xs);

    int stage = 0;
    for (int task = ring.tasks.first; task < ring.tasks.end; task += ring.tasks.step) {
        row_finish finish; /* lane r·T + t finishes row r of token t */
        finish.begin(a, (int64_t)task * R + lane / T, lane < R * T && lane % T < s.n_tok, lane % T);
        finish.load_residual();
        float acc[R][T][P] = {}, sums[R * T];
        for (int unit = 0; unit < s.ring.n_unit; unit += Stage::units) {
            const int left = s.ring.n_unit - unit;
            ring.await(s.ring, stage, 0);
            add_tokens<Format, T>(stages + stage * Stage::bytes, unit, left < Stage::units ? left : Stage::units, lane,
                                  magic, fused_magic, xs, a.n_col, acc);
            __syncwarp();
            ring.request(s.ring);
            stage = stage + 1 == s.ring.n_stage ? 0 : stage + 1;
        }
        token_sums<Format, T>(s, (int64_t)task * R, lane, magic, xs, acc, sums);
        float sum = sums[0];
#pragma unroll
        for (int i = 1; i < R * T; i++)
            if (lane == i) sum = sums[i];
        finish.end(a, sum, lane < T, T);
    }
}

/* Token rows that go together, as few as hold n_tok where they fit, and warps a block. 0 rows: not even two fit next to
 * the smallest rings. */
struct tokens_form {
    int tokens, warps;
};
enum { LEAST_WARPS = 4, STAGES = 2 };

static tokens_form form_of(const fd_launch_context *ctx, int64_t n_col, int n_tok) {
    for (int tokens = n_tok > 4 ? 8 : n_tok > 2 ? 4 : 2; tokens >= 2; tokens /= 2) {
        const int64_t left = (int64_t)ctx->max_shared - 1024 - tokens * n_col * (int64_t)sizeof(float);
        const int64_t warps = left / (STAGES * FD_MATVEC_STAGE_BYTES);
        if (left > 0 && warps >= LEAST_WARPS)
            return {tokens, warps < FD_MATVEC_WARPS ? (int)warps : (int)FD_MATVEC_WARPS};
    }
    return {0, 0};
}

bool fd_matvec_tokens_takes(const fd_launch_context *ctx, int64_t n_col) {
    return n_col % 64 == 0 && form_of(ctx, n_col, 2).tokens > 0;
}

template <class Format, int T>
static fd_code launch(const fd_launch_context *ctx, const matvec_args &args, int n_tok, int most_warps, fd_error *err) {
    using Stage = ring_stage<Format, P, R>;
    const int64_t n_task = (args.n_row + R - 1) / R, blocks = n_task < ctx->n_sm ? n_task : ctx->n_sm;
    const int64_t busy = (n_task + blocks - 1) / blocks;
    const int warps = busy < most_warps ? (int)busy : most_warps;
    tokens_args s = {{args, 0, 0, STAGES, 0, 0}, n_tok};
    s.ring.n_task = (int32_t)n_task;
    s.ring.n_unit = Format::units_of(args.n_col);
    const size_t shared = (size_t)warps * STAGES * Stage::bytes + sizeof(float) * T * ((size_t)args.n_col + 1);
    return fd_launch(ctx, "matvec_tokens", matvec_tokens<Format, T>, dim3((unsigned)blocks), warps * 32, shared, err,
                     s);
}

template <class Format>
static fd_code launch_form(const fd_launch_context *ctx, const matvec_args &args, int n_tok, tokens_form form,
                           fd_error *err) {
    if (form.tokens == 8) return launch<Format, 8>(ctx, args, n_tok, form.warps, err);
    return form.tokens == 4 ? launch<Format, 4>(ctx, args, n_tok, form.warps, err)
                            : launch<Format, 2>(ctx, args, n_tok, form.warps, err);
}

fd_code fd_launch_matvec_tokens(const fd_launch_context *ctx, uint32_t dtype, const matvec_args &whole, int n_tok,
                                fd_error *err) {
    const tokens_form form = form_of(ctx, whole.n_col, n_tok);
    for (int done = 0; done < n_tok; done += form.tokens) {
        const int n = n_tok - done < form.tokens ? n_tok - done : form.tokens;
        matvec_args args = whole;
        args.x = whole.x + (int64_t)done * whole.n_col;
        for (matvec_part &part : args.part) {
            const int64_t skip = done * part.n_row;
            part.out = part.out ? part.out + skip : nullptr;
            part.residual = part.residual ? part.residual + skip : nullptr;
            part.product = part.product ? part.product + skip : nullptr;
        }
        FD_TRY(fd_with_format<P>(dtype, err,
                                 [&](auto format) { return launch_form<decltype(format)>(ctx, args, n, form, err); }));
    }
    return FD_OK;
}
