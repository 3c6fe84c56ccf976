/* Kernels that do several nodes of a prompt at once, against those that do one each (and are checked by themselves). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/elementwise/activation.h"
#include "kernels/attention/kv_cache.h"
#include "kernels/matmul/matmul.h"
#include "kernels/elementwise/norm.h"
#include "kernels/elementwise/rope_kv_write.h"
#include "model/graph.h"
#include "tests/gpu/fused_case.h"
#include "tests/gpu/kernel_check.h"

/* `got` is as `wanted`, both on the device. */
static void expect_same(gpu_test *test, const char *name, const float *wanted, const float *got, size_t n) {
    float *a = gpu_host(test, sizeof *a * n), *b = gpu_host(test, sizeof *b * n);
    gpu_download(test, wanted, a, n);
    gpu_download(test, got, b, n);
    gpu_expect_equal(test, name, a, b, n);
}

/* ---- products of one input ---- */

static void check_parts(gpu_test *test, uint32_t dtype, const int64_t *n_row, int n_part, int64_t n_col,
                        int32_t n_tok) {
    static const char *const kernels[] = {"matmul", "large_tile", "small_tile"};
    fd_code (*const launch[])(const fd_launch_context *, const fd_matmul *, fd_error *) = {
        fd_launch_matmul, fd_launch_matmul_tile_large, fd_launch_matmul_tile_small};
    char name[120];
    fd_error err = {0};
    float *x = gpu_random_floats(test, (size_t)(n_tok * n_col));
    fd_matmul in = {.x = x, .n_tok = n_tok, .n_part = n_part};
    for (int p = 0; p < n_part; p++) {
        float *w;
        void *file = gpu_random_weight(test, dtype, n_row[p], n_col, &w);
        in.part[p].weight = gpu_upload_weight(test, dtype, n_row[p], n_col, file);
        in.part[p].bias = p == 1 ? NULL : gpu_random_floats(test, (size_t)n_row[p]);
    }
    for (int k = 0; k < 3; k++) {
        float *alone[FD_MATMUL_PARTS];
        for (int p = 0; p < n_part; p++) {
            in.part[p].out = gpu_poisoned(test, (size_t)(n_tok * n_row[p]));
            alone[p] = gpu_poisoned(test, (size_t)(n_tok * n_row[p]));
            fd_matmul one = fd_matmul_of(&in.part[p].weight, in.part[p].bias, x, n_tok, alone[p]);
            gpu_must(fd_launch_matmul_tile_small(&test->queue, &one, &err), &err);
        }
        gpu_must(launch[k](&test->queue, &in, &err), &err);
        for (int p = 0; p < n_part; p++) {
            snprintf(name, sizeof name, "%s_%s_part_%d_of_%d_%lldx%lld_tokens_%d", kernels[k],
                     fd_dtype_get(dtype)->name, p, n_part, (long long)n_row[p], (long long)n_col, n_tok);
            expect_same(test, name, alone[p], in.part[p].out, (size_t)(n_tok * n_row[p]));
        }
    }
    in.part[n_part - 1].weight.n_col += 64;
    gpu_expect(test, "parts_of_unequal_columns_are_refused",
               n_part == 1 || fd_launch_matmul_tile(&test->queue, &in, &err) == FD_ERR_INPUT);
    gpu_release(test);
}

/* ---- matrix-vector for a few token rows ---- */

/* Several token rows at once: each gets what it gets alone. With `rows` a lane, of eight partials each, on as few
 * multiprocessors as give a warp several tasks; 0: as chosen. */
