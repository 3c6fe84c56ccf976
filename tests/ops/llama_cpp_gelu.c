#include "tests/ops/llama_cpp_gelu.h"

#include <math.h>

#include "exec/exec.h"
#include "model/gguf/quant.h"

static void gelu_from_table(const fd_op_args *args) {
    const float *gate = args->in[0], *up = args->node->input[1] < 0 ? NULL : args->in[1];
    for (int64_t i = 0; i < args->n_pos * fd_node_row_stride(args->node, args->n_kv); i++) {
        float x = fd_f16_to_f32(fd_f32_to_f16(gate[i]));
        float gelu = 0.5f * x * (1.0f + tanhf(0.79788456f * x * (1.0f + 0.044715f * x * x)));
        ((float *)args->out)[i] = fd_f16_to_f32(fd_f32_to_f16(gelu)) * (up ? up[i] : 1.0f);
    }
}

void take_llama_cpp_gelu(fd_graph *graph) {
    for (int32_t n = 0; n < graph->n_node; n++)
        if (graph->nodes[n].op == FD_OP_GELU_MUL || graph->nodes[n].op == FD_OP_GELU)
            graph->nodes[n].override = gelu_from_table;
}
