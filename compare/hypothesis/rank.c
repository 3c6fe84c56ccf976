/* FD_OWN_LOW_RANK, FD_OWN_INPUT_ELEMENT: what a product departs by has far fewer directions than it has rows: those of an adapter's (LoRA's) two small matrices,
 * of a zero point that is off, of a column of the weight. Where its rows lie in the space of so few, they are that matrix's. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/hypothesis/internal.h"

enum { MOST_SWEEPS = 40 };

/* Eigenvectors of the symmetric a [n, n], by Jacobi's rotations: columns of v; a keeps the eigenvalues on its diagonal. */
static void diagonalise(double *a, double *v, int n) {
    for (int i = 0; i < n * n; i++) v[i] = i % (n + 1) == 0;
    for (int sweep = 0; sweep < MOST_SWEEPS; sweep++) {
        double off = 0, all = 0;
        for (int i = 0; i < n * n; i++) {
            all += a[i] * a[i];
            if (i % (n + 1)) off += a[i] * a[i];
        }
        if (!(off > 1e-30 * all)) return;
        for (int p = 0; p < n; p++)
            for (int q = p + 1; q < n; q++) {
                if (!(fabs(a[p * n + q]) > 0)) continue;
                const double theta = (a[q * n + q] - a[p * n + p]) / (2 * a[p * n + q]);
                const double t = (theta >= 0 ? 1 : -1) / (fabs(theta) + sqrt(theta * theta + 1));
                const double c = 1 / sqrt(t * t + 1), s = t * c;
                for (int k = 0; k < n; k++) {
                    const double x = a[k * n + p], y = a[k * n + q];
                    a[k * n + p] = c * x - s * y;
                    a[k * n + q] = s * x + c * y;
                }
                for (int k = 0; k < n; k++) {
                    const double x = a[p * n + k], y = a[q * n + k];
                    a[p * n + k] = c * x - s * y;
                    a[q * n + k] = s * x + c * y;
                }
                for (int k = 0; k < n; k++) {
                    const double x = v[k * n + p], y = v[k * n + q];
                    v[k * n + p] = c * x - s * y;
                    v[k * n + q] = s * x + c * y;
                }
            }
    }
}

bool fd_directions_of(const double *difference, int n, int64_t width, int rank, double *v) {
    double *gram = calloc((size_t)(2 * n * n), sizeof *gram), *vectors = gram ? gram + n * n : NULL;
    if (!gram) return false;
    for (int i = 0; i < n; i++)
        for (int k = 0; k <= i; k++) {
            double sum = 0;
            for (int64_t c = 0; c < width; c++) sum += difference[i * width + c] * difference[k * width + c];
            gram[i * n + k] = gram[k * n + i] = sum;
        }
    diagonalise(gram, vectors, n);
    for (int r = 0; r < rank; r++) {
        int best = 0;
        for (int i = 1; i < n; i++)
            if (gram[i * n + i] > gram[best * n + best]) best = i;
        for (int i = 0; i < n; i++) v[r * n + i] = vectors[i * n + best];
        gram[best * n + best] = -INFINITY;
    }
    free(gram);
    return true;
}

void fd_hypothesis_low_rank(const fd_hypothesis *h, const fd_output_rows *out) {
    const int n = (int)(out->n_row - out->n_unjudged), rank = h->n;
    const int64_t width = out->width;
    if (!out->candidate || rank <= 0 || rank >= n) return;
    float *rows = out->rows + out->n_unjudged * width;
    const float *candidate = out->candidate + out->n_unjudged * width;
    double *difference = malloc(sizeof *difference * (size_t)(n * width + rank * n));
    if (!difference) return;
    double *v = difference + n * width;
    for (int64_t i = 0; i < n * width; i++) difference[i] = (double)candidate[i] - (double)rows[i];
    const bool known = fd_directions_of(difference, n, width, rank, v);
    for (int64_t c = 0; c < width && known; c++)
        for (int r = 0; r < rank; r++) {
            double along = 0;
            for (int i = 0; i < n; i++) along += v[r * n + i] * difference[i * width + c];
            for (int i = 0; i < n; i++) rows[i * width + c] += (float)(v[r * n + i] * along);
        }
    free(difference);
}

void fd_hypothesis_input_element(const fd_hypothesis *h, const fd_output_rows *out) {
    const int64_t width = out->width;
    double squares = 0;
    (void)h;
    for (int64_t c = 0; c < width && out->column; c++) squares += (double)out->column[c] * (double)out->column[c];
    for (int64_t row = out->n_unjudged; row < out->n_row && out->candidate && squares > 0; row++) {
        double along = 0;
        for (int64_t i = row * width; i < (row + 1) * width; i++)
            along += ((double)out->candidate[i] - (double)out->rows[i]) * (double)out->column[i - row * width];
        for (int64_t i = row * width; i < (row + 1) * width; i++)
            out->rows[i] = (float)((double)out->rows[i] + along / squares * (double)out->column[i - row * width]);
    }
}