static void check_tokens(gpu_test *test, uint32_t dtype, const fused_case *f, int32_t n_tok, int32_t rows) {
    enum { TOKENS = 8 };
    const fd_matvec_form form = {.partials = 8, .rows = rows, .warps = 8, .blocks = 1, .stages = 2};
    fd_launch_context queue = test->queue;
    if (rows) queue.n_sm = 2;
    char name[160], row[40];
    fd_error err = {0};
    size_t most = 0;
    for (int p = 0; p < f->n_part; p++) most = (size_t)f->n_row[p] > most ? (size_t)f->n_row[p] : most;
    float *expected = gpu_floats(test, most), *found = gpu_floats(test, TOKENS * most);
    float *dx = gpu_random_floats(test, (size_t)(TOKENS * f->n_col)),
          *dnorm = gpu_random_floats(test, (size_t)f->n_col);
    float *dresidual = gpu_random_floats(test, TOKENS * most), *dbias = gpu_random_floats(test, most),
          *alone = gpu_poisoned(test, most);
    fd_matvec in = {.x = dx, .n_tok = n_tok, .n_part = f->n_part, .silu_pair = f->silu, .norm_eps = 1e-5f};
    in.norm_weight = f->norm ? dnorm : NULL;
    for (int p = 0; p < f->n_part; p++) {
        float *w;
        (void)fused_part(test, dtype, f, p, dbias, dresidual, &in, &w);
    }
    gpu_must(fd_launch_matvec(&queue, &in, rows ? &form : NULL, &err), &err);
    for (int p = 0; p < (f->silu ? 1 : f->n_part); p++) {
        size_t n_row = (size_t)f->n_row[p];
        gpu_download(test, in.part[p].out, found, n_row * (size_t)n_tok);
        for (int32_t t = 0; t < n_tok; t++) {
            fd_matvec one = in;
            one.n_tok = 1;
            one.x = dx + t * f->n_col;
            for (int i = 0; i < f->n_part; i++) {
                one.part[i].out = alone;
                one.part[i].residual = f->residual ? dresidual + t * f->n_row[i] : NULL;
            }
            if (!f->silu) one.part[0] = one.part[p], one.n_part = 1;
            gpu_must(fd_launch_matvec(&test->queue, &one, NULL, &err), &err);
            gpu_download(test, alone, expected, n_row);
            snprintf(row, sizeof row, "_row_%d_of_%d_by_%d", t, n_tok, rows);
            fused_name(name, sizeof name, "tokens", dtype, f, p, row);
            gpu_expect_equal(test, name, expected, found + (size_t)t * n_row, n_row);
        }
    }
    gpu_release(test);
}

/* ---- ADD and the norm of the sum ---- */

static void check_add_norm(gpu_test *test, int32_t n_tok, int64_t n) {
    char name[80];
    fd_error err = {0};
    size_t count = (size_t)(n_tok * n);
    float *a = gpu_random_floats(test, count), *b = gpu_random_floats(test, count),
          *w = gpu_random_floats(test, (size_t)n);
    float *sum = gpu_poisoned(test, count), *out = gpu_poisoned(test, count);
    float *sum_alone = gpu_poisoned(test, count), *out_alone = gpu_poisoned(test, count);
    gpu_must(fd_launch_add(&test->queue, a, b, (int64_t)count, sum_alone, &err), &err);
    fd_rms_norm of_sum = {.x = sum_alone, .weight = w, .eps = 1e-6f, .n_tok = n_tok, .n = n}, of_a = of_sum;
    of_a.x = a;
    gpu_must(fd_launch_rms_norm(&test->queue, &of_sum, out_alone, &err), &err);
    gpu_must(fd_launch_add_rms_norm(&test->queue, &of_a, b, sum, out, &err), &err);
    snprintf(name, sizeof name, "add_rms_norm_sum_%d_rows_of_%lld", n_tok, (long long)n);
    expect_same(test, name, sum_alone, sum, count);
    snprintf(name, sizeof name, "add_rms_norm_%d_rows_of_%lld", n_tok, (long long)n);
    expect_same(test, name, out_alone, out, count);
    gpu_release(test);
}

/* ---- RoPE of q and k with the cache writes ---- */

