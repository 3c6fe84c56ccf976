/* Values that were printed with few digits show it; binary fractions, however few bits they have, do not look like that. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "compare/dump/printed.h"

enum { N = 200 };

typedef struct printed_case {
    const char *what, *format; /* NULL: as they are */
    double size;               /* of the values */
    double grid;               /* multiples of it; 0: any */
    int32_t n, decimals, digits;
} printed_case;

static const printed_case cases[] = {
    {"four decimals", "%.4f", 1, 0, N, 4, 0}, /* large and small ones have as many significant digits as they have */
    {"as printf has it", "%f", 0.1, 0, N, 6, 0},
    {"five significant digits", "%.5g", 1e-3, 0, N, 0, 5},
    {"as printf has it", "%g", 1e-3, 0, N, 0, 6},
    {"nine significant digits", "%.9g", 1, 0, N, 0, 0},
    {"not printed", NULL, 1, 0, N, 0, 0},
    {"six decimals, of values whose neighbours are as far apart", "%.6f", 64, 0, N, 0, 0},
    {"binary16 and coarser", NULL, 1, 0x1p-10, N, 0, 0},
    {"whole numbers", NULL, 100, 1, N, 0, 0},
    {"too few to tell", "%.4f", 1, 0, 32, 0, 0},
};

Test(printed, few_digits_are_told_from_binary_fractions) {
    float x[N];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const printed_case *c = &cases[i];
        for (int32_t k = 0; k < c->n; k++) {
            char text[64];
            double v = c->size * sin(1 + 0.7 * k);
            if (c->grid > 0) v = c->grid * nearbyint(v / c->grid);
            x[k] = (float)v;
            if (!c->format) continue;
            snprintf(text, sizeof text, c->format, v);
            x[k] = strtof(text, NULL);
        }
        x[0] = NAN, x[1] = 0, x[2] = -INFINITY;
        const int32_t decimals = fd_printed_digits(x, c->n, true), digits = fd_printed_digits(x, c->n, false);
        cr_expect_eq(decimals, c->decimals, "%s: %d decimals", c->what, decimals);
        if (c->decimals == 0) cr_expect_eq(digits, c->digits, "%s: %d digits", c->what, digits);
    }
}
