#include "compare/products/products.h"

#include <assert.h>
#include <stdlib.h>

#include "compare/products/check.h"
#include "compare/products/run_op.h"
#include "model/weight_rows.h"

static size_t real_size(fd_numerics numerics) {
    return numerics == FD_NUMERICS_F64 ? sizeof(double) : sizeof(float);
}

/* A MATMUL of some of the rows, by `op`. */
static fd_code check_by_cpu(const fd_product *product, fd_op_fn op, fd_numerics numerics, const fd_op_args *args,
                            fd_error *err) {
    fd_check_sample sample;
    fd_node node = *args->node;
    fd_op_args few = *args;
    FD_TRY(fd_check_sample_make(product, args->in[0], &sample, err));
    node.shape[0] = (int32_t)sample.weight.n_row;
    few.node = &node;
    few.weight[0] = &sample.weight;
    few.weight[1] = NULL;
    few.out = malloc((size_t)(product->n_pos * sample.weight.n_row) * real_size(numerics));
    fd_code code = few.out ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", args->node->name);
    if (code == FD_OK) {
        op(numerics, &few);
        code = fd_check_rows(product, &sample, real_size(numerics), args->out, few.out, err);
    }
    free(few.out);
    fd_check_sample_free(&sample);
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
        taken = device->together || !fd_check_any_nan(args->out, product.n_pos * product.n_row, real_size(numerics));
    }
    if (!taken) {
        fd_call_op(op, numerics, args);
        return FD_OK;
    }
    if (!device->together) FD_TRY(check_by_cpu(&product, op, numerics, args, err));
    add_bias(numerics, args);
    return FD_OK;
}