static void check_turn(gpu_test *test, int32_t n_head, int32_t n_head_kv, int32_t head_dim, int32_t n_rot,
                       bool interleaved, int32_t n_tok, int32_t pos0) {
    enum { N_CTX = 40 };
    static float cosine[N_CTX * 64], sine[N_CTX * 64];
    char name[160], what[100];
    fd_error err = {0};
    fd_rope rope = {.n_rot = n_rot, .base = 10000.0, .factor = 1.0};
    fd_rope_table(&rope, NULL, 0, N_CTX, cosine, sine);
    size_t n_q = (size_t)(n_tok * n_head * head_dim), n_k = (size_t)(n_tok * n_head_kv * head_dim);
    size_t n_cache = (size_t)(N_CTX * n_head_kv * head_dim);
    float *dpos = gpu_upload(test, &pos0, sizeof pos0);
    float *q = gpu_random_floats(test, n_q), *k = gpu_random_floats(test, n_k), *v = gpu_random_floats(test, n_k);
    float *q_alone = gpu_poisoned(test, n_q), *k_alone = gpu_poisoned(test, n_k),
          *ck_alone = gpu_poisoned(test, n_cache), *cv_alone = gpu_poisoned(test, n_cache);
    fd_rope_kv_write in = {
        .n_tok = n_tok, .n_ctx = N_CTX, .pos0 = (const int32_t *)(const void *)dpos, .q = q, .k = k, .v = v};
    in.q_rope = (fd_rope_shape){n_head,
                                head_dim,
                                n_rot,
                                interleaved,
                                gpu_upload(test, cosine, sizeof cosine),
                                gpu_upload(test, sine, sizeof sine)};
    in.k_rope = in.q_rope, in.k_rope.n_head = n_head_kv;
    in.q_out = gpu_poisoned(test, n_q), in.k_out = gpu_poisoned(test, n_k);
    in.cache_k = gpu_poisoned(test, n_cache), in.cache_v = gpu_poisoned(test, n_cache);
    gpu_must(fd_launch_rope(&test->queue, &in.q_rope, q, n_tok, in.pos0, q_alone, &err), &err);
    gpu_must(fd_launch_rope(&test->queue, &in.k_rope, k, n_tok, in.pos0, k_alone, &err), &err);
    const int64_t width = n_head_kv * head_dim;
    fd_kv_write write_k = {k_alone, n_tok, width, in.pos0, 0, false, ck_alone, N_CTX}, write_v = write_k;
    write_v.x = v, write_v.cache = cv_alone;
    gpu_must(fd_launch_kv_write(&test->queue, &write_k, &err), &err);
    gpu_must(fd_launch_kv_write(&test->queue, &write_v, &err), &err);
    gpu_must(fd_launch_rope_kv_write(&test->queue, &in, &err), &err);
    snprintf(what, sizeof what, "%d_heads_over_%d_of_%d_rot_%d%s_%d_rows_from_%d", n_head, n_head_kv, head_dim, n_rot,
             interleaved ? "_interleaved" : "", n_tok, pos0);
    snprintf(name, sizeof name, "turn_q_%s", what), expect_same(test, name, q_alone, in.q_out, n_q);
    snprintf(name, sizeof name, "turn_k_%s", what), expect_same(test, name, k_alone, in.k_out, n_k);
    snprintf(name, sizeof name, "turn_cache_k_%s", what), expect_same(test, name, ck_alone, in.cache_k, n_cache);
    snprintf(name, sizeof name, "turn_cache_v_%s", what), expect_same(test, name, cv_alone, in.cache_v, n_cache);
    gpu_release(test);
}

void check_many_rows(gpu_test *test) {
    static const uint32_t types[] = {FD_F16, FD_Q8_0, FD_Q4_K};
    static const int64_t three[] = {40, 7, 33}, two[] = {21, 64};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        check_parts(test, types[i], three, 3, 512, 17);
        check_parts(test, types[i], three, 3, 256, 3);
        check_parts(test, types[i], two, 2, 256, 545);
    }
    static const fused_case products[] = {
        {3, {96, 33, 7}, 256, true, false, false}, {2, {70, 5}, 768, false, false, false},
        {2, {77, 77}, 512, true, true, false},     {1, {301}, 256, true, false, true},
        {2, {2500, 2500}, 256, true, true, false}, {1, {40}, 4096, true, false, false},
    };
    static const fused_case wide = {1, {37}, 14336, true, false, true}; /* four rows of x do not fit */
    static const fused_case chunks[] = {{1, {150}, 14336, false, false, true}, {2, {70, 70}, 9472, false, true, false}};
    for (int i = 0; i < GPU_LAYOUTS; i++) {
        for (size_t k = 0; k < sizeof products / sizeof *products; k++)
            for (int32_t n_tok = 2; n_tok <= 8; n_tok += n_tok < 5 ? 1 : 3)
                for (int32_t rows = 0; rows <= 2; rows++)
                    check_tokens(test, gpu_weight_types[i], &products[k], n_tok, rows);
        for (int32_t n_tok = 2; n_tok <= 7; n_tok += 5) check_tokens(test, gpu_weight_types[i], &wide, n_tok, 0);
        for (size_t k = 0; k < sizeof chunks / sizeof *chunks; k++)
            for (int32_t n_tok = 3; n_tok <= 8; n_tok += 5)
                for (int32_t rows = 1; rows <= 2; rows++)
                    check_tokens(test, gpu_weight_types[i], &chunks[k], n_tok, rows);
    }
    check_add_norm(test, 5, 896);
    check_add_norm(test, 3, 77);
    check_add_norm(test, 2, 13000);
    for (int interleaved = 0; interleaved < 2; interleaved++) {
        check_turn(test, 8, 2, 64, 64, interleaved, 5, 17);
        check_turn(test, 3, 3, 80, 20, interleaved, 7, 33);
    }
}
