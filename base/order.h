/* Numbers in rising order, for qsort; a NaN counts as equal to all. */
#ifndef FD_BASE_ORDER_H
#define FD_BASE_ORDER_H

static inline int fd_order_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline int fd_order_floats(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

#endif
