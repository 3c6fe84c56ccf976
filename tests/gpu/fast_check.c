#include "tests/gpu/fast_check.h"

#include <stdio.h>
#include <stdlib.h>

#include "numerics/contract.h"

void *room(size_t n, size_t size) {
    void *p = calloc(n ? n : 1, size);
    if (!p) {
        printf("FAIL: out of memory\n");
        exit(2);
    }
    return p;
}

void verdict(check *c, const char *what, bool holds) {
    printf("%-4s %s\n", holds ? "ok" : "FAIL", what);
    fflush(stdout);
    c->n_failed += !holds;
}

size_t n_logits(const check *c) {
    return (size_t)c->n_token * (size_t)c->graph->hparams.n_vocab;
}

bool same_bits(const char *what, const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (fd_bits32(a[i]) != fd_bits32(b[i])) {
            printf("  %s: element %zu: %.9g, expected %.9g\n", what, i, (double)b[i], (double)a[i]);
            return false;
        }
    return true;
}
