/* Threads over the node list. One team walks all nodes of a pass together, so that no node pays for starting threads: a
 * node large enough is shared out in chunks, a small one is done by thread 0 while the others go on to the next
 * barrier. */
#include <assert.h>
#include <omp.h>

#include "reference_cpu/executor.h"

enum {
    SHARED_WORK = 1 << 17,   /* those that take as long as two processes need to exchange what came out, some 10 µs */
    THREADED_WORK = 1 << 15, /* multiply-adds that take about as long as two barriers, some 2 µs */
    CHUNKS_EACH = 4,         /* chunks a thread: what a late thread leaves over is at most a quarter of its share */
    CHUNK_MULTIPLE = 16,     /* whole tiles of rows, whole cache lines of elements */
};

static void cut_items(fd_ref_task *task, int64_t first, int64_t end, int n_thread) {
    task->items = end;
    task->chunk = (end - first) / ((int64_t)n_thread * CHUNKS_EACH);
    if (task->chunk > CHUNK_MULTIPLE) task->chunk -= task->chunk % CHUNK_MULTIPLE;
    if (task->chunk < 1) task->chunk = 1;
    atomic_store_explicit(&task->next, first, memory_order_relaxed);
}

void fd_ref_cut(fd_ref_task *task, int n_thread, const fd_peers *peers) {
    fd_ref_cost cost = fd_ref_cost_of(&task->args);
    const bool may_cut = cost.items > 1 && !task->args.node->override;
    task->n_total = cost.items;
    task->work = cost.work;
    task->shared = peers && may_cut && cost.work >= SHARED_WORK && fd_ref_shares(task->args.node->op);
    task->threaded = task->shared || (n_thread > 1 && may_cut && cost.work >= THREADED_WORK);
    int64_t first = task->shared ? fd_peers_first(peers, peers->rank, cost.items) : 0;
    cut_items(task, first, task->shared ? fd_peers_first(peers, peers->rank + 1, cost.items) : cost.items, n_thread);
}

static void run_whole(const fd_ref_task *task, fd_ref_fn op) {
    if (task->args.node->override)
        task->args.node->override(&task->args);
    else
        op(&task->args, 0, task->items);
}

static void run_chunks(fd_ref_task *task, fd_ref_fn op) {
    for (;;) {
        int64_t begin = atomic_fetch_add_explicit(&task->next, task->chunk, memory_order_relaxed);
        if (begin >= task->items) return;
        op(&task->args, begin, begin + task->chunk < task->items ? begin + task->chunk : task->items);
    }
}

fd_code fd_ref_run(fd_reference *ref, fd_error *err) {
    int32_t n_node = ref->exec.graph->n_node;
    bool observed = ref->exec.observer.observe != NULL;
    fd_code code = FD_OK;
    _Atomic int32_t stop_after = n_node; /* a node, so that a late thread leaves the loop where the others did */

#pragma omp parallel num_threads(ref->n_thread) default(none) shared(ref, n_node, observed, code, err, stop_after)
    {
        bool first = omp_get_thread_num() == 0;
        bool behind = false; /* thread 0 has results that the others have not waited for */
        for (int32_t i = 0; i < n_node; i++) {
            fd_ref_task *task = &ref->tasks[i];
            if (task->rows == FD_REF_NO_ROW) continue;
            fd_ref_fn op = ref->ops.run[task->args.node->op];
            if (task->threaded) {
                if (behind) {
#pragma omp barrier
                }
                run_chunks(task, op);
#pragma omp barrier
                behind = false;
                if (task->shared) {
                    if (first && (code = fd_ref_gather(ref->peers, task, ref->buffers.real_size, err)) != FD_OK)
                        atomic_store(&stop_after, i);
#pragma omp barrier
                    if (atomic_load(&stop_after) <= i) break;
                }
            } else {
                if (first) run_whole(task, op);
                behind = true;
            }
            if (!observed) continue;
            if (first && (code = fd_exec_show(&ref->exec, &task->args, err)) != FD_OK) atomic_store(&stop_after, i);
#pragma omp barrier
            behind = false;
            if (atomic_load(&stop_after) <= i) break;
        }
    }
    return code;
}

void fd_reference_op(fd_numerics numerics, const fd_op_args *args) {
    assert(numerics != FD_NUMERICS_F64 || !args->node->override);
    fd_ref_fn op = fd_ref_select(numerics, fd_isa_best(), false).run[args->node->op];
    fd_ref_task task = {.args = *args};
    fd_ref_cut(&task, omp_in_parallel() ? 1 : omp_get_max_threads(), NULL);
    if (!task.threaded) {
        run_whole(&task, op);
        return;
    }
#pragma omp parallel default(none) shared(task, op)
    run_chunks(&task, op);
}
