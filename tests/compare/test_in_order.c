/* Jobs on several threads are taken in order, and none behind the last (compare/replay/in_order.h). */
#include <criterion/criterion.h>
#include <omp.h>
#include <stdatomic.h>
#include <unistd.h>

#include "compare/replay/in_order.h"

enum { N_JOB = 12, SEVERAL = 4 };

typedef struct table {
    atomic_int n_run;
    bool slow;                    /* the earlier the job, the longer it takes: threads end in another order */
    int32_t last, fails, skipped; /* -1: none */
    int32_t taken[N_JOB], n_taken;
} table;

static bool is_needless(void *user, int32_t i) {
    return i == ((table *)user)->skipped;
}

static fd_code run(void *user, int32_t i, fd_error *err) {
    table *t = user;
    atomic_fetch_add(&t->n_run, 1);
    if (t->slow) usleep((useconds_t)(N_JOB - i) * 500);
    return i == t->fails ? fd_fail(err, FD_ERR_INPUT, "job %d", i) : FD_OK;
}

static bool take(void *user, int32_t i) {
    table *t = user;
    t->taken[t->n_taken++] = i;
    return i != t->last;
}

static const struct {
    const char *what;
    int32_t begin, last, fails, skipped, n_taken, n_run; /* n_run -1: threads may have run later ones for nothing */
    fd_code code;
} cases[] = {
    {"all", 0, -1, -1, -1, N_JOB, N_JOB, FD_OK},
    {"from the third", 2, -1, -1, -1, N_JOB - 2, N_JOB - 2, FD_OK},
    {"one is the last", 0, 4, -1, -1, 5, -1, FD_OK},
    {"one is needless, and taken", 0, -1, -1, 3, N_JOB, N_JOB - 1, FD_OK},
    {"one fails", 0, -1, 5, -1, 5, -1, FD_ERR_INPUT},
    {"one fails behind the last", 0, 4, 5, -1, 5, -1, FD_OK},
    {"there are none", N_JOB, -1, -1, -1, 0, 0, FD_OK},
};

Test(in_order, jobs_are_taken_in_order_on_any_number_of_threads) {
    static const int threads[] = {1, 2, SEVERAL, 2 * N_JOB};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (size_t n = 0; n < sizeof threads / sizeof *threads; n++) {
            table t = {.slow = threads[n] == SEVERAL,
                       .last = cases[c].last,
                       .fails = cases[c].fails,
                       .skipped = cases[c].skipped};
            fd_jobs jobs = {cases[c].begin, N_JOB, 0, &t, is_needless, run, take};
            fd_error err = {0};
            omp_set_num_threads(threads[n]);
            cr_assert_eq(fd_run_in_order(&jobs, &err), cases[c].code, "%s, %d threads", cases[c].what, threads[n]);
            cr_assert_eq(t.n_taken, cases[c].n_taken, "%s, %d threads: %d taken", cases[c].what, threads[n], t.n_taken);
            for (int32_t i = 0; i < t.n_taken; i++) cr_assert_eq(t.taken[i], cases[c].begin + i, "%s", cases[c].what);
            if (cases[c].n_run >= 0) cr_assert_eq((int)t.n_run, cases[c].n_run, "%s", cases[c].what);
            if (threads[n] == 1) cr_assert_leq((int)t.n_run, t.n_taken + (cases[c].code != FD_OK), "%s", cases[c].what);
            if (cases[c].code != FD_OK) cr_assert_str_eq(err.message, "job 5");
        }
}
