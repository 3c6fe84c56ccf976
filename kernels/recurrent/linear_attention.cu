/* GATED_DELTA, WKV7. A warp an item, which holds a column of a head's state: lane l has the elements of partials 2l and
 * 2l + 1 of each group of 64, as it has of every row that the state meets. Rows follow one another; the next one is
 * read while this one is computed. Elements past n are never summed and never stored. */
#include "kernels/attention/dot.cuh"
#include "kernels/device.cuh"
#include "kernels/launch.cuh"
#include "kernels/recurrent/state.cuh"

enum { WARPS = 4 };

template <int GROUPS> struct lane_part { float at[2 * GROUPS]; };

/* Calls each(i, k) for the lane's elements: number i of its part is element k of n. */
template <int GROUPS, class Each> __device__ __forceinline__ void each_of_lane(int n, Each each) {
#pragma unroll
    for (int i = 0; i < 2 * GROUPS; i++) {
        const int k = i / 2 * 64 + 2 * ((int)threadIdx.x % 32) + i % 2;
        if (k < n) each(i, k);
    }
}

template <int GROUPS> __device__ __forceinline__ lane_part<GROUPS> read_part(const float *row, int n) {
    lane_part<GROUPS> part = {};
    each_of_lane<GROUPS>(n, [&](int i, int k) { part.at[i] = row[k]; });
    return part;
}

/* The contract's dot, the same in every lane. */
template <int GROUPS>
__device__ __forceinline__ float dot(const lane_part<GROUPS> &x, const lane_part<GROUPS> &y, int n) {
    float partial[2] = {0.0f, 0.0f};
    each_of_lane<GROUPS>(n, [&](int i, int) { partial[i % 2] = fmaf(x.at[i], y.at[i], partial[i % 2]); });
    return fd_tree_lanes<32>(fd_tree(partial));
}

/* The state after rows [0, first), and its place for the next pass. */
template <int GROUPS>
__device__ __forceinline__ lane_part<GROUPS> take_state(const fd_kept_state &kept, int64_t item, int n, int64_t first) {
    if (first > 0) return read_part<GROUPS>(kept.state + item * n, n);
    return lane_part<GROUPS>{};
}
template <int GROUPS>
__device__ __forceinline__ void keep_state(const fd_kept_state &kept, int64_t item, int n,
                                           const lane_part<GROUPS> &state, int64_t end) {
    if (!kept.state) return;
    each_of_lane<GROUPS>(n, [&](int i, int k) { kept.state[item * n + k] = state.at[i]; });
    if (threadIdx.x % 32 == 0) kept.position[item] = (int32_t)end;
}

/* ---- GATED_DELTA ---- */

template <int GROUPS> struct delta_row {
    float decay, beta, v;
    lane_part<GROUPS> k, q;
};

template <int GROUPS>
__device__ __forceinline__ delta_row<GROUPS> read_delta_row(const fd_gated_delta &in, int64_t item, int64_t t,
                                                            int64_t pos0) {
    const int64_t head = item / in.n_dim, group = head / in.each, of_head = head % in.each;
    const int64_t of_key = 2 * in.each + in.n_state + (int64_t)in.each * in.n_dim;
    const float *row = in.rows.cache + (t * in.n_key + group) * of_key, *k = row + 2 * in.each;
    const float *q = in.q + ((t < pos0 ? 0 : t - pos0) * in.n_key + group) * in.n_state;
    return {row[of_head], row[in.each + of_head], k[in.n_state + of_head * in.n_dim + item % in.n_dim],
            read_part<GROUPS>(k, in.n_state), read_part<GROUPS>(q, in.n_state)};
}

