/* matvec_gpu [TYPE [many|q8act|beside|few [ROWSxCOLUMNS]]]: the matrix kernels alone, on shapes of real models: GB/s of
 * weights for one token row with each mapping to the device (fd_matvec_form), and with `many` for eight rows, and
 * TFLOP/s for 512, beside a device-to-device copy of the same run. `q8act`: those of q8act (fd_q8_form) for one row
 * instead. `beside`: the chosen ones of exact and of q8act, both without a norm and with one. `few`: the products of
 * 8, 16, 32 and 64 rows that fast has for F16 and q8act for other types, beside exact's of 8.
 *
 * Launches go round over copies of the matrix that together exceed L2, twenty of them in one CUDA graph as in a decode
 * step. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf_writer/block_scales.h"
#include "bench/gpu.h"
#include "bench/measure.h"
#include "bench/run.h"
#include "engine/pack_weight.h"
#include "kernels/int8/q8.h"
#include "kernels/matmul/few_f16.h"
#include "kernels/matmul/matmul.h"

enum { ROUNDS = 5, LAUNCHES = 20, MANY = 512, TOTAL = 256 << 20 };

static const fd_matvec_form forms[] = {
    {8, 1, 8, 1, 0, false},  {8, 2, 8, 1, 0, false},  {2, 1, 16, 1, 2, false}, {2, 2, 8, 1, 2, false},
    {2, 2, 16, 1, 2, false}, {2, 1, 16, 1, 2, true},  {2, 2, 16, 1, 2, true},  {8, 1, 8, 1, 2, false},
    {8, 1, 12, 1, 2, false}, {8, 1, 16, 1, 2, false}, {8, 2, 8, 1, 2, false},  {8, 2, 12, 1, 2, false},
    {8, 2, 16, 1, 2, false}, {8, 2, 8, 2, 2, false},
};
enum { N_FORM = sizeof forms / sizeof *forms };

static const fd_q8_form q8_forms[] = {
    {16, 1, 2, 1}, {16, 1, 3, 1}, {16, 1, 4, 1}, {12, 1, 4, 1}, {8, 2, 2, 1},  {16, 1, 2, 2},
    {16, 1, 4, 2}, {16, 1, 4, 3}, {16, 1, 2, 4}, {16, 1, 4, 4}, {16, 1, 4, 8}, {8, 2, 3, 4},
};
enum { N_Q8_FORM = sizeof q8_forms / sizeof *q8_forms };

static const int32_t few_rows[] = {16, 32, 48, 64, 112, 128, 192, 224};

typedef struct bench {
    fd_launch_context queue;
    gpu_clock clock;
} bench;

typedef struct job {
    const bench *b;
    fd_device_matrix matrix; /* data: the first copy */
    int64_t copy_bytes;
    int n_copy, n_tok;
    const fd_matvec_form *form; /* NULL: the chosen one */
    const fd_q8_form *q8_form;
    bool q8act, norm;
    const float *x;
    float *out;
    const fd_q8_rows *blocks; /* of several rows; NULL: floats */
    void *halves;             /* memory for those of several rows; NULL: not by halves */
    int32_t rows;             /* of weights, of a thread block; 0: the chosen number */
} job;

static fd_code try_launch(const job *j, int i, fd_error *err) {
    fd_launch_context queue = j->b->queue;
    queue.overlap = i > 0 && (j->n_tok == 1 || j->blocks || j->halves);
    fd_device_matrix matrix = j->matrix;
    matrix.data = (const char *)j->matrix.data + j->copy_bytes * (i % j->n_copy);
    if (j->blocks) {
        fd_q8_matmul product = {fd_matmul_of(&matrix, NULL, NULL, j->n_tok, j->out), *j->blocks, 0};
        return fd_launch_q8_matmul_few(&queue, &product, j->rows, err);
    }
    fd_matmul tiled = fd_matmul_of(&matrix, NULL, j->x, j->n_tok, j->out);
    if (j->halves) return fd_launch_few_f16(&queue, &tiled, j->halves, j->rows, err);
    if (j->n_tok > FD_MATVEC_TOKENS) return fd_launch_matmul_tile(&queue, &tiled, err);
    fd_matvec in = {.x = j->x, .n_tok = j->n_tok, .n_part = 1, .part[0] = {.weight = matrix, .out = j->out}};
    if (j->norm) in.norm_weight = j->x, in.norm_eps = 1e-5f;
    return j->q8act ? fd_launch_q8_matvec(&queue, &in, j->q8_form, err) : fd_launch_matvec(&queue, &in, j->form, err);
}

