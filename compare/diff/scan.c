#include "compare/diff/scan.h"

#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/store/place.h"

/* Bytes of a side that a thread copies at once: two of them fit a second-level cache together. */
enum { BLOCK = 1 << 17 };
/* Below this many bytes a side, starting other threads costs more than they save. */
enum { PARALLEL_BYTES = 1 << 20 };
/* Bytes of a side that a thread takes from the list at once: a view's, where they lie beside each other. */
enum { SHARE = FD_TRACE_VIEW };
enum { MAX_THREADS = 64 };

typedef enum result {
    SKIPPED, /* after a position that differs: not compared */
    SAME,
    DIFFERS,
    UNKNOWN,
    ASK, /* compared through the library, which only one thread may use */
} result;

typedef struct item {         /* rows that one thread compares */
    int32_t pair, pos, n_pos; /* pair: within the batch */
    bool same_chunks;
    int64_t bytes; /* of a side */
} item;

typedef struct scan {
    fd_trace_pair *traces;
    const fd_node_pair *pairs;
    int32_t n_pair, pos, end;
    uint8_t *results;       /* [n_pair, end - pos] */
    _Atomic int32_t *first; /* [n_pair] lowest position known to differ; `end`: none */
    item *items;
    int64_t n_item, capacity;
    int64_t bytes;        /* of a side, in all items */
    int64_t next;         /* first item that no thread has taken */
    pthread_mutex_t lock; /* of `next` */
} scan;

static uint8_t *result_of(const scan *s, int32_t pair, int32_t pos) {
    return &s->results[(size_t)pair * (size_t)(s->end - s->pos) + (size_t)(pos - s->pos)];
}

static size_t width(const fd_trace_node *node) {
    return node->dtype == FD_F64 ? 8 : node->dtype == FD_F32 ? 4 : 2;
}

/* ---- what is to be read ---- */

static bool add_item(scan *s, item new) {
    if (s->n_item == s->capacity) {
        int64_t more = s->capacity ? 2 * s->capacity : 1024;
        item *grown = realloc(s->items, (size_t)more * sizeof *grown);
        if (!grown) return false;
        s->items = grown;
        s->capacity = more;
    }
    s->items[s->n_item++] = new;
    return true;
}

/* Decides what needs no elements. The positions that need them become items, or are left to the library. */
static bool plan_pair(scan *s, int32_t at, bool placed) {
    const fd_node_pair *np = &s->pairs[at];
    const fd_trace *ref = s->traces->ref, *cand = s->traces->cand;
    const fd_trace_node *a = fd_trace_node_at(ref, np->ref), *b = fd_trace_node_at(cand, np->cand);
    bool alike = placed && fd_trace_same_places(ref, np->ref, cand, np->cand);
    item open = {at, -1, 0, alike, 0};
    for (int32_t pos = s->pos; pos < s->end; pos++) {
        uint8_t *r = result_of(s, at, pos);
        fd_look known;
        if (fd_trace_pair_fingerprints(s->traces, np, pos, &known))
            *r = known.result == FD_LOOK_SAME ? SAME : DIFFERS;
        else if (!fd_trace_holds(ref, np->ref, pos) || !fd_trace_holds(cand, np->cand, pos))
            *r = UNKNOWN;
        else
            *r = ASK;
        if (*r == DIFFERS) break; /* nothing after it is compared */
        if (*r != ASK || !placed) continue;
        int64_t bytes = fd_trace_elements(a, pos) * (int64_t)(width(a) > width(b) ? width(a) : width(b));
        bool joins = open.n_pos > 0 && open.pos + open.n_pos == pos && (open.n_pos + 1) * bytes <= BLOCK &&
                     (!alike || (pos < fd_trace_chunk_end(ref, np->ref, open.pos) &&
                                 pos < fd_trace_chunk_end(cand, np->cand, open.pos)));
        s->bytes += bytes;
        if (joins) {
            open.n_pos++;
            open.bytes += bytes;
            continue;
        }
        if (open.n_pos > 0 && !add_item(s, open)) return false;
        open.pos = pos;
        open.n_pos = 1;
        open.bytes = bytes;
    }
    return open.n_pos == 0 || add_item(s, open);
}

/* ---- comparing ---- */

/* What a thread looks at. */
typedef struct looking {
    fd_trace_view ref, cand;
    fd_trace_span ref_span, cand_span;
    char *blocks; /* two, of elements that are copied */
} looking;

/* Bytes of a side where they are cheapest to look at; NULL: they cannot be seen. */
static const void *bytes_at(const fd_trace *trace, fd_trace_view *view, fd_trace_span *span, uint64_t address,
                            size_t n) {
    return n <= FD_TRACE_SPAN ? fd_trace_span_at(trace, span, address, n) : fd_trace_view_at(trace, view, address, n);
}

