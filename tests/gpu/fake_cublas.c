/* libcublasLt in host memory, found by LD_LIBRARY_PATH where the CUDA runtime is fake_cuda_runtime.c: everything
 * succeeds, and a product touches the first and the last element of its factors and of its result. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct layout {
    int type; /* cudaDataType: 2 is binary16 */
    uint64_t rows, cols;
    int64_t ld;
} layout;

typedef struct heuristic {
    uint64_t algo[8];
    size_t workspace;
    int status;
    float waves;
    int reserved[4];
} heuristic;

int cublasLtCreate(void **handle);
int cublasLtDestroy(void *handle);
int cublasLtMatmulDescCreate(void **desc, int compute, int scale);
int cublasLtMatmulDescDestroy(void *desc);
int cublasLtMatmulDescSetAttribute(void *desc, int attribute, const void *value, size_t size);
int cublasLtMatmulPreferenceCreate(void **preference);
int cublasLtMatmulPreferenceDestroy(void *preference);
int cublasLtMatmulPreferenceSetAttribute(void *preference, int attribute, const void *value, size_t size);
int cublasLtMatrixLayoutCreate(void **out, int type, uint64_t rows, uint64_t cols, int64_t ld);
int cublasLtMatrixLayoutDestroy(void *of);
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *desc, layout *a, layout *b, layout *c, layout *d,
                                   void *preference, int n, heuristic *found, int *n_found);
int cublasLtMatmulAlgoCheck(void *handle, void *desc, layout *a, layout *b, layout *c, layout *d, const uint64_t *algo,
                            heuristic *found);
int cublasLtMatmul(void *handle, void *desc, const void *alpha, const char *a, const layout *of_a, const char *b,
                   const layout *of_b, const void *beta, const char *c, const layout *of_c, char *d, const layout *of_d,
                   const uint64_t *algo, void *workspace, size_t workspace_size, void *stream);
const char *cublasLtGetStatusString(int status);

static int make(void **out) {
    *out = malloc(1);
    return *out ? 0 : 1;
}
static int drop(void *of) {
    free(of);
    return 0;
}

int cublasLtCreate(void **handle) {
    return make(handle);
}
int cublasLtDestroy(void *handle) {
    return drop(handle);
}
int cublasLtMatmulDescCreate(void **desc, int compute, int scale) {
    return (void)compute, (void)scale, make(desc);
}
int cublasLtMatmulDescDestroy(void *desc) {
    return drop(desc);
}
int cublasLtMatmulDescSetAttribute(void *desc, int attribute, const void *value, size_t size) {
    return (void)attribute, (void)value, (void)size, desc ? 0 : 7;
}
int cublasLtMatmulPreferenceCreate(void **preference) {
    return make(preference);
}
int cublasLtMatmulPreferenceDestroy(void *preference) {
    return drop(preference);
}
int cublasLtMatmulPreferenceSetAttribute(void *preference, int attribute, const void *value, size_t size) {
    return (void)attribute, (void)value, (void)size, preference ? 0 : 7;
}
int cublasLtMatrixLayoutCreate(void **out, int type, uint64_t rows, uint64_t cols, int64_t ld) {
    layout *l = malloc(sizeof *l);
    *out = l;
    if (l) *l = (layout){type, rows, cols, ld};
    return l && ld >= (int64_t)rows ? 0 : 7;
}
int cublasLtMatrixLayoutDestroy(void *of) {
    return drop(of);
}

/* The algorithm remembers the rows of the matrix that it was chosen for. */
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *desc, layout *a, layout *b, layout *c, layout *d,
                                   void *preference, int n, heuristic *found, int *n_found) {
    (void)handle, (void)desc, (void)preference, (void)n, (void)b, (void)c;
    memset(found, 0, sizeof *found);
    found->algo[0] = a->cols;
    *n_found = 1;
    return a->cols == d->rows ? 0 : 7;
}
int cublasLtMatmulAlgoCheck(void *handle, void *desc, layout *a, layout *b, layout *c, layout *d, const uint64_t *algo,
                            heuristic *found) {
    (void)handle, (void)desc, (void)b, (void)c;
    memset(found, 0, sizeof *found);
    return a->cols == d->rows && a->cols <= algo[0] ? 0 : 7;
}

static size_t last_of(const layout *of) {
    return (of->type == 2 ? 2u : 4u) * ((of->cols - 1) * (size_t)of->ld + of->rows - 1);
}

int cublasLtMatmul(void *handle, void *desc, const void *alpha, const char *a, const layout *of_a, const char *b,
                   const layout *of_b, const void *beta, const char *c, const layout *of_c, char *d, const layout *of_d,
                   const uint64_t *algo, void *workspace, size_t workspace_size, void *stream) {
    (void)handle, (void)desc, (void)alpha, (void)beta, (void)c, (void)of_c, (void)workspace_size, (void)stream;
    volatile char seen = (char)(a[0] + a[last_of(of_a)] + b[0] + b[last_of(of_b)] + *(char *)workspace);
    volatile float *out = (volatile float *)(void *)d;
    out[0] = out[last_of(of_d) / sizeof *out] = 0;
    return (void)seen, of_a->cols == of_d->rows && of_b->cols == of_d->cols && algo[0] >= of_a->cols ? 0 : 7;
}

const char *cublasLtGetStatusString(int status) {
    return status == 0 ? "success" : "a shape that does not fit";
}
