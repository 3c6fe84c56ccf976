/* CONV, SSM_SCAN in binary32, as every engine keeps the state; libm's exp. */
#include <math.h>
#include <stdlib.h>

#include "emulate/internal.h"
#include "model/weight_rows.h"

fd_code fd_emulate_conv(fd_emulate *e, const fd_op_args *args, fd_error *err) {
    (void)e, (void)err;
    const fd_weight *w = args->weight[0], *bias = args->weight[1];
    int64_t n = fd_node_width(args->node), n_tap = w->n_col;
    const float *cache = args->in[0];
    for (int32_t p = 0; p < args->n_pos; p++)
        for (int64_t c = 0; c < n; c++) {
            float sum = 0;
            for (int64_t j = 0; j < n_tap; j++) {
                int64_t t = args->pos0 + p + j + 1 - n_tap;
                if (t >= 0) sum += cache[t * n + c] * fd_weight_row_element(w, c, j);
            }
            ((float *)args->out)[p * n + c] = bias ? sum + fd_weight_element(bias, c) : sum;
        }
    return FD_OK;
}

/* One position after another, all states side by side. */
fd_code fd_emulate_ssm_scan(fd_emulate *e, const fd_op_args *args, fd_error *err) {
    (void)e;
    const fd_node *read = fd_emulate_input(args, 1);
    const fd_weight *a = args->weight[0], *d = args->weight[1];
    int64_t n_head = args->node->shape[0], n_dim = args->node->shape[1], n_state = read->shape[1];
    int64_t n_channel = n_head * n_dim, n_b = fd_node_width(read), width = n_head + n_channel + n_b;
    float *state = calloc((size_t)(n_channel * n_state), sizeof *state);
    if (!state) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", args->node->name);
    for (int64_t t = 0; t < args->pos0 + args->n_pos; t++) {
        const float *row = (const float *)args->in[0] + t * width;
        for (int64_t ch = 0; ch < n_channel; ch++) {
            int64_t head = ch / n_dim, group = head * read->shape[0] / n_head;
            float x_dt = row[n_head + ch] * row[head], y = 0;
            for (int64_t s = 0; s < n_state; s++) {
                float decay = expf(row[head] * fd_weight_row_element(a, head, a->n_col > 1 ? s : 0));
                float *h = &state[ch * n_state + s];
                *h = *h * decay + row[n_head + n_channel + group * n_state + s] * x_dt;
                if (t >= args->pos0)
                    y += *h * ((const float *)args->in[1])[(t - args->pos0) * n_b + group * n_state + s];
            }
            if (t < args->pos0) continue;
            float skip = d->n_row == 1 ? fd_weight_element(d, head) : fd_weight_row_element(d, head, 0);
            ((float *)args->out)[(t - args->pos0) * n_channel + ch] = y + row[n_head + ch] * skip;
        }
    }
    free(state);
    return FD_OK;
}