/* Not every form suits every shape. */
static bool runs(const job *j) {
    fd_error ignored = {0};
    return try_launch(j, 0, &ignored) == FD_OK;
}

static void launch(const job *j, int i) {
    fd_error err = {0};
    must(try_launch(j, i, &err), &err);
}

/* Median seconds of one launch. */
static double seconds(const job *j, int n) {
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    double taken[ROUNDS];
    cudaStream_t stream = j->b->queue.stream;
    launch(j, 0); /* loads the kernel: capturing must not */
    cuda(cudaStreamSynchronize(stream));
    cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < n; i++) launch(j, i);
    cuda(cudaStreamEndCapture(stream, &graph));
    cuda(cudaGraphInstantiate(&replay, graph, 0));
    for (int r = -1; r < ROUNDS; r++) {
        gpu_clock_start(&j->b->clock);
        cuda(cudaGraphLaunch(replay, stream));
        taken[r < 0 ? 0 : r] = gpu_clock_stop(&j->b->clock);
    }
    cuda(cudaGraphExecDestroy(replay));
    cuda(cudaGraphDestroy(graph));
    return median(taken, ROUNDS) / n;
}

/* Random bits, but scales and floats of usual size: neither NaN nor subnormal. */
static void fill(uint32_t dtype, uint8_t *rows, size_t bytes) {
    uint64_t z = 1;
    for (size_t i = 0; i < bytes; i++) {
        z = z * 6364136223846793005u + 1442695040888963407u;
        rows[i] = (uint8_t)(z >> 56);
    }
    const uint16_t d = dtype == FD_BF16 ? 0x3c00 : 0x2400; /* 2^-7 or 2^-6 */
    if (dtype == FD_F16 || dtype == FD_BF16)
        for (size_t i = 0; i + 2 <= bytes; i += 2) memcpy(rows + i, &d, 2), rows[i] = (uint8_t)(i * 37);
    if (dtype == FD_F32)
        for (size_t i = 0; i + 4 <= bytes; i += 4) rows[i + 2] &= 0x7f, rows[i + 3] = 0x3c;
    const size_t block = (size_t)fd_dtype_get(dtype)->block_bytes;
    if (fd_dtype_get(dtype)->is_quantised)
        for (size_t i = 0; i < bytes; i += block) block_set_scales(dtype, rows + i, 0x1p-6f, 0x1p-6f);
}

static double copy_rate(const bench *b, void *from, void *to) {
    double rates[ROUNDS];
    for (int r = -1; r < ROUNDS; r++) rates[r < 0 ? 0 : r] = gpu_copy_rate(&b->clock, from, to, TOTAL, 8);
    return median(rates, ROUNDS);
}

typedef enum measurement { FORMS, MANY_ROWS, Q8ACT, BESIDE, FEW } measurement;

/* GB/s of 8, 16, 32 and 64 rows with each number of rows of weights that a thread block can have. Blocks of int8 are
 * made before, halves of binary16 in each launch. */
static void measure_few(job *j, double gigabytes) {
    const bool halves = j->matrix.dtype == FD_F16;
    const int64_t n_col = j->matrix.n_col;
    j->n_tok = 8;
    printf(" exact %.1f us", 1e6 * seconds(j, LAUNCHES));
    for (; j->n_tok <= (halves ? FD_FEW_F16 : FD_Q8_FEW); j->n_tok *= 2) {
        void *memory;
        fd_error err = {0};
        cuda(cudaMalloc(&memory, halves ? fd_few_f16_bytes(n_col, j->n_tok) : fd_q8_rows_bytes(n_col, j->n_tok)));
        fd_q8_rows blocks;
        if (halves) {
            j->halves = memory;
        } else {
            blocks = fd_q8_rows_at(memory, n_col, j->n_tok);
            must(fd_launch_q8_quantize(&j->b->queue, j->x, j->n_tok, n_col, &blocks, &err), &err);
            j->blocks = &blocks;
        }
        printf(" | %d:", j->n_tok);
        for (size_t i = 0; i < sizeof few_rows / sizeof *few_rows; i++) {
            j->rows = few_rows[i];
            if (runs(j)) printf(" %d %.1f", few_rows[i], 1e6 * seconds(j, LAUNCHES));
        }
        j->rows = 0;
        printf(" chosen %.1f us, %.0f", 1e6 * seconds(j, LAUNCHES), gigabytes / seconds(j, LAUNCHES));
        j->blocks = NULL, j->halves = NULL;
        cuda(cudaFree(memory));
    }
    printf("\n");
}

