/* apart_check MODEL.gguf…: an engine whose ranks are processes, here threads with memory in place of MPI
 * (exec/peers.h), 2 and 3 of them. On two GPUs two gather by NCCL, then through their hosts, as three always do.
 *
 * On GPUs: logits of all ranks and tensors that the first one's observer sees are one GPU's, bit by bit, in prompts and
 * steps, observed or not. On a CUDA runtime in host memory (fake_cuda_runtime.h, -DFAKE): what they ask of each other is
 * the same, nodes are seen once and in order by the first one alone, memory is what is said, and a rank that is lost
 * ends the others' passes, with NCCL in bounded time. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/run.h"
#include "engine/engine.h"
#ifdef FAKE
#include "tests/gpu/fake_cuda_runtime.h"
#endif

enum { MOST = 3, N_PROMPT = 13, N_STEP = 3, N_CTX = 64 };

static int n_failed;

static void expect(bool holds, const char *path, const char *what) {
    if (holds) return;
    printf("FAIL %s: %s\n", path, what);
    n_failed++;
}

/* ---- peers ---- */

typedef struct table { /* around which they sit */
    pthread_barrier_t barrier;
    const fd_shared_rows *rows[MOST];
    int64_t lost_at; /* the gather that nobody brings; 0: none */
    bool differ;
} table;

typedef struct seat {
    fd_peers peers; /* first */
    table *table;
    const fd_graph *graph;
    fd_numerics numerics;
    bool full;       /* a prompt that fills the context, unobserved, and no more */
    bool gets_stuck; /* the devices, once the engine is there */
    int64_t n_gather, n_seen;
    int32_t last; /* node that was seen last */
    bool in_order;
    uint64_t logits, seen; /* hashes */
    bool by_nccl;          /* as its engine says */
    fd_code code;
    fd_error err;
} seat;

/* When all have their engines. */
static void get_stuck(table *t) {
    pthread_barrier_wait(&t->barrier);
#ifdef FAKE
    fake.stuck = true;
#endif
    pthread_barrier_wait(&t->barrier);
}

static fd_code gather(fd_peers *peers, const fd_shared_rows *own, fd_error *err) {
    seat *s = (seat *)peers;
    table *t = s->table;
    if (++s->n_gather == t->lost_at) return fd_fail(err, FD_ERR_IO, "%s: a rank is gone", own->name);
    t->rows[peers->rank] = own;
    pthread_barrier_wait(&t->barrier);
    const size_t block = (size_t)own->n_item * own->item_bytes;
    for (int32_t r = 0; r < peers->n; r++) {
        const fd_shared_rows *other = t->rows[r];
        size_t first = (size_t)fd_peers_first(peers, r, own->n_item) * own->item_bytes;
        size_t end = (size_t)fd_peers_first(peers, r + 1, own->n_item) * own->item_bytes;
        if (strcmp(other->name, own->name) != 0 || other->n_block != own->n_block || other->n_item != own->n_item ||
            other->item_bytes != own->item_bytes)
            t->differ = true;
        for (int64_t b = 0; b < own->n_block && r != peers->rank && !t->differ; b++)
            memcpy((char *)own->data + (size_t)b * block + first, (const char *)other->data + (size_t)b * block + first,
                   end - first);
    }
    pthread_barrier_wait(&t->barrier);
    return FD_OK;
}

/* ---- what a rank does ---- */

static uint64_t hash_of(const void *data, size_t size, uint64_t hash) { /* FNV-1a, by words */
    const uint32_t *words = data;
    for (size_t i = 0; i < size / sizeof *words; i++) hash = (hash ^ words[i]) * 0x100000001b3;
    return hash;
}

static fd_code watch(void *user, const fd_observation *seen, fd_error *err) {
    seat *s = user;
    s->in_order = s->in_order && seen->node->id == s->last + 1;
    s->last = seen->node->id + 1 == s->graph->n_node ? -1 : seen->node->id;
    s->n_seen++;
    s->seen = hash_of(seen->data, sizeof(float) * (size_t)(seen->row_stride * seen->n_pos), s->seen);
    return (void)err, FD_OK;
}