/* True when the rows have the same bytes on both sides, padding included; false when not, or not to be seen raw. */
static bool same_bytes(const scan *s, const item *it, looking *look) {
    const fd_node_pair *np = &s->pairs[it->pair];
    const fd_trace *ref = s->traces->ref, *cand = s->traces->cand;
    int64_t columns = fd_trace_columns(ref, np->ref);
    for (int64_t column = 0; column < columns; column++) {
        fd_trace_region a, b;
        if (!fd_trace_region_of(ref, np->ref, it->pos, it->n_pos, column, &a) ||
            !fd_trace_region_of(cand, np->cand, it->pos, it->n_pos, column, &b) || a.bytes != b.bytes)
            return false;
        for (uint64_t at = 0; at < a.bytes; at += FD_TRACE_VIEW) {
            size_t n = a.bytes - at < FD_TRACE_VIEW ? (size_t)(a.bytes - at) : FD_TRACE_VIEW;
            const void *mine = bytes_at(ref, &look->ref, &look->ref_span, a.address + at, n);
            const void *theirs = mine ? bytes_at(cand, &look->cand, &look->cand_span, b.address + at, n) : NULL;
            if (!theirs || memcmp(mine, theirs, n) != 0) return false;
        }
    }
    return true;
}

static result compare_row(const scan *s, const fd_node_pair *np, int32_t pos, looking *look) {
    char *mine = look->blocks, *theirs = look->blocks + BLOCK;
    const fd_trace *ref = s->traces->ref, *cand = s->traces->cand;
    const fd_trace_node *a = fd_trace_node_at(ref, np->ref), *b = fd_trace_node_at(cand, np->cand);
    int64_t n = fd_trace_elements(a, pos), most = BLOCK / (int64_t)(width(a) > width(b) ? width(a) : width(b));
    for (int64_t at = 0; at < n; at += most) {
        int64_t m = n - at < most ? n - at : most;
        fd_tensor_diff diff;
        if (!fd_trace_read_placed(ref, &look->ref, np->ref, pos, at, m, mine) ||
            !fd_trace_read_placed(cand, &look->cand, np->cand, pos, at, m, theirs))
            return ASK;
        fd_diff_tensors((fd_tensor_view){mine, a->dtype}, (fd_tensor_view){theirs, b->dtype}, m,
                        fd_coarser(a->dtype, b->dtype), &diff);
        if (diff.n_differ) return DIFFERS;
    }
    return SAME;
}

/* Compares element by element where an item's bytes did not decide, up to the first position that differs. */
static void compare_item(scan *s, const item *it, looking *look) {
    if (it->pos > atomic_load(&s->first[it->pair])) return; /* stays ASK, which nothing after a difference needs */
    bool same = it->same_chunks && same_bytes(s, it, look);
    for (int32_t pos = it->pos; pos < it->pos + it->n_pos; pos++) {
        result r = same ? SAME : compare_row(s, &s->pairs[it->pair], pos, look);
        *result_of(s, it->pair, pos) = (uint8_t)r;
        if (r != DIFFERS) continue;
        int32_t first = atomic_load(&s->first[it->pair]);
        while (pos < first && !atomic_compare_exchange_weak(&s->first[it->pair], &first, pos)) continue;
        return;
    }
}

static void *compare_in_thread(void *user) {
    scan *s = user;
    looking look = {.blocks = malloc(2 * (size_t)BLOCK)};
    while (look.blocks) {
        pthread_mutex_lock(&s->lock);
        int64_t at = s->next, bytes = 0;
        while (s->next < s->n_item && (s->next == at || bytes + s->items[s->next].bytes <= SHARE))
            bytes += s->items[s->next++].bytes;
        int64_t end = s->next;
        pthread_mutex_unlock(&s->lock);
        if (at == end) break;
        for (; at < end; at++) compare_item(s, &s->items[at], &look);
    }
    fd_trace_view_close(&look.ref);
    fd_trace_view_close(&look.cand);
    fd_trace_span_close(&look.ref_span);
    fd_trace_span_close(&look.cand_span);
    free(look.blocks);
    return NULL;
}