/* Exact and q8act take turns; GB/s, and how much faster q8act is. */
static void measure_beside(job *j, double gigabytes) {
    for (int norm = 0; norm < 2; norm++) {
        double rate[2][2];
        j->norm = norm;
        for (int turn = 0; turn < 2; turn++)
            for (int q8act = 0; q8act < 2; q8act++) {
                j->q8act = q8act;
                rate[q8act][turn] = gigabytes / seconds(j, LAUNCHES);
            }
        double exact = (rate[0][0] + rate[0][1]) / 2, q8 = (rate[1][0] + rate[1][1]) / 2;
        printf(" | %5.0f %5.0f %5.2f", exact, q8, q8 / exact);
    }
    printf("\n");
}

static void measure(const bench *b, uint32_t dtype, int64_t n_row, int64_t n_col, measurement what) {
    const bool many = what == MANY_ROWS, q8act = what == Q8ACT;
    const int64_t row_bytes = fd_packed_row_bytes(dtype, n_col), bytes = row_bytes * n_row;
    const size_t file_row = (size_t)fd_dtype_row_bytes(dtype, n_col);
    const int n_copy = (int)(TOTAL / bytes) + 1;
    uint8_t *file = malloc(file_row), *packed = malloc((size_t)bytes);
    float *x = malloc(sizeof *x * (size_t)(n_col * MANY));
    char *device;
    float *dx, *out;
    if (!file || !packed || !x) exit(2);
    fill(dtype, file, file_row);
    /* All rows alike: the time does not depend on them. */
    fd_pack_weight_row(dtype, n_col, file, packed);
    for (int64_t r = 1; r < n_row; r++) memcpy(packed + r * row_bytes, packed, (size_t)row_bytes);
    for (int64_t i = 0; i < n_col * MANY; i++) x[i] = (float)(i * 7919 % 1999 - 999) * 1e-3f;
    cuda(cudaMalloc((void **)&device, (size_t)(bytes * n_copy)));
    cuda(cudaMalloc((void **)&dx, sizeof *x * (size_t)(n_col * MANY)));
    cuda(cudaMalloc((void **)&out, sizeof *out * (size_t)(n_row * MANY)));
    for (int i = 0; i < n_copy; i++)
        cuda(cudaMemcpy(device + bytes * i, packed, (size_t)bytes, cudaMemcpyHostToDevice));
    cuda(cudaMemcpy(dx, x, sizeof *x * (size_t)(n_col * MANY), cudaMemcpyHostToDevice));
    job j = {.b = b, .copy_bytes = bytes, .n_copy = n_copy, .n_tok = 1, .x = dx, .out = out};
    j.matrix = (fd_device_matrix){device, dtype, n_row, n_col, row_bytes, fd_packed_scale_offset(dtype, n_col)};

    printf("%-5s %6lldx%-6lld", fd_dtype_get(dtype)->name, (long long)n_row, (long long)n_col);
    const double gigabytes = 1e-9 * (double)file_row * (double)n_row, flops = 2e-12 * (double)n_row * (double)n_col;
    if (what == BESIDE) measure_beside(&j, gigabytes);
    if (what == FEW) measure_few(&j, gigabytes);
    const bool one = what != BESIDE && what != FEW;
    for (int i = 0; one && i < (q8act ? N_Q8_FORM : N_FORM); i++) {
        j.form = q8act ? NULL : &forms[i];
        j.q8_form = q8act ? &q8_forms[i] : NULL;
        j.q8act = q8act;
        if (runs(&j))
            printf(" %5.0f", gigabytes / seconds(&j, LAUNCHES));
        else
            printf("     -");
    }
    j.form = NULL, j.q8_form = NULL;
    if (one) printf(" | %5.0f", gigabytes / seconds(&j, LAUNCHES));
    if (many) {
        j.n_tok = 8;
        printf(" | %5.0f", gigabytes / seconds(&j, LAUNCHES));
        j.n_tok = MANY;
        printf(" | %5.1f", flops * MANY / seconds(&j, 2));
    }
    if (one) printf("\n");
    fflush(stdout);
    cuda(cudaFree(device));
    cuda(cudaFree(dx));
    cuda(cudaFree(out));
    free(file), free(packed), free(x);
}

