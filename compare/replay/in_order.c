#include "compare/replay/in_order.h"

#include <omp.h>
#include <stdlib.h>

typedef struct outcome {
    bool ran;
    fd_code code;
    fd_error err;
} outcome;

fd_code fd_run_in_order(const fd_jobs *jobs, fd_error *err) {
    int32_t n = jobs->end - jobs->begin, next = jobs->begin, end = jobs->end; /* to be taken; one past the last */
    int n_thread = omp_get_max_threads();
    if (jobs->most_threads > 0 && n_thread > jobs->most_threads) n_thread = jobs->most_threads;
    fd_code code = FD_OK;
    outcome *of = calloc((size_t)n + 1, sizeof *of);
    if (!of) return fd_fail(err, FD_ERR_MEMORY, "%d jobs: out of memory", n);
#pragma omp parallel for schedule(dynamic, 1) num_threads(n_thread) if (n_thread <= n)
    for (int32_t i = jobs->begin; i < jobs->end; i++) {
        outcome *own = &of[i - jobs->begin];
        bool needless;
#pragma omp critical(fd_in_order)
        needless = i >= end || jobs->needless(jobs->user, i);
        if (!needless) own->code = jobs->run(jobs->user, i, &own->err);
#pragma omp critical(fd_in_order)
        {
            own->ran = true;
            for (; next < end && of[next - jobs->begin].ran; next++) {
                const outcome *taken = &of[next - jobs->begin];
                code = taken->code;
                if (code != FD_OK) *err = taken->err;
                if (code != FD_OK || !jobs->take(jobs->user, next)) end = next + 1;
            }
        }
    }
    free(of);
    return code;
}
