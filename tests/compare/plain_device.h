/* A device that is plain C: exec/products.h taken at its word, element by element. */
#ifndef FD_TESTS_COMPARE_PLAIN_DEVICE_H
#define FD_TESTS_COMPARE_PLAIN_DEVICE_H

#include "exec/products.h"

typedef struct plain_device {
    fd_products products;
    int64_t least;          /* rows × vectors that it takes */
    int32_t n_taken;        /* products so far */
    double off_y, off_size; /* added to every result, of the sums of products, of sizes, */
    double off_square;      /* and of squares: what a faulty device does */
} plain_device;

/* plain->products is then its interface; *plain stays where it is. */
void plain_device_open(plain_device *plain);

#endif
