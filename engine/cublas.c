#include "engine/cublas.h"

#include <dlfcn.h>
#include <library_types.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* The part of cublasLt's interface that is used here, so that building needs no header of it: names, order of
 * parameters, structs and values of the enumerations as in NVIDIA's cublasLt.h of CUDA 12 and 13. */
enum { OP_T = 1, COMPUTE_32F = 68, DESC_TRANSA = 3, PREFER_WORKSPACE = 1 };
typedef struct algorithm {
    uint64_t data[8];
} algorithm;
typedef struct heuristic {
    algorithm algo;
    size_t workspace;
    int status;
    float waves;
    int reserved[4];
} heuristic;
typedef int (*create_fn)(void **handle);
typedef int (*destroy_fn)(void *object);
typedef int (*create_desc_fn)(void **desc, int compute, cudaDataType scale);
typedef int (*set_fn)(void *object, int attribute, const void *value, size_t size);
typedef int (*create_layout_fn)(void **layout, cudaDataType type, uint64_t rows, uint64_t cols, int64_t ld);
typedef int (*choose_fn)(void *handle, void *desc, void *a, void *b, void *c, void *d, void *preference, int n,
                         heuristic *found, int *n_found);
typedef int (*check_fn)(void *handle, void *desc, void *a, void *b, void *c, void *d, const algorithm *algo,
                        heuristic *found);
typedef int (*matmul_fn)(void *handle, void *desc, const void *alpha, const void *a, void *a_layout, const void *b,
                         void *b_layout, const void *beta, const void *c, void *c_layout, void *d, void *d_layout,
                         const algorithm *algo, void *workspace, size_t workspace_size, cudaStream_t stream);
typedef const char *(*status_fn)(int status);

/* Shapes whose algorithm is known: a model's products, and those of its prompts' last pieces. */
enum { SHAPES = 64 };

typedef struct shape {
    int64_t n_row, n_row_whole, n_col, stride;
    int32_t n_tok;
    void *weight, *x, *out; /* layouts; owned */
    algorithm algo;
} shape;

struct fd_cublas {
    void *handle, *desc, *preference;
    cudaStream_t stream;
    create_fn create, create_preference;
    destroy_fn destroy, destroy_desc, destroy_preference, destroy_layout;
    create_desc_fn create_desc;
    set_fn set_desc, set_preference;
    create_layout_fn create_layout;
    choose_fn choose;
    check_fn check;
    matmul_fn matmul;
    status_fn status;
    fd_block workspace;
    shape shapes[SHAPES];
    int64_t n_shape; /* made so far; the oldest give way */
};

static fd_code check(const fd_cublas *c, int status, const char *what, fd_error *err) {
    return status == 0 ? FD_OK : fd_fail(err, FD_ERR_DEVICE, "cuBLAS, %s: %s", what, c->status(status));
}

/* ---- opening ---- */

static fd_code load(void **library, fd_error *err) {
    static const char *const folders[] = {"", "/usr/local/cuda/lib64/"};
    char name[96], why[256] = "";
    *library = NULL;
    for (size_t i = 0; !*library && i < sizeof folders / sizeof *folders; i++) {
        snprintf(name, sizeof name, "%slibcublasLt.so.%d", folders[i], CUDART_VERSION / 1000);
        *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        if (!*library && i == 0) snprintf(why, sizeof why, "%s", dlerror());
    }
    if (!*library)
        return fd_fail(err, FD_ERR_DEVICE,
                       "fast numerics need cuBLAS, exact ones do not: %s (install CUDA's libcublas, or name its folder "
                       "in LD_LIBRARY_PATH)",
                       why);
    return FD_OK;
}

/* The library stays: the device's code in it may be in use elsewhere in the process. */
static fd_code find_functions(fd_cublas *c, fd_error *err) {
    void *library;
    FD_TRY(load(&library, err));
    const struct {
        const char *name;
        void *to; /* POSIX gives functions as object pointers */
    } symbols[] = {{"cublasLtCreate", &c->create},
                   {"cublasLtDestroy", &c->destroy},
                   {"cublasLtMatmulDescCreate", &c->create_desc},
                   {"cublasLtMatmulDescDestroy", &c->destroy_desc},
                   {"cublasLtMatmulDescSetAttribute", &c->set_desc},
                   {"cublasLtMatmulPreferenceCreate", &c->create_preference},
                   {"cublasLtMatmulPreferenceDestroy", &c->destroy_preference},
                   {"cublasLtMatmulPreferenceSetAttribute", &c->set_preference},
                   {"cublasLtMatrixLayoutCreate", &c->create_layout},
                   {"cublasLtMatrixLayoutDestroy", &c->destroy_layout},
                   {"cublasLtMatmulAlgoGetHeuristic", &c->choose},
                   {"cublasLtMatmulAlgoCheck", &c->check},
                   {"cublasLtMatmul", &c->matmul},
                   {"cublasLtGetStatusString", &c->status}};
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
        if (!(*(void **)symbols[i].to = dlsym(library, symbols[i].name)))
            return fd_fail(err, FD_ERR_DEVICE, "cuBLAS: libcublasLt.so.%d has no %s, which fast numerics call",
                           CUDART_VERSION / 1000, symbols[i].name);
    return FD_OK;
}