template <int GROUPS>
__global__ void __launch_bounds__(WARPS * 32) gated_delta(const __grid_constant__ fd_gated_delta in) {
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const int64_t n_item = (int64_t)in.n_key * in.each * in.n_dim;
    const int64_t item = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (item >= n_item) return;
    const int64_t pos0 = *in.rows.pos0, end = pos0 + in.rows.n_tok, first = fd_first_row(in.kept, item, pos0);
    lane_part<GROUPS> state = take_state<GROUPS>(in.kept, item, in.n_state, first);
    delta_row<GROUPS> next = read_delta_row<GROUPS>(in, item, first, pos0);
    for (int64_t t = first; t < end; t++) {
        const delta_row<GROUPS> row = next;
        if (t + 1 < end) next = read_delta_row<GROUPS>(in, item, t + 1, pos0);
        const float decay = fd_exp32(row.decay);
        each_of_lane<GROUPS>(in.n_state, [&](int i, int) { state.at[i] = state.at[i] * decay; });
        const float correction = (row.v - dot(row.k, state, in.n_state)) * row.beta;
        each_of_lane<GROUPS>(in.n_state, [&](int i, int) { state.at[i] = fmaf(row.k.at[i], correction, state.at[i]); });
        if (t < pos0) continue;
        const float y = dot(row.q, state, in.n_state) * in.scale;
        if (threadIdx.x % 32 == 0) in.rows.out[(t - pos0) * n_item + item] = y;
    }
    keep_state(in.kept, item, in.n_state, state, end);
}

fd_code fd_launch_gated_delta(const fd_launch_context *ctx, const fd_gated_delta *in, fd_error *err) {
    const int64_t n_item = (int64_t)in->n_key * in->each * in->n_dim;
    FD_TRY(fd_recurrent_check("gated_delta", &in->rows, n_item, in->n_state, err));
    return fd_with_groups(in->n_state, err, [&](auto groups) {
        return fd_launch(ctx, "gated_delta", gated_delta<decltype(groups)::value>, dim3(fd_blocks(n_item, WARPS)),
                         WARPS * 32, 0, err, *in);
    });
}

/* ---- WKV7 ---- */

template <int GROUPS> struct wkv_row {
    float v;
    lane_part<GROUPS> w, k, a, b, r;
};

template <int GROUPS>
__device__ __forceinline__ wkv_row<GROUPS> read_wkv_row(const fd_wkv7 &in, int64_t item, int64_t t, int64_t pos0) {
    const int n = in.n_state;
    const int64_t head = item / n;
    const float *w = in.rows.cache + (t * in.n_head + head) * 5 * n;
    const float *r = in.r + ((t < pos0 ? 0 : t - pos0) * in.n_head + head) * n;
    return {w[2 * n + item % n],
            read_part<GROUPS>(w, n),
            read_part<GROUPS>(w + n, n),
            read_part<GROUPS>(w + 3 * n, n),
            read_part<GROUPS>(w + 4 * n, n),
            read_part<GROUPS>(r, n)};
}

template <int GROUPS> __global__ void __launch_bounds__(WARPS * 32) wkv7(const __grid_constant__ fd_wkv7 in) {
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const int64_t n_item = (int64_t)in.n_head * in.n_state;
    const int64_t item = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (item >= n_item) return;
    const int64_t pos0 = *in.rows.pos0, end = pos0 + in.rows.n_tok, first = fd_first_row(in.kept, item, pos0);
    lane_part<GROUPS> state = take_state<GROUPS>(in.kept, item, in.n_state, first);
    wkv_row<GROUPS> next = read_wkv_row<GROUPS>(in, item, first, pos0);
    for (int64_t t = first; t < end; t++) {
        const wkv_row<GROUPS> row = next;
        if (t + 1 < end) next = read_wkv_row<GROUPS>(in, item, t + 1, pos0);
        const float read = dot(row.a, state, in.n_state);
        each_of_lane<GROUPS>(in.n_state, [&](int i, int) {
            state.at[i] = fmaf(state.at[i], row.w.at[i], fmaf(read, row.b.at[i], row.v * row.k.at[i]));
        });
        if (t < pos0) continue;
        const float y = dot(row.r, state, in.n_state);
        if (threadIdx.x % 32 == 0) in.rows.out[(t - pos0) * n_item + item] = y;
    }
    keep_state(in.kept, item, in.n_state, state, end);
}

fd_code fd_launch_wkv7(const fd_launch_context *ctx, const fd_wkv7 *in, fd_error *err) {
    const int64_t n_item = (int64_t)in->n_head * in->n_state;
    FD_TRY(fd_recurrent_check("wkv7", &in->rows, n_item, in->n_state, err));
    return fd_with_groups(in->n_state, err, [&](auto groups) {
        return fd_launch(ctx, "wkv7", wkv7<decltype(groups)::value>, dim3(fd_blocks(n_item, WARPS)), WARPS * 32, 0, err,
                         *in);
    });
}
