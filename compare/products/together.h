/* Products of weights as the processes of one mpirun compute them together (exec/peers.h): each has its share of the
 * weight's rows, and all get all results. The bits are those of one process. */
#ifndef FD_COMPARE_PRODUCTS_TOGETHER_H
#define FD_COMPARE_PRODUCTS_TOGETHER_H

#include "exec/peers.h"
#include "exec/products.h"

typedef struct fd_products_peers {
    fd_products products; /* first: fd_products * is fd_products_peers * */
    fd_peers *peers;
    fd_op_fn op; /* runs a MATMUL of a process's rows */
} fd_products_peers;

/* out->products is then the interface; `peers` is borrowed, and *out stays where it is. */
void fd_products_together(fd_peers *peers, fd_op_fn op, fd_products_peers *out);

#endif
