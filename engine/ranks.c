#include "engine/ranks.h"

#include <stdlib.h>

#include "engine/pass.h"

/* ---- hosts ---- */

fd_code fd_ranks_make(fd_ranks *ranks, int32_t n, bool alone, fd_error *err) {
    *ranks = (fd_ranks){.n = n, .alone = alone, .passes = calloc((size_t)n, sizeof *ranks->passes)};
    pthread_mutex_init(&ranks->lock, NULL);
    pthread_mutex_init(&ranks->launching, NULL);
    pthread_cond_init(&ranks->changed, NULL);
    if (!ranks->passes) return fd_fail(err, FD_ERR_MEMORY, "engine: out of memory for %d GPUs", n);
    FD_TRY(fd_pinned_reserve(&ranks->stop, sizeof(uint32_t), "stopping", err));
    *(volatile uint32_t *)ranks->stop.data = 0;
    return FD_OK;
}

int64_t fd_ranks_page(const fd_graph *graph, int32_t n_seq) {
    int64_t most = 0;
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        if (node->op == FD_OP_GATHER && node->input[0] >= 0 && fd_node_row_stride(node, 0) > most)
            most = fd_node_row_stride(node, 0);
    }
    return most * (n_seq > 1 ? n_seq : 1);
}

fd_code fd_ranks_make_mailbox(fd_ranks *ranks, int32_t rank, fd_error *err) {
    size_t bytes = fd_mailbox_bytes(ranks->n_page);
    if (ranks->nccl)
        return fd_device_alloc(&ranks->staging, fd_nccl_staging_bytes(sizeof(float) * (size_t)ranks->n_page), "gathers",
                               err);
    if (ranks->peers) return FD_OK;
    FD_TRY(fd_device_alloc(&ranks->mail[rank], bytes, "gathers", err));
    return fd_cuda_check(cudaMemset(ranks->mail[rank].data, 0, bytes), "gathers", err);
}

void fd_ranks_release(fd_ranks *ranks) {
    fd_nccl_close(ranks->nccl);
    fd_device_free(&ranks->staging);
    for (int32_t r = 0; r < ranks->n; r++) fd_device_free(&ranks->mail[r]);
    fd_pinned_free(&ranks->stop);
    fd_pinned_free(&ranks->host);
    free(ranks->passes);
    pthread_mutex_destroy(&ranks->lock);
    pthread_mutex_destroy(&ranks->launching);
    pthread_cond_destroy(&ranks->changed);
}

fd_code fd_ranks_meet(fd_ranks *ranks, fd_error *err) {
    if (ranks->peers) return FD_OK;
    pthread_mutex_lock(&ranks->lock);
    int32_t turn = ranks->turn;
    if (!ranks->failed && ++ranks->n_met == ranks->n) {
        ranks->n_met = 0;
        ranks->turn++;
        pthread_cond_broadcast(&ranks->changed);
    }
    while (ranks->turn == turn && !ranks->failed) pthread_cond_wait(&ranks->changed, &ranks->lock);
    bool met = ranks->turn != turn;
    if (!met) *err = ranks->why;
    pthread_mutex_unlock(&ranks->lock);
    return met ? FD_OK : err->code;
}

void fd_ranks_stop(fd_ranks *ranks, const fd_error *why) {
    pthread_mutex_lock(&ranks->lock);
    if (!ranks->failed) ranks->why = *why;
    ranks->failed = true;
    *(volatile uint32_t *)ranks->stop.data = 1;
    pthread_cond_broadcast(&ranks->changed);
    pthread_mutex_unlock(&ranks->lock);
}

fd_code fd_ranks_resume(fd_ranks *ranks, fd_error *err) {
    for (int32_t r = 0; r < ranks->n && !ranks->peers; r++)
        FD_TRY(fd_cuda_check(cudaMemset(ranks->mail[r].data, 0, ranks->mail[r].size), "gathers", err));
    *(volatile uint32_t *)ranks->stop.data = 0;
    ranks->failed = false;
    ranks->n_met = 0;
    return FD_OK;
}

/* ---- passes ---- */

void fd_ranks_begin_launch(fd_ranks *ranks) {
    if (ranks && !ranks->alone) pthread_mutex_lock(&ranks->launching);
}

void fd_ranks_end_launch(fd_ranks *ranks) {
    if (ranks && !ranks->alone) pthread_mutex_unlock(&ranks->launching);
}

static fd_send send_of(const fd_pass *pass, uint32_t index) {
    const fd_ranks *ranks = pass->engine->ranks;
    fd_send send = {.rank = pass->engine->rank, .n_rank = ranks->n, .index = index, .n_page = ranks->n_page};
    for (int32_t r = 0; r < ranks->n; r++) send.mail[r] = ranks->mail[r].data;
    return send;
}

