/* GATHERs of ranks that are processes: each copies its part to its host, the hosts exchange them, and the whole goes
 * back to the device. */
#include "engine/pass.h"
#include "kernels/elementwise/activation.h"

/* The part's first row is *pos0, which the device knows. */
static fd_code skip_rows(const fd_pass *pass, const fd_gather *in, int64_t *skip, fd_error *err) {
    int32_t pos0 = 0;
    if (in->pos0)
        FD_TRY(fd_cuda_check(cudaMemcpyAsync(&pos0, in->pos0, sizeof pos0, cudaMemcpyDeviceToHost, pass->ctx.stream),
                             "gathers", err));
    if (in->pos0) FD_TRY(fd_cuda_check(cudaStreamSynchronize(pass->ctx.stream), "gathers", err));
    *skip = pos0 * in->width;
    return FD_OK;
}

/* Rows in the host's memory lie as those of the whole. The next gather writes there only after this one's copy to
 * the device, as both are in the stream. */
fd_code fd_ranks_gather_apart(fd_pass *pass, int32_t id, const fd_gather *in, fd_error *err) {
    fd_ranks *ranks = pass->engine->ranks;
    fd_block *host = &ranks->host;
    const fd_place place = fd_split_place(pass->engine->split, id, pass->n_kv);
    const size_t part = (size_t)in->width * sizeof(float), row = (size_t)in->stride * sizeof(float);
    const size_t whole = (size_t)in->n_row * row;
    float *to = in->to[in->send.rank];
    int64_t skip;
    FD_TRY(skip_rows(pass, in, &skip, err));
    if (whole > host->size) FD_TRY(fd_cuda_check(cudaStreamSynchronize(pass->ctx.stream), "gathers", err));
    FD_TRY(fd_pinned_reserve(host, whole, "gathers", err));
    FD_TRY(fd_cuda_check(cudaMemcpy2DAsync((float *)host->data + in->send.first, row, in->x + skip, part, part,
                                           (size_t)in->n_row, cudaMemcpyDeviceToHost, pass->ctx.stream),
                         "gathers", err));
    FD_TRY(fd_cuda_check(cudaStreamSynchronize(pass->ctx.stream), "gathers", err));
    const fd_shared_rows rows = {.data = host->data,
                                 .n_block = in->n_row,
                                 .n_item = place.units,
                                 .item_bytes = row / (size_t)place.units,
                                 .name = fd_pass_node(pass, id)->name};
    FD_TRY(ranks->peers->gather(ranks->peers, &rows, err));
    FD_TRY(fd_cuda_check(cudaMemcpyAsync(to, host->data, whole, cudaMemcpyHostToDevice, pass->ctx.stream), "gathers",
                         err));
    if (!in->plus) return FD_OK;
    return fd_launch_add(&pass->ctx, to, in->plus, in->n_row * in->stride, to, err);
}
