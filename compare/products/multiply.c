#include "compare/products/products.h"

#include <assert.h>
#include <stdlib.h>

#include "compare/products/check.h"
#include "model/weight_rows.h"

static size_t real_size(fd_numerics numerics) {
    return numerics == FD_NUMERICS_F64 ? sizeof(double) : sizeof(float);
}

/* The sample by `op`, as a MATMUL of these rows alone. */
static fd_code check_sample(const fd_product *product, const fd_product *sample, fd_op_fn op, fd_numerics numerics,
                            const fd_op_args *args, fd_error *err) {
    fd_node node = *args->node;
    fd_weight rows = *product->weight;
    fd_op_args few = *args;
    void *own = malloc((size_t)(product->n_pos * sample->n_row) * real_size(numerics));
    if (!own) return fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", args->node->name);
    rows.data = (const char *)rows.data + sample->first_row * fd_dtype_row_bytes(rows.dtype, rows.n_col);
    node.shape[0] = (int32_t)(rows.n_row = sample->n_row);
    few.node = &node;
    few.weight[0] = &rows;
    few.weight[1] = NULL;
    few.out = own;
    op(numerics, &few);
    fd_code code = fd_check_rows(product, sample, real_size(numerics), args->out, own, err);
    free(own);
    return code;
}

/* One addition afterwards, as in reference_cpu/matmul.c. */
static void add_bias(fd_numerics numerics, const fd_op_args *args) {
    int64_t n_row = args->weight[0]->n_row;
    for (int64_t o = 0; args->weight[1] && o < n_row; o++) {
        float bias = fd_weight_element(args->weight[1], o);
        for (int64_t pos = 0; pos < args->n_pos; pos++) {
            if (numerics == FD_NUMERICS_F64)
                ((double *)args->out)[pos * n_row + o] += (double)bias;
            else
                ((float *)args->out)[pos * n_row + o] += bias;
        }
    }
}

fd_code fd_products_multiply(const fd_products *device, fd_op_fn op, fd_numerics numerics, const fd_op_args *args,
                             fd_error *err) {
    fd_product product = {.weight = args->weight[0], .n_row = args->weight[0]->n_row, .n_pos = args->n_pos};
    assert(args->node->op == FD_OP_MATMUL && (numerics == FD_NUMERICS_EXACT || numerics == FD_NUMERICS_F64));
    bool taken = device && device->takes(device->user, &product);
    if (taken) {
        FD_TRY(device->multiply(device->user, numerics, &product, args->in[0], args->out, err));
        taken = !fd_check_any_nan(args->out, product.n_pos * product.n_row, real_size(numerics));
    }
    if (!taken) {
        op(numerics, args);
        return FD_OK;
    }
    for (int g = 0; g < FD_CHECK_GROUPS; g++) {
        fd_product sample = fd_check_sample(&product, args->in[0], g);
        if (sample.n_row) FD_TRY(check_sample(&product, &sample, op, numerics, args, err));
    }
    add_bias(numerics, args);
    return FD_OK;
}