static fd_code start(fd_cublas *c, fd_error *err) {
    const int32_t turned = OP_T;
    const uint64_t room = FD_CUBLAS_WORKSPACE;
    FD_TRY(find_functions(c, err));
    FD_TRY(check(c, c->create(&c->handle), "starting", err));
    FD_TRY(check(c, c->create_desc(&c->desc, COMPUTE_32F, CUDA_R_32F), "starting", err));
    FD_TRY(check(c, c->set_desc(c->desc, DESC_TRANSA, &turned, sizeof turned), "starting", err));
    FD_TRY(check(c, c->create_preference(&c->preference), "starting", err));
    FD_TRY(check(c, c->set_preference(c->preference, PREFER_WORKSPACE, &room, sizeof room), "starting", err));
    return fd_device_alloc(&c->workspace, FD_CUBLAS_WORKSPACE, "cuBLAS's workspace", err);
}

fd_code fd_cublas_open(cudaStream_t stream, fd_cublas **out, fd_error *err) {
    fd_cublas *c = calloc(1, sizeof *c);
    *out = c;
    if (!c) return fd_fail(err, FD_ERR_MEMORY, "cuBLAS: out of memory");
    c->stream = stream;
    fd_code code = start(c, err);
    if (code == FD_OK) return FD_OK;
    fd_cublas_close(c);
    *out = NULL;
    return code;
}

static void free_shape(const fd_cublas *c, shape *s) {
    if (s->weight) (void)c->destroy_layout(s->weight);
    if (s->x) (void)c->destroy_layout(s->x);
    if (s->out) (void)c->destroy_layout(s->out);
    *s = (shape){0};
}

void fd_cublas_close(fd_cublas *c) {
    if (!c) return;
    for (int i = 0; i < SHAPES; i++) free_shape(c, &c->shapes[i]);
    if (c->preference) (void)c->destroy_preference(c->preference);
    if (c->desc) (void)c->destroy_desc(c->desc);
    if (c->handle) (void)c->destroy(c->handle);
    fd_device_free(&c->workspace);
    free(c);
}

/* ---- products ---- */

/* Row-major out = x Wᵀ is, column by column, outᵀ = W xᵀ of a W stored turned. */
static fd_code lay_out(const fd_cublas *c, const fd_cublas_product *in, int64_t n_row, shape *s, fd_error *err) {
    const uint64_t rows = (uint64_t)n_row, cols = (uint64_t)in->n_col, n_tok = (uint64_t)in->n_tok;
    FD_TRY(check(c, c->create_layout(&s->weight, CUDA_R_16F, cols, rows, in->stride), "layout", err));
    FD_TRY(check(c, c->create_layout(&s->x, CUDA_R_16F, cols, n_tok, in->n_col), "layout", err));
    return check(c, c->create_layout(&s->out, CUDA_R_32F, rows, n_tok, n_row), "layout", err);
}

/* The whole matrix's algorithm, and the layouts of the part. */
static fd_code choose(const fd_cublas *c, const fd_cublas_product *in, shape *s, fd_error *err) {
    shape whole = {0};
    heuristic found = {0}, of_part = {0};
    int n_found = 0;
    fd_code code = lay_out(c, in, in->n_row_whole, &whole, err);
    if (code == FD_OK)
        code = check(c,
                     c->choose(c->handle, c->desc, whole.weight, whole.x, whole.out, whole.out, c->preference, 1,
                               &found, &n_found),
                     "choosing an algorithm", err);
    free_shape(c, &whole);
    FD_TRY(code);
    FD_TRY(check(c, found.status, "choosing an algorithm", err));
    FD_TRY(lay_out(c, in, in->n_row, s, err));
    int status = c->check(c->handle, c->desc, s->weight, s->x, s->out, s->out, &found.algo, &of_part);
    if (status != 0 || of_part.workspace > FD_CUBLAS_WORKSPACE)
        return fd_fail(err, FD_ERR_UNSUPPORTED,
                       "cuBLAS: what it chooses for a matrix of %lld rows of %lld, times %d, does not take %lld of its "
                       "rows: exact and q8act run on these GPUs",
                       (long long)in->n_row_whole, (long long)in->n_col, in->n_tok, (long long)in->n_row);
    s->algo = found.algo;
    return FD_OK;
}

static bool is_of(const shape *s, const fd_cublas_product *in) {
    return s->out && s->n_row == in->n_row && s->n_row_whole == in->n_row_whole && s->n_col == in->n_col &&
           s->stride == in->stride && s->n_tok == in->n_tok;
}

static fd_code shape_of(fd_cublas *c, const fd_cublas_product *in, const shape **out, fd_error *err) {
    for (int i = 0; i < SHAPES; i++) {
        *out = &c->shapes[i];
        if (is_of(*out, in)) return FD_OK;
    }
    shape *s = &c->shapes[c->n_shape++ % SHAPES];
    free_shape(c, s);
    fd_code code = choose(c, in, s, err);
    if (code != FD_OK) {
        free_shape(c, s);
        return code;
    }
    s->n_row = in->n_row;
    s->n_row_whole = in->n_row_whole;
    s->n_col = in->n_col;
    s->stride = in->stride;
    s->n_tok = in->n_tok;
    *out = s;
    return FD_OK;
}

fd_code fd_cublas_multiply(fd_cublas *c, const fd_cublas_product *in, fd_error *err) {
    const float one = 1.0f, zero = 0.0f;
    const shape *s;
    FD_TRY(shape_of(c, in, &s, err));
    int status = c->matmul(c->handle, c->desc, &one, in->weight, s->weight, in->x, s->x, in->add ? &one : &zero,
                           in->out, s->out, in->out, s->out, &s->algo, c->workspace.data, c->workspace.size, c->stream);
    return check(c, status, "matrix product", err);
}