/* Threads of its own, as many as OpenMP would take: OpenMP's spin when they wait (cli.h: fd_cli_limit_openmp_spin). */
static bool compare_items(scan *s) {
    pthread_t threads[MAX_THREADS];
    int n = s->bytes > PARALLEL_BYTES && omp_get_level() == 0 ? omp_get_max_threads() - 1 : 0, started = 0;
    if (n > MAX_THREADS) n = MAX_THREADS;
    if (s->n_item == 0) return true;
    s->next = 0;
    while (started < n && pthread_create(&threads[started], NULL, compare_in_thread, s) == 0) started++;
    compare_in_thread(s);
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
    bool ok = s->next == s->n_item; /* else no thread had memory */
    s->n_item = 0;
    s->bytes = 0;
    return ok;
}

/* ---- all of it ---- */

static fd_code sum_up(const scan *s, int32_t at, fd_scanned *out, fd_error *err) {
    const fd_node_pair *np = &s->pairs[at];
    *out = (fd_scanned){0, 0, -1, false};
    for (int32_t pos = s->pos; pos < s->end && out->differs < 0; pos++) {
        result r = *result_of(s, at, pos);
        fd_look look;
        if (r == ASK) {
            FD_TRY(fd_trace_pair_look(s->traces, np, pos, &look, err));
            r = look.result == FD_LOOK_SAME ? SAME : look.result == FD_LOOK_DIFFERS ? DIFFERS : UNKNOWN;
        }
        out->n_unknown += r == UNKNOWN;
        out->n_seen += r != UNKNOWN;
        if (r != UNKNOWN && !out->read && np->same_shape)
            out->read = !fd_trace_pair_fingerprints(s->traces, np, pos, &look);
        if (r == DIFFERS) out->differs = pos;
    }
    return FD_OK;
}

static fd_code scan_all(scan *s, fd_scanned *out, fd_error *err) {
    bool ok = s->results && s->first;
    for (int32_t i = 0; ok && i < s->n_pair; i++) {
        const fd_node_pair *np = &s->pairs[i];
        atomic_init(&s->first[i], s->end);
        if (!np->same_shape) { /* the shape is the difference, at the first position */
            *result_of(s, i, s->pos) = DIFFERS;
            continue;
        }
        fd_placed a = fd_trace_place(s->traces->ref, np->ref), b = fd_trace_place(s->traces->cand, np->cand);
        if (a == FD_PLACED_FULL || b == FD_PLACED_FULL) {
            ok = compare_items(s); /* they need the lists of chunks before those are dropped */
            fd_trace_forget_places(s->traces->ref);
            fd_trace_forget_places(s->traces->cand);
            a = fd_trace_place(s->traces->ref, np->ref);
            b = fd_trace_place(s->traces->cand, np->cand);
        }
        ok = ok && plan_pair(s, i, a == FD_PLACED && b == FD_PLACED);
    }
    if (!ok || !compare_items(s))
        return fd_fail(err, FD_ERR_MEMORY, "comparison of %d tensors: out of memory", s->n_pair);
    for (int32_t i = 0; i < s->n_pair; i++) FD_TRY(sum_up(s, i, &out[i], err));
    return FD_OK;
}

static fd_code scan_own(fd_trace_pair *pair, int32_t first, int32_t n, int32_t pos, int32_t end, fd_scanned *out,
                        fd_error *err) {
    scan s = {.traces = pair, .pairs = pair->align.pairs + first, .n_pair = n, .pos = pos, .end = end};
    s.results = calloc((size_t)n * (size_t)(end - pos) + 1, 1);
    s.first = malloc((size_t)n * sizeof *s.first + 1);
    pthread_mutex_init(&s.lock, NULL);
    fd_code code = scan_all(&s, out, err);
    pthread_mutex_destroy(&s.lock);
    free(s.results);
    free(s.first);
    free(s.items);
    return code;
}

fd_code fd_scan(fd_trace_pair *pair, int32_t first, int32_t n, int32_t pos, int32_t end, fd_scanned *out,
                fd_error *err) {
    fd_peers *peers = pair->peers;
    if (!peers) return scan_own(pair, first, n, pos, end, out, err);
    int32_t own = (int32_t)fd_peers_first(peers, peers->rank, n),
            after = (int32_t)fd_peers_first(peers, peers->rank + 1, n);
    if (own < after) FD_TRY(scan_own(pair, first + own, after - own, pos, end, out + own, err));
    fd_shared_rows found = {.data = out, .n_block = 1, .n_item = n, .item_bytes = sizeof *out, .name = "compare"};
    return peers->gather(peers, &found, err);
}

int32_t fd_scan_batch(const fd_trace_pair *pair, int32_t n_pos) {
    size_t each = (size_t)n_pos * (1 + sizeof(item)) + sizeof(fd_scanned) + sizeof(int32_t);
    size_t n = pair->memory / 4 / each;
    return n < 1 ? 1 : n > INT32_MAX / 2 ? INT32_MAX / 2 : (int32_t)n;
}
