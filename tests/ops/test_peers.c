/* Executors that share the large ops: here threads in place of processes, with memory in place of MPI. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf_writer/made_model.h"
#include "tests/ops/executor_run.h"
#include "tests/ops/random_model.h"

enum { MOST = 5, N_TOKEN = 70 };

typedef struct table { /* around which the peers sit */
    pthread_barrier_t barrier;
    const fd_shared_rows *rows[MOST];
    int32_t n;
    _Atomic int64_t n_gather;
    bool idle; /* a mutant: nothing is brought */
} table;

typedef struct seat {
    fd_peers peers; /* first */
    table *table;
    const fd_graph *graph;
    fd_reference_options options;
    int32_t batch;
    float *logits;
    bool ok;
} seat;

static fd_code gather(fd_peers *peers, const fd_shared_rows *own, fd_error *err) {
    seat *s = (seat *)peers;
    table *t = s->table;
    (void)err;
    t->rows[peers->rank] = own;
    t->n_gather++;
    pthread_barrier_wait(&t->barrier);
    const size_t block = (size_t)own->n_item * own->item_bytes;
    for (int32_t r = 0; r < peers->n && !t->idle; r++) {
        size_t first = (size_t)fd_peers_first(peers, r, own->n_item) * own->item_bytes;
        size_t end = (size_t)fd_peers_first(peers, r + 1, own->n_item) * own->item_bytes;
        for (int64_t b = 0; b < own->n_block && r != peers->rank; b++)
            memcpy((char *)own->data + (size_t)b * block + first,
                   (const char *)t->rows[r]->data + (size_t)b * block + first, end - first);
    }
    pthread_barrier_wait(&t->barrier);
    return FD_OK;
}

static void *run_seat(void *user) {
    seat *s = user;
    fd_error err = {0};
    fd_exec *exec = NULL;
    s->options.peers = &s->peers;
    s->options.n_ctx = RANDOM_TOKENS;
    s->ok = fd_reference_new(s->graph, &s->options, &exec, &err) == FD_OK;
    for (int32_t at = 0; s->ok && at < N_TOKEN; at += s->batch) {
        int32_t n = N_TOKEN - at < s->batch ? N_TOKEN - at : s->batch;
        fd_batch batch = {.tokens = tokens + at,
                          .n_tok = n,
                          .pos0 = at,
                          .all_logits = true,
                          .logits = s->logits + (int64_t)at * s->graph->hparams.n_vocab};
        s->ok = fd_exec_forward(exec, &batch, &err) == FD_OK;
    }
    fd_exec_free(exec);
    return NULL;
}

/* Logits of all positions from `n` peers; every peer's are the same. Freed by the caller. */
static float *run_together(const fd_graph *graph, fd_reference_options options, int32_t n, int32_t batch, bool idle,
                           int64_t *n_gather) {
    table t = {.n = n, .idle = idle};
    seat seats[MOST] = {0};
    pthread_t threads[MOST];
    const size_t bytes = sizeof(float) * N_TOKEN * (size_t)graph->hparams.n_vocab;
    pthread_barrier_init(&t.barrier, NULL, (unsigned)n);
    for (int32_t r = 0; r < n; r++) {
        seats[r] = (seat){.peers = {r, n, gather}, .table = &t, .graph = graph, .options = options, .batch = batch};
        seats[r].logits = calloc(1, bytes);
        pthread_create(&threads[r], NULL, run_seat, &seats[r]);
    }
    for (int32_t r = 0; r < n; r++) pthread_join(threads[r], NULL);
    for (int32_t r = 0; r < n; r++) cr_assert(seats[r].ok, "peer %d of %d", r, n);
    for (int32_t r = 1; r < n && !idle; r++)
        cr_expect_arr_eq(seats[r].logits, seats[0].logits, bytes, "peer %d of %d", r, n);
    for (int32_t r = 1; r < n; r++) free(seats[r].logits);
    pthread_barrier_destroy(&t.barrier);
    *n_gather = t.n_gather;
    return seats[0].logits;
}

