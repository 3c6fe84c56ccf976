/* matmul_gpu [TOKENS]: the tiled matrix products alone on shapes of llama-8B, F16, beside cuBLAS's sgemm on matrices of
 * the same shapes in f32: TFLOP/s, medians. The two kernels' results are compared bit by bit; a difference is exit
 * status 1. cuBLAS is opened at run time and left out where it is not there. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/gpu.h"
#include "bench/measure.h"
#include "bench/run.h"
#include "kernels/matmul/matmul.h"

enum { ROUNDS = 5, LAUNCHES = 5 };

typedef int sgemm_function(void *, int, int, int, int, int, const float *, const float *, int, const float *, int,
                           const float *, float *, int);

typedef struct bench {
    fd_launch_context queue;
    gpu_clock clock;
    void *cublas; /* handle; NULL: none */
    sgemm_function *sgemm;
} bench;

typedef struct product {
    fd_device_matrix weight; /* F16 */
    float *weight_f32, *x, *out;
    int32_t n_tok;
} product;

static void open_cublas(bench *b) {
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so"};
    void *library = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++) library = dlopen(names[i], RTLD_NOW);
    if (!library) return;
    int (*create)(void **), (*set_stream)(void *, cudaStream_t);
    *(void **)&create = dlsym(library, "cublasCreate_v2");
    *(void **)&set_stream = dlsym(library, "cublasSetStream_v2");
    *(void **)&b->sgemm = dlsym(library, "cublasSgemm_v2");
    if (!create || !set_stream || !b->sgemm || create(&b->cublas) != 0 || set_stream(b->cublas, b->queue.stream) != 0)
        b->cublas = NULL;
}

enum { SMALL, LARGE, CUBLAS, N_KERNEL };
static const char *const kernels[N_KERNEL] = {"small tile", "large tile", "cuBLAS sgemm"};

static void launch(const bench *b, const product *p, int kernel) {
    fd_error err = {0};
    fd_code code = FD_OK;
    const float one = 1.0f, zero = 0.0f;
    const int n_row = (int)p->weight.n_row, n_col = (int)p->weight.n_col;
    const fd_matmul in = fd_matmul_of(&p->weight, NULL, p->x, p->n_tok, p->out);
    if (kernel == SMALL) code = fd_launch_matmul_tile_small(&b->queue, &in, &err);
    if (kernel == LARGE) code = fd_launch_matmul_tile_large(&b->queue, &in, &err);
    must(code, &err);
    if (kernel == CUBLAS && b->sgemm(b->cublas, 1, 0, n_row, p->n_tok, n_col, &one, p->weight_f32, n_col, p->x, n_col,
                                     &zero, p->out, n_row) != 0) {
        fprintf(stderr, "matmul_gpu: cublasSgemm failed\n");
        exit(2);
    }
}

/* Median seconds of one launch. */
static double seconds(const bench *b, const product *p, int kernel) {
    double taken[ROUNDS];
    launch(b, p, kernel); /* warms up */
    for (int r = 0; r < ROUNDS; r++) {
        gpu_clock_start(&b->clock);
        for (int i = 0; i < LAUNCHES; i++) launch(b, p, kernel);
        taken[r] = gpu_clock_stop(&b->clock);
    }
    return median(taken, ROUNDS) / LAUNCHES;
}

static void *upload(const void *from, size_t bytes) {
    void *to;
    cuda(cudaMalloc(&to, bytes));
    cuda(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
    return to;
}

static uint64_t random_bits(void) {
    static uint64_t z = 7;
    z = z * 6364136223846793005u + 1442695040888963407u;
    return z >> 24;
}

/* Prints a row; the number of outputs in which the two kernels differ. */
static size_t measure(const bench *b, int64_t n_row, int64_t n_col, int32_t n_tok) {
    const size_t n_weight = (size_t)(n_row * n_col), n_x = (size_t)(n_tok * n_col), n_out = (size_t)(n_tok * n_row);
    uint16_t *half = malloc(sizeof *half * n_weight);
    float *single = malloc(sizeof *single * (n_weight > n_x ? n_weight : n_x)), *out[2];
    out[0] = malloc(sizeof **out * n_out), out[1] = malloc(sizeof **out * n_out);
    if (!half || !single || !out[0] || !out[1]) exit(2);
    product p = {.n_tok = n_tok};
    /* Halves of 2^-7 to 2^-2, either sign; floats of -2 to 2. */
    for (size_t i = 0; i < n_weight; i++)
        half[i] = (uint16_t)((random_bits() & 0x83ff) | (0x2000 + random_bits() % 6 * 0x400));
    p.weight = (fd_device_matrix){.data = upload(half, sizeof *half * n_weight),
                                  .dtype = FD_F16,
                                  .n_row = n_row,
                                  .n_col = n_col,
                                  .row_bytes = fd_packed_row_bytes(FD_F16, n_col),
                                  .scale_offset = fd_packed_scale_offset(FD_F16, n_col)};
    for (size_t i = 0; i < n_weight; i++) single[i] = (float)(random_bits() & 0xffffff) * 0x1p-22f - 2.0f;
    p.weight_f32 = upload(single, sizeof *single * n_weight);
    for (size_t i = 0; i < n_x; i++) single[i] = (float)(random_bits() & 0xffffff) * 0x1p-22f - 2.0f;
    p.x = upload(single, sizeof *single * n_x);
    cuda(cudaMalloc((void **)&p.out, sizeof *p.out * n_out));

    printf("%6lld x %-6lld", (long long)n_row, (long long)n_col);
    for (int kernel = 0; kernel < N_KERNEL; kernel++) {
        if (kernel == CUBLAS && !b->cublas) {
            printf(" %14s", "–");
            continue;
        }
        cuda(cudaMemset(p.out, 0xff, sizeof *p.out * n_out));
        printf(" %14.1f", 2e-12 * (double)n_weight * n_tok / seconds(b, &p, kernel));
        if (kernel != CUBLAS) cuda(cudaMemcpy(out[kernel], p.out, sizeof *p.out * n_out, cudaMemcpyDeviceToHost));
    }
    size_t differing = 0;
    for (size_t i = 0; i < n_out; i++) differing += memcmp(&out[0][i], &out[1][i], sizeof(float)) != 0;
    printf(" %14zu\n", differing);
    cuda(cudaFree((void *)p.weight.data)), cuda(cudaFree(p.weight_f32)), cuda(cudaFree(p.x)), cuda(cudaFree(p.out));
    free(half), free(single), free(out[0]), free(out[1]);
    return differing;
}

int main(int argc, char **argv) {
    static const int64_t shapes[][2] = {{4096, 4096}, {1024, 4096}, {14336, 4096}, {4096, 14336}, {896, 896}};
    const int n_tok = argc > 1 ? atoi(argv[1]) : 512;
    char name[256];
    bench b = {0};
    if (n_tok < 1) {
        fprintf(stderr, "usage: matmul_gpu [TOKENS]\n");
        return 2;
    }
    b.queue = gpu_or_skip(name);
    b.clock = gpu_clock_on(b.queue.stream);
    open_cublas(&b);
    printf("%s, %d tokens, TFLOP/s\n%15s", name, n_tok, "");
    for (int kernel = 0; kernel < N_KERNEL; kernel++) printf(" %14s", kernels[kernel]);
    printf(" %14s\n", "differing");
    size_t differing = 0;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        differing += measure(&b, shapes[s][0], shapes[s][1], n_tok);
    return differing > 0;
}
