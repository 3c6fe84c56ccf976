/* GATHERs of ranks that are processes. By NCCL from device to device; or each copies its part to its host, the hosts
 * exchange them, and the whole goes back to the device. */
#include <assert.h>
#include <stdio.h>

#include "engine/pass.h"
#include "kernels/elementwise/activation.h"

fd_code fd_ranks_choose_gather(fd_ranks *ranks, char *words, size_t room, fd_error *err) {
    char why[128];
    FD_TRY(fd_nccl_open(ranks->peers, &ranks->nccl, why, sizeof why, err));
    if (ranks->nccl)
        snprintf(words, room, "processes, a GPU each, NCCL %s", fd_nccl_release(ranks->nccl));
    else
        snprintf(words, room, "processes, a GPU each, gathering through their hosts: %s", why);
    return FD_OK;
}

/* Rows in the host's memory lie as those of the whole. The next gather writes there only after this one's copy to
 * the device, as both are in the stream. */
static fd_code gather_by_host(fd_pass *pass, const fd_gather *in, const float *part, const fd_shared_rows *rows,
                              fd_error *err) {
    fd_ranks *ranks = pass->engine->ranks;
    fd_block *host = &ranks->host;
    const size_t width = (size_t)in->width * sizeof(float), row = (size_t)in->stride * sizeof(float);
    const size_t whole = (size_t)in->n_row * row;
    if (whole > host->size) FD_TRY(fd_cuda_check(cudaStreamSynchronize(pass->ctx.stream), "gathers", err));
    FD_TRY(fd_pinned_reserve(host, whole, "gathers", err));
    FD_TRY(fd_cuda_check(cudaMemcpy2DAsync((float *)host->data + in->send.first, row, part, width, width,
                                           (size_t)in->n_row, cudaMemcpyDeviceToHost, pass->ctx.stream),
                         "gathers", err));
    FD_TRY(fd_cuda_check(cudaStreamSynchronize(pass->ctx.stream), "gathers", err));
    fd_shared_rows there = *rows;
    there.data = host->data;
    FD_TRY(ranks->peers->gather(ranks->peers, &there, err));
    return fd_cuda_check(
        cudaMemcpyAsync(in->to[in->send.rank], host->data, whole, cudaMemcpyHostToDevice, pass->ctx.stream), "gathers",
        err);
}

static fd_code gather_by_nccl(fd_pass *pass, const fd_gather *in, const float *part, const fd_shared_rows *rows,
                              fd_error *err) {
    fd_ranks *ranks = pass->engine->ranks;
    const fd_nccl_rows there = {.part = part,
                                .whole = in->to[in->send.rank],
                                .n_row = rows->n_block,
                                .n_item = rows->n_item,
                                .item_bytes = rows->item_bytes,
                                .staging = &ranks->staging,
                                .name = rows->name};
    return fd_nccl_gather(ranks->nccl, &there, pass->ctx.stream, err);
}

fd_code fd_ranks_gather_apart(fd_pass *pass, int32_t id, const fd_gather *in, fd_error *err) {
    const fd_place place = fd_split_place(pass->engine->split, id, pass->n_kv);
    const fd_shared_rows rows = {.n_block = in->n_row,
                                 .n_item = place.units,
                                 .item_bytes = (size_t)in->stride * sizeof(float) / (size_t)place.units,
                                 .name = fd_pass_node(pass, id)->name};
    float *to = in->to[in->send.rank];
    assert(!in->pos0 ||
           pass->observe); /* of a cache, which is gathered to be seen: in no graph, so the host knows where */
    const float *part = in->x + (in->pos0 ? pass->pos0 * in->width : 0);
    FD_TRY((pass->engine->ranks->nccl ? gather_by_nccl : gather_by_host)(pass, in, part, &rows, err));
    if (!in->plus) return FD_OK;
    return fd_launch_add(&pass->ctx, to, in->plus, in->n_row * in->stride, to, err);
}

fd_code fd_engine_wait(const fd_engine *e, cudaEvent_t event, const char *what, fd_error *err) {
    cudaStream_t stream = e->device.ctx.stream;
    if (e->ranks && e->ranks->nccl) return fd_nccl_wait(e->ranks->nccl, stream, event, what, err);
    return fd_cuda_check(event ? cudaEventSynchronize(event) : cudaStreamSynchronize(stream), what, err);
}