static fd_gather gather_of(fd_pass *pass) {
    const fd_ranks *ranks = pass->engine->ranks;
    return (fd_gather){.send = send_of(pass, ++pass->n_gather), .stop = ranks->stop.data, .alone = ranks->alone};
}

fd_code fd_ranks_begin_pass(fd_pass *pass, fd_error *err) {
    fd_engine *e = pass->engine;
    if (!e->ranks) return FD_OK;
    pass->n_gather = pass->sent = 0;
    e->ranks->passes[e->rank] = *pass;
    if (e->ranks->peers) return FD_OK;
    FD_TRY(fd_ranks_meet(e->ranks, err));
    if (pass->n_tok <= e->ranks->n_page_row && !pass->observe) return FD_OK; /* no rank writes to another's tensors */
    fd_gather wait = gather_of(pass);
    fd_launch_context ctx = pass->ctx;
    ctx.overlap = false; /* it follows a copy */
    return fd_launch_gather(&ctx, &wait, err);
}

fd_code fd_ranks_end_pass(const fd_pass *pass, fd_error *err) {
    fd_engine *e = pass->engine;
    if (!e->ranks || e->ranks->peers) return FD_OK;
    FD_TRY(fd_launch_gathered(&pass->ctx, e->ranks->mail[e->rank].data, pass->n_gather, err));
    return fd_ranks_meet(e->ranks, err);
}

fd_code fd_ranks_drain(const fd_pass *pass, fd_error *err) {
    const fd_ranks *ranks = pass->engine->ranks;
    if (!ranks || ranks->alone || pass->is_captured) return FD_OK;
    return fd_cuda_check(cudaStreamSynchronize(pass->ctx.stream), "gathers", err);
}

/* Whether this process has rank r. */
static bool is_here(const fd_pass *pass, int32_t r) {
    return !pass->engine->ranks->peers || r == pass->engine->rank;
}

fd_gather fd_ranks_gather(fd_pass *pass, int32_t id, const float *x, const int32_t *pos0, int32_t n_tok) {
    fd_place place = fd_split_place(pass->engine->split, id, pass->n_kv);
    fd_gather in = gather_of(pass);
    in.x = pass->sent == in.send.index ? NULL : x;
    in.pos0 = pos0;
    in.n_row = (int64_t)n_tok * place.n_piece;
    in.width = place.width;
    in.stride = place.stride;
    in.send.first = place.first;
    for (int32_t r = 0; r < in.send.n_rank; r++)
        if (is_here(pass, r)) in.to[r] = fd_pass_tensor(&pass->engine->ranks->passes[r], id);
    return in;
}

fd_gather fd_ranks_gather_half(fd_pass *pass, int32_t id, int32_t n_tok) {
    fd_gather in = fd_ranks_gather(pass, id, (const float *)(const void *)fd_pass_half(pass, id - 1), NULL, n_tok);
    in.width /= 2; /* all are even (engine/plan.c) */
    in.stride /= 2;
    in.send.first /= 2;
    for (int32_t r = 0; r < in.send.n_rank; r++)
        if (is_here(pass, r)) in.to[r] = (float *)(void *)fd_pass_half(&pass->engine->ranks->passes[r], id);
    return in;
}

fd_gather fd_ranks_gather_shown(fd_pass *pass, int32_t id, const float *x, int32_t n_tok, float **whole) {
    fd_gather in = fd_ranks_gather(pass, id, x, NULL, n_tok);
    for (int32_t r = 0; r < in.send.n_rank; r++)
        if (is_here(pass, r)) in.to[r] = pass->engine->ranks->passes[r].engine->fast->whole[in.send.index % 2].data;
    *whole = in.to[in.send.rank];
    return in;
}

fd_send fd_ranks_send(fd_pass *pass, const fd_item *item) {
    if (!item->sends || pass->n_tok > 1 || (pass->engine->ranks && pass->engine->ranks->peers))
        return (fd_send){.n_rank = 0};
    fd_send send = send_of(pass, pass->n_gather + 1);
    send.first = fd_split_place(pass->engine->split, item->writes[0].node + 1, pass->n_kv).first;
    pass->sent = send.index;
    return send;
}

fd_code fd_ranks_launch_gather(fd_pass *pass, int32_t id, const fd_gather *in, fd_error *err) {
    return pass->engine->ranks->peers ? fd_ranks_gather_apart(pass, id, in, err)
                                      : fd_launch_gather(&pass->ctx, in, err);
}