static fd_code feed(seat *s, fd_exec *exec, int32_t n) {
    int32_t tokens[N_CTX];
    const size_t n_vocab = (size_t)s->graph->hparams.n_vocab;
    float *logits = calloc(n_vocab, sizeof *logits);
    if (!logits) exit(2);
    for (int32_t i = 0; i < n; i++) tokens[i] = token_at(exec->n_past + i, (int32_t)n_vocab);
    fd_batch batch = {.tokens = tokens, .n_tok = n, .pos0 = exec->n_past, .logits = logits};
    fd_code code = fd_exec_forward(exec, &batch, &s->err);
    s->logits = hash_of(logits, n_vocab * sizeof *logits, s->logits);
    free(logits);
    return code;
}

/* A prompt and steps, observed and not. */
static void run(seat *s, fd_peers *peers) {
    const int32_t n_device = fd_engine_n_device();
    fd_engine_options options = {.n_ctx = N_CTX, .numerics = s->numerics, .peers = peers};
    options.devices = (fd_engine_devices){.id = {s->peers.rank % (n_device ? n_device : 1)}, .n = 1};
#ifdef FAKE
    options.no_graph = true;
#endif
    fd_exec *exec = NULL;
    s->last = -1;
    s->in_order = true;
    s->code = fd_engine_new(s->graph, &options, &exec, &s->err);
    s->by_nccl = s->code == FD_OK && strstr(exec->device, "NCCL 2.");
    if (s->gets_stuck) get_stuck(s->table);
    if (s->full && s->code == FD_OK) s->code = feed(s, exec, N_CTX);
    if (s->full) pthread_barrier_wait(&s->table->barrier); /* all hold what they took */
    for (int turn = 0; turn < 2 && s->code == FD_OK && !s->full; turn++) {
        if (turn == 0) fd_exec_set_observer(exec, (fd_observer){.observe = watch, .user = s});
        s->code = feed(s, exec, N_PROMPT);
        for (int i = 0; i < N_STEP && s->code == FD_OK; i++) s->code = feed(s, exec, 1);
        fd_exec_set_observer(exec, (fd_observer){0});
        fd_exec_reset(exec);
    }
    fd_exec_free(exec);
}

static void *run_seat(void *user) {
    run(user, user);
    return NULL;
}

static void run_together(seat *seats, table *t, int32_t n, const seat *as) {
    pthread_t threads[MOST];
    pthread_barrier_init(&t->barrier, NULL, (unsigned)n);
    for (int32_t r = 0; r < n; r++) {
        seats[r] = *as;
        seats[r].peers = (fd_peers){r, n, gather, as->gets_stuck ? 0.2 : 60};
        seats[r].table = t;
        if (pthread_create(&threads[r], NULL, run_seat, &seats[r]) != 0) exit(2);
    }
    for (int32_t r = 0; r < n; r++) pthread_join(threads[r], NULL);
    pthread_barrier_destroy(&t->barrier);
}

/* ---- checks ---- */

static void check_seats(const char *path, const seat *seats, const table *t, int32_t n, bool nccl) {
    const int64_t n_node = seats[0].graph->n_node, expected = n_node * (1 + N_STEP);
    expect(!t->differ, path, "ranks ask for different rows");
    expect(seats[0].n_seen == expected && seats[0].in_order, path,
           "an observer does not see every node once, in order");
    expect((seats[0].n_gather > n_node / 8) != nccl, path, "not gathered in the way that was chosen");
    for (int32_t r = 0; r < n; r++) {
        expect(seats[r].by_nccl == nccl, path, "an engine says that it gathers in another way");
        expect(seats[r].code == FD_OK, path, seats[r].err.message);
        expect(r == 0 || seats[r].n_seen == 0, path, "another rank's observer sees nodes");
    }
}

#ifdef FAKE
static void check_memory(const char *path, const fd_graph *graph, fd_numerics numerics, int32_t n, bool nccl) {
    uint64_t said = 0;
    for (int32_t r = 0; r < n; r++) {
        fd_error err = {0};
        fd_engine_memory m;
        fd_engine_size size = {.n_ctx = N_CTX, .numerics = numerics, .n_sm = FAKE_CUDA_SM};
        fd_rank_of rank = {.rank = r, .n = n, .apart = true, .nccl = nccl};
        must(fd_engine_memory_of_rank(graph, &size, rank, &m, &err), &err);
        said += fd_engine_memory_total(&m);
    }
    expect(fake.taken == 0 && fake.n_alloc == 0 && fake.n_pinned == 0, path, "something is never given back");
    expect(fake.peak == said, path, "other memory is taken than is said");
}

