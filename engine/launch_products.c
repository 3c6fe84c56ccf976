/* MATMULs of rows: by which kernels. */
#include "engine/budget.h"
#include "engine/pass.h"
#include "kernels/matmul/few_f16.h"

fd_code fd_launch_products(fd_pass *pass, int32_t id, bool int8, const fd_matmul *in, fd_error *err) {
    if (int8) return fd_launch_int8_products(pass, fd_pass_node(pass, id)->input[0], in, err);
    if (pass->halves && fd_few_f16_takes(pass->plan->graph, id))
        return fd_launch_few_f16(&pass->ctx, in, pass->halves, 0, err);
    return fd_launch_matmul(&pass->ctx, in, err);
}