int main(int argc, char **argv) {
    static const uint32_t types[] = {FD_F16,  FD_Q8_0,   FD_Q4_K,  FD_Q6_K,  FD_Q4_0, FD_Q5_0,
                                     FD_F32,  FD_BF16,   FD_Q4_1,  FD_Q5_1,  FD_Q2_K, FD_Q3_K,
                                     FD_Q5_K, FD_IQ4_NL, FD_MXFP4, FD_NVFP4, FD_IQ2_S};
    static const int64_t shapes[][2] = {{896, 896},   {1152, 896},  {9728, 896},   {896, 4864},   {151936, 896},
                                        {2560, 2048}, {2048, 2048}, {11264, 2048}, {2048, 5632},  {32000, 2048},
                                        {6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}, {128256, 4096}};
    char name[256];
    bench b = {.queue = gpu_or_skip(name)};
    b.clock = gpu_clock_on(b.queue.stream);
    void *from, *to;
    cuda(cudaMalloc(&from, TOTAL));
    cuda(cudaMalloc(&to, TOTAL));
    printf("%s; device-to-device copy %.0f GB/s (read and written)\n", name, copy_rate(&b, from, to));
    cuda(cudaFree(from));
    cuda(cudaFree(to));
    static const char *const names[] = {[MANY_ROWS] = "many", [Q8ACT] = "q8act", [BESIDE] = "beside", [FEW] = "few"};
    measurement what = FORMS;
    for (int i = MANY_ROWS; argc > 2 && i <= FEW; i++)
        if (strcmp(argv[2], names[i]) == 0) what = (measurement)i;
    bool quantised_only = what == Q8ACT || what == BESIDE || what == FEW;
    if (what == FEW) {
        printf("exact of 8 rows; 8, 16, 32, 64 rows of halves or int8: us by rows of weights a thread block; the "
               "chosen form, us, GB/s\n");
    } else if (what == BESIDE) {
        printf("one row, GB/s: exact, q8act, their ratio; the same behind a norm\n");
    } else {
        bool q8act = what == Q8ACT;
        printf("one row, GB/s: %swarps (hex), blocks a multiprocessor, stages (0: no rings; +: filled by the copy "
               "engine)%s; the chosen form%s\n",
               q8act ? "" : "partials a lane, rows a lane, ", q8act ? ", warps that split K" : "",
               what == MANY_ROWS ? "; eight rows; 512 rows, TFLOP/s" : "");
        printf("%19s", "");
        for (int i = 0; q8act && i < N_Q8_FORM; i++)
            printf("  %x%d%d%d", q8_forms[i].warps, q8_forms[i].blocks, q8_forms[i].stages, q8_forms[i].split_k);
        for (int i = 0; !q8act && i < N_FORM; i++)
            printf(" %d%d%x%d%c", forms[i].partials, forms[i].rows, forms[i].warps, forms[i].blocks,
                   forms[i].bulk ? '+' : '0' + forms[i].stages);
        printf(" | chosen\n");
    }
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            bool whole = shapes[s][1] % fd_dtype_get(types[t])->block_elements == 0;
            if (quantised_only && !fd_q8_can(types[t]) && !(what == FEW && types[t] == FD_F16)) continue;
            char shape[48];
            snprintf(shape, sizeof shape, "%lldx%lld", (long long)shapes[s][0], (long long)shapes[s][1]);
            if (argc > 3 && strcmp(argv[3], shape) != 0) continue;
            if (whole && (argc < 2 || strcmp(argv[1], fd_dtype_get(types[t])->name) == 0))
                measure(&b, types[t], shapes[s][0], shapes[s][1], what);
        }
    gpu_clock_free(&b.clock);
    cuda(cudaStreamDestroy(b.queue.stream));
    return 0;
}