static void expect_bits_of_one(const fd_graph *graph, fd_reference_options options, const char *what) {
    static const int32_t n_peers[] = {2, 3, 4, 5};
    static const int32_t batches[] = {N_TOKEN, 7};
    int64_t n_gather;
    options.n_thread = 1;
    float *one = run_new(graph, options, N_TOKEN, N_TOKEN);
    for (size_t i = 0; i < sizeof n_peers / sizeof *n_peers; i++)
        for (size_t b = 0; b < sizeof batches / sizeof *batches; b++) {
            options.n_thread = i % 2 ? 2 : 1;
            float *many = run_together(graph, options, n_peers[i], batches[b], false, &n_gather);
            expect_same(many, one, (int64_t)N_TOKEN * graph->hparams.n_vocab, what);
            cr_expect_gt(n_gather, 0, "%s: nothing was shared", what);
            free(many);
        }
}

Test(peers, shares_do_not_change_bits, .init = fill_tokens) {
    expect_bits_of_one(random_model_make("llama", FD_F32).graph, (fd_reference_options){0}, "llama F32");
    expect_bits_of_one(random_model_make("qwen2", FD_Q4_0).graph, (fd_reference_options){0}, "qwen2 Q4_0");
}

Test(peers, shares_do_not_change_bits_in_q8act_and_f64, .init = fill_tokens) {
    random_model m = random_model_make("llama", FD_Q8_0);
    expect_bits_of_one(m.graph, (fd_reference_options){.numerics = FD_NUMERICS_Q8ACT}, "q8act");
    expect_bits_of_one(m.graph, (fd_reference_options){.numerics = FD_NUMERICS_F64}, "f64");
}

Test(peers, shares_of_experts_and_heads_do_not_change_bits, .init = fill_tokens) {
    static const char *const archs[] = {"qwen3moe", "deepseek2"}; /* experts; a product for each head */
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        fd_made_model what = {.arch = archs[i], .seed = 3, .dtype = FD_F16, .n_vocab = RANDOM_VOCAB};
        fd_gguf *gguf;
        fd_graph *graph;
        fd_error err = {0};
        cr_assert_eq(fd_made_model_open(&what, &gguf, &err), FD_OK, "%s", err.message);
        cr_assert_eq(fd_graph_build(gguf, &graph, NULL, &err), FD_OK, "%s", err.message);
        expect_bits_of_one(graph, (fd_reference_options){0}, archs[i]);
        fd_graph_free(graph);
        fd_gguf_close(gguf);
    }
}

Test(peers, a_gather_that_brings_nothing_shows, .init = fill_tokens) {
    random_model m = random_model_make("llama", FD_F32);
    int64_t n_gather;
    float *one = run_new(m.graph, (fd_reference_options){.n_thread = 1}, N_TOKEN, N_TOKEN);
    float *idle = run_together(m.graph, (fd_reference_options){.n_thread = 1}, 2, N_TOKEN, true, &n_gather);
    cr_expect(memcmp(one, idle, sizeof(float) * N_TOKEN * RANDOM_VOCAB) != 0);
    free(idle);
}

static fd_code fail_to_gather(fd_peers *peers, const fd_shared_rows *rows, fd_error *err) {
    return fd_fail(err, FD_ERR_IO, "%s: rank %d waits", rows->name, peers->rank);
}

Test(peers, a_lost_peer_ends_the_pass, .init = fill_tokens) {
    random_model m = random_model_make("llama", FD_F32);
    fd_peers peers = {.rank = 1, .n = 3, .gather = fail_to_gather};
    for (int threads = 1; threads <= 3; threads += 2) {
        fd_exec *exec = make_exec(m.graph, (fd_reference_options){.n_thread = threads, .peers = &peers});
        fd_batch batch = {.tokens = tokens, .n_tok = N_TOKEN};
        fd_error err = {0};
        cr_expect_eq(fd_exec_forward(exec, &batch, &err), FD_ERR_IO);
        cr_expect_str_eq(err.message, "blk.0.attn_q: rank 1 waits");
        fd_exec_free(exec);
    }
}

Test(peers, every_item_is_one_peer_s) {
    for (int32_t n = 1; n <= 9; n++)
        for (int64_t items = 0; items <= 40; items++) {
            fd_peers peers = {.n = n};
            cr_expect_eq(fd_peers_first(&peers, 0, items), 0);
            cr_expect_eq(fd_peers_first(&peers, n, items), items);
            for (int32_t r = 0; r < n; r++) {
                int64_t share = fd_peers_first(&peers, r + 1, items) - fd_peers_first(&peers, r, items);
                cr_expect(share == items / n || share == items / n + 1, "%d of %d, %lld items", r, n, (long long)items);
            }
        }
}
