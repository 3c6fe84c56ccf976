/* SSM_SCAN. A thread a channel, its state in shared memory as a column of [n_state, THREADS], so that no two threads of
 * a warp meet in a bank; in kept states likewise [n_state, n_channel]. Rows follow one another: what depends on the row
 * before is the state alone, element by element, and y's sum in rising s. */
#include "kernels/device.cuh"
#include "kernels/launch.cuh"
#include "kernels/recurrent/state.cuh"
#include "numerics/contract.h"

enum { THREADS = 32 };

template <bool A_EACH> __global__ void __launch_bounds__(THREADS) ssm_scan(const __grid_constant__ fd_ssm_scan in) {
    float *const h = fd_shared_floats() + threadIdx.x, *const a = h + in.n_state * THREADS;
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const int64_t n_channel = (int64_t)in.n_head * in.n_dim, channel = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (channel >= n_channel) return;
    const int64_t head = channel / in.n_dim, group = head / (in.n_head / in.n_group);
    const int64_t width = in.n_head + n_channel + (int64_t)in.n_group * in.n_state;
    const int64_t pos0 = *in.rows.pos0, end = pos0 + in.rows.n_tok, first = fd_first_row(in.kept, channel, pos0);
    const float skip = in.d[head], a_of_head = A_EACH ? 0.0f : in.a[head];
    for (int s = 0; s < in.n_state; s++) {
        h[s * THREADS] = first > 0 ? in.kept.state[s * n_channel + channel] : 0.0f;
        if (A_EACH) a[s * THREADS] = in.a[head * in.n_state + s];
    }

    for (int64_t t = first; t < end; t++) {
        const float *row = in.rows.cache + t * width, *b = row + in.n_head + n_channel + group * in.n_state;
        const float *c = in.c + ((t < pos0 ? 0 : t - pos0) * in.n_group + group) * in.n_state;
        const float dt = row[head], x = row[in.n_head + channel], x_dt = x * dt;
        const float decay_of_head = A_EACH ? 0.0f : fd_exp32(a_of_head * dt);
        float y = 0.0f;
#pragma unroll 8
        for (int s = 0; s < in.n_state; s++) {
            const float decay = A_EACH ? fd_exp32(a[s * THREADS] * dt) : decay_of_head;
            const float state = fmaf(h[s * THREADS], decay, x_dt * b[s]);
            h[s * THREADS] = state;
            y = fmaf(c[s], state, y);
        }
        if (t >= pos0) in.rows.out[(t - pos0) * n_channel + channel] = fmaf(skip, x, y);
    }

    if (!in.kept.state) return;
    for (int s = 0; s < in.n_state; s++) in.kept.state[s * n_channel + channel] = h[s * THREADS];
    in.kept.position[channel] = (int32_t)end;
}

fd_code fd_launch_ssm_scan(const fd_launch_context *ctx, const fd_ssm_scan *in, fd_error *err) {
    const int64_t n_channel = (int64_t)in->n_head * in->n_dim;
    FD_TRY(fd_recurrent_check("ssm_scan", &in->rows, n_channel, in->n_state, err));
    if (in->n_group < 1 || in->n_head % in->n_group != 0)
        return fd_fail(err, FD_ERR_INPUT, "kernel ssm_scan: %d heads in %d groups", in->n_head, in->n_group);
    const size_t shared = sizeof(float) * THREADS * (size_t)in->n_state * (in->a_each ? 2 : 1);
    return fd_launch(ctx, "ssm_scan", in->a_each ? ssm_scan<true> : ssm_scan<false>,
                     dim3(fd_blocks(n_channel, THREADS)), THREADS, shared, err, *in);
}
