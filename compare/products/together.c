#include "compare/products/together.h"

#include <stdlib.h>
#include <string.h>

#include "compare/products/products.h"

enum { LEAST_WORK = 1 << 20 }; /* multiplications: below, a process is through before the others' rows have come */

static bool takes(void *user, const fd_product *p) {
    const fd_products_peers *t = user;
    return p->n_row >= t->peers->n && p->n_row * p->weight->n_col * p->n_pos >= LEAST_WORK;
}

/* This process's rows of the product, counted from its first. */
static void share_of(const fd_peers *peers, const fd_product *p, int64_t *first, int64_t *n) {
    *first = fd_peers_first(peers, peers->rank, p->n_row);
    *n = fd_peers_first(peers, peers->rank + 1, p->n_row) - *first;
}

/* own [n_pos, n] to its place in `all` [n_pos, n_row], and the other processes' beside it. */
static fd_code gather(fd_peers *peers, const fd_product *p, size_t real, const void *own, void *all, fd_error *err) {
    fd_shared_rows rows = {
        .data = all, .n_block = p->n_pos, .n_item = p->n_row, .item_bytes = real, .name = p->weight->name};
    int64_t first, n;
    share_of(peers, p, &first, &n);
    for (int64_t pos = 0; pos < p->n_pos; pos++)
        memcpy((char *)all + (size_t)(pos * p->n_row + first) * real, (const char *)own + (size_t)(pos * n) * real,
               (size_t)n * real);
    return peers->gather(peers, &rows, err);
}

/* Rows [first, first + n) of the weight. */
static fd_weight rows_of(const fd_weight *whole, int64_t first, int64_t n) {
    int64_t row_bytes = fd_dtype_row_bytes(whole->dtype, whole->n_col);
    fd_weight w = *whole;
    w.data = (const char *)w.data + first * row_bytes;
    w.n_row = n;
    w.bytes = (uint64_t)(n * row_bytes);
    return w;
}

static fd_code multiply(void *user, fd_numerics numerics, const fd_product *p, const void *x, void *y, fd_error *err) {
    fd_products_peers *t = user;
    size_t real = numerics == FD_NUMERICS_F64 ? sizeof(double) : sizeof(float);
    int64_t first, n;
    share_of(t->peers, p, &first, &n);
    fd_weight own = rows_of(p->weight, p->first_row + first, n);
    fd_node node = {.op = FD_OP_MATMUL, .n_dim = 1, .shape = {(int32_t)n}, .input = {-1, -1}};
    fd_op_args args = {.node = &node, .n_pos = (int32_t)p->n_pos, .in = {x}, .weight = {&own}};
    args.out = malloc((size_t)(p->n_pos * n) * real);
    if (!args.out) return fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", p->weight->name);
    t->op(numerics, &args);
    fd_code code = gather(t->peers, p, real, args.out, y, err);
    free(args.out);
    return code;
}

static fd_code weigh(void *user, const fd_product *p, const double *x, const double *v, double *size, double *square,
                     fd_error *err) {
    fd_products_peers *t = user;
    fd_product own = *p;
    int64_t first;
    share_of(t->peers, p, &first, &own.n_row);
    own.first_row += first;
    double *sums = malloc(2 * sizeof *sums * (size_t)(own.n_row * p->n_pos)), *squares = sums + own.n_row * p->n_pos;
    if (!sums) return fd_fail(err, FD_ERR_MEMORY, "%s: bounds: out of memory", p->weight->name);
    fd_code code = fd_products_weigh(NULL, NULL, &own, x, v, sums, squares, err);
    if (code == FD_OK) code = gather(t->peers, p, sizeof *sums, sums, size, err);
    if (code == FD_OK) code = gather(t->peers, p, sizeof *sums, squares, square, err);
    free(sums);
    return code;
}

void fd_products_together(fd_peers *peers, fd_op_fn op, fd_products_peers *out) {
    *out = (fd_products_peers){.products = {takes, multiply, weigh, out, true}, .peers = peers, .op = op};
}