/* A counter of fake_nccl.c. */
static void *counter(const char *name) {
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    void *found = library ? dlsym(library, name) : NULL;
    if (!found) exit(2);
    return found;
}

static void check_gathers(const char *path) {
    const uint64_t *hash = counter("fake_nccl_hash");
    int64_t *count = counter("fake_nccl_count");
    expect(count[0] > 100 && count[0] == count[1] && hash[0] == hash[1], path, "ranks ask NCCL for different gathers");
    count[0] = count[1] = 0;
}

static void check_stuck(const char *path, const fd_graph *graph, fd_numerics numerics) {
    seat seats[MOST];
    table t = {0};
    run_together(seats, &t, 2, &(seat){.graph = graph, .numerics = numerics, .gets_stuck = true});
    fake.stuck = false;
    for (int32_t r = 0; r < 2; r++)
        expect(seats[r].code == FD_ERR_IO && strstr(seats[r].err.message, "one of them is stuck or gone"), path,
               "NCCL is waited for without end");
    expect(fake.taken > 0, path, "what the devices may still use was given back");
    fake = (fake_cuda){.free_bytes = 1ull << 40, .n_device = 2, .no_peers = true};
}

static void check(const char *path, const fd_graph *graph, fd_numerics numerics, int32_t n, bool nccl) {
    seat seats[MOST], as = {.graph = graph, .numerics = numerics};
    table t = {0};
    fake = (fake_cuda){.free_bytes = 1ull << 40, .n_device = 2, .no_peers = true};
    run_together(seats, &t, n, &as);
    check_seats(path, seats, &t, n, nccl);
    if (nccl) {
        check_gathers(path);
        check_stuck(path, graph, numerics);
    } else {
        t = (table){.lost_at = seats[0].n_gather / 2};
        run_together(seats, &t, n, &as);
        for (int32_t r = 0; r < n; r++)
            expect(seats[r].code == FD_ERR_IO && strstr(seats[r].err.message, "a rank is gone"), path,
                   "a lost rank does not end the pass");
    }
    fake.peak = t.lost_at = 0;
    as.full = true;
    run_together(seats, &t, n, &as);
    check_memory(path, graph, numerics, n, nccl);
}

static bool has_nccl(void) {
    return true;
}
#else
static void check(const char *path, const fd_graph *graph, fd_numerics numerics, int32_t n, bool nccl) {
    seat seats[MOST], one = {.graph = graph, .numerics = numerics};
    table t = {0};
    run(&one, NULL);
    expect(one.code == FD_OK, path, one.err.message);
    run_together(seats, &t, n, &(seat){.graph = graph, .numerics = numerics});
    check_seats(path, seats, &t, n, nccl);
    expect(seats[0].seen == one.seen, path, "tensors are not one GPU's");
    for (int32_t r = 0; r < n; r++) expect(seats[r].logits == one.logits, path, "logits are not one GPU's");
    expect(one.logits != 0 && one.seen != one.logits, path, "nothing is compared");
}

static bool has_nccl(void) {
    bool has = fd_engine_n_device() > 1 && dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!has) printf("not run: NCCL, which needs two GPUs and libnccl.so.2\n");
    return has;
}
#endif

static void check_all(const char *path, const fd_graph *graph, int32_t n, bool nccl) {
    setenv("FIRSTDIFF_NCCL", nccl ? "1" : "0", 1);
    check(path, graph, FD_NUMERICS_EXACT, n, nccl);
    check(path, graph, FD_NUMERICS_Q8ACT, n, nccl);
    check(path, graph, FD_NUMERICS_FAST, n, nccl);
}

int main(int argc, char **argv) {
#ifndef FAKE
    char why[256];
    if (!fd_engine_available(why, sizeof why)) {
        printf("%s\n", why);
        return 77;
    }
#endif
    const bool nccl = has_nccl();
    for (int i = 1; i < argc; i++) {
        fd_error err = {0};
        fd_gguf *gguf;
        fd_graph *graph;
        must(fd_gguf_open(argv[i], &gguf, &err), &err);
        must(fd_graph_build(gguf, &graph, NULL, &err), &err);
        if (nccl) check_all(argv[i], graph, 2, true);
        for (int32_t n = 2; n <= MOST; n++) check_all(argv[i], graph, n, false);
        fd_graph_free(graph);
        fd_gguf_close(gguf);
    }
    printf("%d models, %d failed\n", argc - 1, n_failed);
    return n_failed != 0 || argc < 2;
}
