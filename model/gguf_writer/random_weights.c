#include "model/gguf_writer/random_weights.h"

#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "model/gguf_writer/block_scales.h"
#include "model/gguf/quant.h"

enum { MAX_THREADS = 64 };

/* SplitMix64 (Steele, Lea, Flood 2014) as a function of the position in the stream. */
static inline uint64_t random_at(uint64_t stream, uint64_t at) {
    uint64_t z = stream + (at + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* FNV-1a of the name, mixed with the seed. */
uint64_t random_stream(uint64_t seed, const char *name) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *name; name++) hash = (hash ^ (uint8_t)*name) * 0x100000001b3u;
    return random_at(hash, seed);
}

/* The sum of four 16-bit uniform numbers is normal enough (it ends at 3.46 deviations) and costs one random number. */
static void fill_row(const random_weights *w, int64_t row, float *to) {
    /* Four uniform integers of 0 … 65535: mean 2·65535, variance 4·(65536² − 1)/12. */
    const float mean_of_sum = 131070.0f, scale = w->deviation / 37837.2265f;
    const uint64_t first = (uint64_t)(row * w->columns);
    for (int64_t i = 0; i < w->columns; i++) {
        const uint64_t r = random_at(w->stream, first + (uint64_t)i);
        const int32_t sum = (int32_t)((r & 0xffff) + (r >> 16 & 0xffff) + (r >> 32 & 0xffff) + (r >> 48));
        to[i] = w->mean + ((float)sum - mean_of_sum) * scale;
    }
}

typedef struct share { /* one thread's rows of a call to fill */
    const random_weights *w;
    int64_t row0, n_row;
    uint8_t *to;
    bool failed;
} share;

/* A row of blocks whose quants are random, for types that nothing here quantises to. */
static void random_row(const random_weights *w, int64_t row, uint8_t *to) {
    const int64_t row_bytes = fd_dtype_row_bytes(w->dtype, w->columns), block = fd_dtype_get(w->dtype)->block_bytes;
    for (int64_t i = 0; i < row_bytes; i += 2) {
        const uint64_t r = random_at(w->stream, (uint64_t)(row * row_bytes + i));
        memcpy(to + i, &r, row_bytes - i < 2 ? 1 : 2);
    }
    blocks_set_deviation(w->dtype, to, row_bytes / block, w->deviation);
}

static void *fill_share(void *argument) {
    share *s = argument;
    float *values = malloc((size_t)s->w->columns * sizeof *values);
    s->failed = !values;
    const int64_t row_bytes = fd_dtype_row_bytes(s->w->dtype, s->w->columns);
    for (int64_t row = 0; row < s->n_row && values; row++) {
        if (!fd_can_quantize(s->w->dtype) || fd_has_codes(s->w->dtype)) { /* of these scales and codes are drawn */
            random_row(s->w, s->row0 + row, s->to + row * row_bytes);
            continue;
        }
        fill_row(s->w, s->row0 + row, values);
        fd_quantize_row(s->w->dtype, values, s->to + row * row_bytes, s->w->columns);
    }
    free(values);
    return NULL;
}

static int n_cpu(void) {
    cpu_set_t cpus;
    int n = sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
    return n < MAX_THREADS ? n : MAX_THREADS;
}

/* Threads made anew for each piece of some megabytes: that costs a hundredth of the piece, and none of them spins while
 * the piece is written to the file, as OpenMP's would (on a busy machine that made this program three times slower). */
fd_code random_weights_fill(void *user, int64_t row0, int64_t n_row, void *to, fd_error *err) {
    const random_weights *w = user;
    const int64_t row_bytes = fd_dtype_row_bytes(w->dtype, w->columns), few = (1 << 16) / row_bytes + 1;
    int64_t wanted = n_cpu();
    if (wanted > n_row / few) wanted = n_row / few > 1 ? n_row / few : 1;
    const int n = (int)wanted;
    share shares[MAX_THREADS];
    pthread_t threads[MAX_THREADS];
    bool started[MAX_THREADS] = {false};
    for (int i = 0; i < n; i++) {
        const int64_t first = n_row * i / n, end = n_row * (i + 1) / n;
        shares[i] = (share){w, row0 + first, end - first, (uint8_t *)to + first * row_bytes, false};
        started[i] = i > 0 && pthread_create(&threads[i], NULL, fill_share, &shares[i]) == 0;
    }
    bool failed = false;
    for (int i = 0; i < n; i++) {
        if (started[i])
            pthread_join(threads[i], NULL);
        else
            fill_share(&shares[i]); /* the first, and any that no thread was to be had for */
        failed |= shares[i].failed;
    }
    return failed ? fd_fail(err, FD_ERR_MEMORY, "out of memory for rows of %" PRId64 " values", w->columns) : FD_OK;
}
