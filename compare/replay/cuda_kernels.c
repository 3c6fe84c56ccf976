#include "compare/replay/cuda_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/replay/cuda_blocks.h"
#include "compare/replay/factors.h"
#include "compare/replay/half_sums.h"
#include "model/gguf/float16.h"
#include "model/weight_rows.h"

/* Rows of a call that the vector kernels of quantised weights take, and those of tensor cores without cuBLAS. */
enum { FEW = 8, MOST_OF_TENSOR_CORES = 16, KEYS_PADDED = 256 };

bool fd_cuda_computes(const fd_replay *replay, const fd_node *node) {
    const bool attention = node->op == FD_OP_ATTN_SCORES || node->op == FD_OP_ATTN_MIX;
    if (!replay->o.numerics->cuda_kernels) return false;
    return fd_dot_is_product(node->op) || (attention && fd_replay_kv_type(replay, node) == FD_F32);
}

/* ---- which ---- */

fd_cuda_kernel fd_cuda_kernel_of_blocks(uint32_t dtype, bool many) {
    if (fd_cuda_blocks_of(dtype, many))
        return (fd_cuda_kernel){.how = FD_CUDA_BLOCKS, .many = many, .type = FD_DOT_AS_IS};
    return (fd_cuda_kernel){.many = many,
                            .type = many && dtype != FD_Q4_0 && dtype != FD_IQ1_S ? FD_DOT_INT8 : FD_DOT_Q8_0};
}

/* Of binary32 tensor cores take TF32 of both factors. */
static fd_cuda_kernel beside_binary32(int32_t rows) {
    return (fd_cuda_kernel){.type = rows == 1                      ? FD_DOT_AS_IS
                                    : rows <= MOST_OF_TENSOR_CORES ? FD_DOT_TF32_CUT
                                                                   : FD_DOT_TF32};
}

/* llama.cpp asks for sums in binary32 (GGML_PREC_F32, llama-graph.cpp) of these matrices of these architectures, whose sums overflow. */
static bool asks_binary32(const fd_graph *graph, const fd_weight *weight) {
    static const char *const archs[] = {"glm4", "glm4moe", "jais2"};
    static const char *const matrices[] = {".attn_output.weight", ".ffn_down.weight"};
    for (size_t i = 0; weight && i < sizeof archs / sizeof *archs; i++)
        for (size_t k = 0; k < sizeof matrices / sizeof *matrices; k++)
            if (strcmp(graph->hparams.arch, archs[i]) == 0 && strstr(weight->name, matrices[k])) return true;
    return false;
}

/* And that activations beside these of experts stay in binary32 (ggml_prec_set_src): no CUDA kernel does that, so the CPU computes them. */
static bool is_left_to_cpu(const fd_graph *graph, const fd_weight *weight) {
    return weight && strcmp(graph->hparams.arch, "mistral4") == 0 && strstr(weight->name, ".ffn_down_exps.weight");
}

static fd_cuda_kernel kernel_of(const fd_replay *replay, const fd_node *node, const fd_weight *weight, int32_t rows) {
    if (!fd_dot_is_product(node->op) && !(replay->o.numerics->u_kv > 0)) return beside_binary32(rows);
    if (node->op == FD_OP_ATTN_SCORES) return (fd_cuda_kernel){.type = rows > 1 ? FD_DOT_F16 : FD_DOT_AS_IS};
    const uint32_t dtype = weight ? weight->dtype : FD_F16;
    if (is_left_to_cpu(replay->o.graph, weight)) {
        fd_numerics_class cpu = *replay->o.numerics;
        cpu.cuda_kernels = false;
        return (fd_cuda_kernel){.type = fd_dot_type_of(&cpu, node, weight, 0)};
    }
    if (fd_dtype_get(dtype)->is_quantised) return fd_cuda_kernel_of_blocks(dtype, rows > FEW);
    const bool few = rows > 1 && rows <= MOST_OF_TENSOR_CORES; /* their kernel does not ask */
    if (dtype != FD_F32 && !few && asks_binary32(replay->o.graph, weight)) return beside_binary32(rows);
    if (dtype == FD_BF16) return (fd_cuda_kernel){.type = rows > 1 ? FD_DOT_BF16 : FD_DOT_AS_IS};
    if (dtype != FD_F16) return beside_binary32(rows);
    const bool by_experts = node->op == FD_OP_EXPERT_MATMUL; /* tensor cores, however many */
    if (rows == 1 && !by_experts && (!weight || weight->n_col % 2 == 0)) return (fd_cuda_kernel){.how = FD_CUDA_PAIRS};
    if (rows > MOST_OF_TENSOR_CORES && node->op != FD_OP_EXPERT_MATMUL) return (fd_cuda_kernel){.how = FD_CUDA_TILES};
    return (fd_cuda_kernel){.type = FD_DOT_F16};
}

/* ---- one row ---- */

static bool is_finite(const double *x, int64_t n) {
    bool finite = true;
    for (int64_t i = 0; i < n; i++) finite &= isfinite(x[i]) != 0;
    return finite;
}

/* Rows [first, first + n_out) of the weight with their bias, of one x. */
static fd_code multiply_part(const fd_op_args *args, fd_cuda_kernel k, int64_t part, int64_t first, int64_t n_out,
                             int64_t bias_row, const double *x, double *y, double *room, fd_error *err) {
    const fd_weight *whole = args->weight[0], *bias = args->weight[1];
    fd_weight own = *whole;
    own.n_row = n_out;
    own.data = (const char *)whole->data + first * fd_dtype_row_bytes(whole->dtype, whole->n_col);
    if (k.how == FD_CUDA_BLOCKS)
        FD_TRY(fd_cuda_blocks_multiply(&own, k.many, x, 1, y, err));
    else
        FD_TRY(fd_half_multiply(&own, k.how == FD_CUDA_PAIRS ? FD_HALF_PAIRS : FD_HALF_TILES, part, x, y, room, err));
    for (int64_t o = 0; bias && o < n_out; o++) y[o] += (double)fd_weight_row_element(bias, bias_row, o);
    return FD_OK;
}

/* A matrix, of one x. Other kernels are tried in every class, and sums of binary16 are as many as there are ways to split them, so these
 * are remembered; not those of samples, which have no room. */
static fd_code multiply_matrix(fd_product_memo *memo, const fd_op_args *args, fd_cuda_kernel k, int64_t part,
                               const double *x, double *y, double *room, fd_error *err) {
    const fd_weight *weight = args->weight[0], *bias = args->weight[1];
    const int64_t n_row = weight->n_row;
    const fd_memo_key key = {.kind = k.how == FD_CUDA_PAIRS ? FD_MEMO_PAIRS : FD_MEMO_TILES,
                             .weight = weight->data,
                             .bias = bias ? bias->data : NULL,
                             .rounding = (int32_t)part,
                             .n_row = 2 * n_row,
                             .n = weight->n_col};
    if (!room || k.how == FD_CUDA_BLOCKS) return multiply_part(args, k, part, 0, n_row, 0, x, y, room, err);
    const double *known = fd_product_memo_find(memo, &key, x);
    double *both = known ? NULL : malloc(2 * sizeof *both * (size_t)n_row);
    if (!known && !both) return fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", args->node->name);
    const fd_code code = known ? FD_OK : multiply_part(args, k, part, 0, n_row, 0, x, both, both + n_row, err);
    if (!known && code == FD_OK) fd_product_memo_keep(memo, &key, x, both);
    if (code == FD_OK) {
        memcpy(y, known ? known : both, sizeof *y * (size_t)n_row);
        memcpy(room, (known ? known : both) + n_row, sizeof *room * (size_t)n_row);
    }
    free(both);
    return code;
}

/* Row `r` of a product with a weight; x are its inputs as they are. */
fd_code fd_cuda_multiply_row(const fd_replay *replay, const fd_op_args *args, fd_cuda_kernel k, int64_t part, int64_t r,
                             const double *x, double *y, double *room, fd_error *err) {
    const fd_node *node = args->node, *input = &args->graph->nodes[node->input[0]];
    const fd_weight *weight = args->weight[0];
    const int64_t n = weight->n_col;
    if (node->op == FD_OP_MATMUL)
        return is_finite(x, n) ? multiply_matrix(replay->o.memo, args, k, part, x, y, room, err) : FD_OK;
    const int64_t n_out = node->shape[1], x_rows = input->n_dim == 2 ? input->shape[0] : 1;
    for (int64_t i = 0; i < node->shape[0]; i++) { /* experts by rank, or heads */
        const double *own = x + (x_rows == 1 ? 0 : i) * n;
        int64_t at = i;
        if (node->op == FD_OP_EXPERT_MATMUL)
            at = fd_expert_of(((const double *)args->in[1])[r * node->shape[0] + i], weight->n_row / n_out);
        if (at >= 0 && is_finite(own, n))
            FD_TRY(multiply_part(args, k, part, at * n_out, n_out, at, own, y + i * n_out,
                                 room ? room + i * n_out : NULL, err));
    }
    return FD_OK;
}

/* Row `r` of the weighted sum of V. */
static fd_code mix_row(const fd_op_args *args, fd_cuda_kernel k, int64_t r, const double *p, double *y, double *room,
                       fd_error *err) {
    const fd_node *node = args->node, *v_node = &args->graph->nodes[node->input[1]];
    const int64_t n_head = node->shape[0], dim = node->shape[1], n_kv_head = v_node->shape[0];
    const int64_t n = args->pos0 + r + 1, padded = (args->n_kv + KEYS_PADDED - 1) / KEYS_PADDED * KEYS_PADDED;
    const double *v = args->in[1];
    float *columns = malloc(sizeof *columns * (size_t)(n * (FD_HALF_LANES + 1))),
          *weights = columns ? columns + n * FD_HALF_LANES : NULL;
    if (!columns) return fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", node->name);
    for (int64_t h = 0; h < n_head; h++) {
        for (int64_t t = 0; t < n; t++) weights[t] = f32_through_f16((float)p[h * args->n_kv + t]);
        for (int64_t d = 0; d < dim; d += FD_HALF_LANES) {
            const double *from = v + (h / (n_head / n_kv_head)) * dim + d;
            const int64_t left = dim - d < FD_HALF_LANES ? dim - d : FD_HALF_LANES, at = h * dim + d;
            double sums[FD_HALF_LANES], own_room[FD_HALF_LANES] = {0};
            for (int64_t t = 0; t < n; t++)
                for (int64_t i = 0; i < FD_HALF_LANES; i++)
                    columns[t * FD_HALF_LANES + i] = i < left ? (float)from[t * n_kv_head * dim + i] : 0;
            if (k.how == FD_CUDA_PAIRS)
                fd_half_pairs(columns, weights, n, padded, sums);
            else
                fd_half_tiles(columns, weights, n, 0, sums, own_room);
            memcpy(y + at, sums, sizeof *y * (size_t)left);
            if (room) memcpy(room + at, own_room, sizeof *room * (size_t)left);
        }
    }
    free(columns);
    return FD_OK;
}

/* ---- all rows ---- */

fd_cuda_kernel fd_cuda_kernel_of_row(const fd_replay *replay, const fd_node *node, const fd_weight *weight, int64_t r) {
    return kernel_of(replay, node, weight, fd_trace_rows_of_call(replay->o.trace, replay->pos0 + (int32_t)r));
}

/* Of all rows a product beside binary32 weights, or attention beside K or V in binary32, with both factors of that type. */
static fd_code multiply_as(fd_replay *replay, fd_op_args args, fd_dot_type type, fd_error *err) {
    if (type == FD_DOT_AS_IS) return fd_replay_run_rounded(replay, args, err);
    if (fd_dot_is_product(args.node->op)) return fd_replay_run_tf32(replay, args, type == FD_DOT_TF32_CUT, err);
    const fd_node *cache = &replay->o.graph->nodes[args.node->input[1]];
    double *kept = NULL;
    FD_TRY(fd_replay_round_copy(type, args.in[1], replay->n_kv * fd_node_row_stride(cache, replay->n_kv), &kept, err));
    args.in[1] = kept;
    const fd_code code = fd_replay_run_rounded(replay, args, err);
    free(kept);
    return code;
}

/* The rows whose kernel takes both factors of that type. */
static fd_code run_rows_of(fd_replay *replay, fd_op_args args, fd_dot_type type, fd_error *err) {
    const int64_t stride = fd_node_row_stride(args.node, replay->n_kv);
    const fd_weight *weight = fd_dot_weight(&args);
    double *y = args.out, *own;
    bool any = false;
    for (int64_t r = 0; r < args.n_pos; r++)
        any |= fd_cuda_kernel_of_row(replay, args.node, weight, r % replay->n_pos).type == type;
    if (!any) return FD_OK;
    args.out = own = malloc(sizeof *own * (size_t)(args.n_pos * stride));
    if (!own) return fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", args.node->name);
    const fd_code code = multiply_as(replay, args, type, err);
    for (int64_t r = 0; r < args.n_pos && code == FD_OK; r++)
        if (fd_cuda_kernel_of_row(replay, args.node, weight, r % replay->n_pos).type == type)
            memcpy(y + r * stride, own + r * stride, sizeof *y * (size_t)stride);
    free(own);
    return code;
}

/* Rows of a matrix's product by blocks, all together, because most of the time goes to taking the weights apart. */
static fd_code multiply_blocks(const fd_replay *replay, const fd_op_args *args, bool many, fd_error *err) {
    const fd_weight *weight = args->weight[0], *bias = args->weight[1];
    const int64_t n = weight->n_col, n_row = weight->n_row;
    const double *in = args->in[0];
    int64_t *rows = malloc(sizeof *rows * (size_t)args->n_pos), n_own = 0;
    for (int64_t r = 0; rows && r < args->n_pos; r++) {
        const fd_cuda_kernel k = fd_cuda_kernel_of_row(replay, args->node, fd_dot_weight(args), r % replay->n_pos);
        if (k.how == FD_CUDA_BLOCKS && k.many == many && is_finite(in + r * n, n)) rows[n_own++] = r;
    }
    double *x = malloc(sizeof *x * (size_t)(n_own * (n + n_row) + 1)), *y = x ? x + n_own * n : NULL;
    fd_code code = rows && x ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", args->node->name);
    for (int64_t i = 0; code == FD_OK && i < n_own; i++) memcpy(x + i * n, in + rows[i] * n, sizeof *x * (size_t)n);
    if (code == FD_OK && n_own > 0) code = fd_cuda_blocks_multiply(weight, many, x, n_own, y, err);
    for (int64_t o = 0; code == FD_OK && bias && o < n_row; o++) {
        const double own = (double)fd_weight_element(bias, o);
        for (int64_t i = 0; i < n_own; i++) y[i * n_row + o] += own;
    }
    for (int64_t i = 0; code == FD_OK && i < n_own; i++)
        memcpy((double *)args->out + rows[i] * n_row, y + i * n_row, sizeof *y * (size_t)n_row);
    free(rows);
    free(x);
    return code;
}

/* Is some row that of rounded factors? One that is not finite is, and so are experts that were not chosen. */
static bool takes_rounded(const fd_replay *replay, const fd_op_args *args, int64_t width) {
    bool any = args->node->op != FD_OP_MATMUL;
    for (int64_t r = 0; r < args->n_pos && !any; r++)
        any =
            fd_cuda_kernel_of_row(replay, args->node, fd_dot_weight(args), r % replay->n_pos).how == FD_CUDA_ROUNDED ||
            !is_finite((const double *)args->in[0] + r * width, width);
    return any;
}

static fd_code run_beside_binary32(fd_replay *replay, const fd_op_args *args, fd_error *err) {
    static const fd_dot_type types[] = {FD_DOT_AS_IS, FD_DOT_TF32_CUT, FD_DOT_TF32};
    for (int i = 0; i < 3; i++) FD_TRY(run_rows_of(replay, *args, types[i], err));
    return FD_OK;
}

fd_code fd_cuda_run(fd_replay *replay, fd_op_args args, fd_error *err) {
    if (fd_dot_is_product(args.node->op) && fd_dot_weight(&args)->dtype == FD_F32)
        return run_beside_binary32(replay, &args, err);
    const fd_node *from = &replay->o.graph->nodes[args.node->input[0]];
    const int64_t width = fd_node_row_stride(from, replay->n_kv), stride = fd_node_row_stride(args.node, replay->n_kv);
    const fd_op_args as_they_are = args;
    const fd_weight *weight = fd_dot_weight(&args);
    const double *x = args.in[0];
    double *rounded = malloc(sizeof *rounded * (size_t)(args.n_pos * width + 1));
    float *row = malloc(sizeof *row * (size_t)(width + 1));
    fd_code code = rounded && row ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", args.node->name);
    for (int64_t r = 0; r < args.n_pos && code == FD_OK; r++) {
        for (int64_t i = 0; i < width; i++) row[i] = (float)x[r * width + i];
        fd_dot_round_input(fd_cuda_kernel_of_row(replay, args.node, weight, r % replay->n_pos).type, args.graph,
                           args.node, row, 1, width);
        for (int64_t i = 0; i < width; i++) rounded[r * width + i] = (double)row[i];
    }
    args.in[0] = rounded;
    if (code == FD_OK && takes_rounded(replay, &as_they_are, width)) code = fd_replay_run_rounded(replay, args, err);
    if (code == FD_OK && !fd_dot_is_product(args.node->op)) {
        code = run_rows_of(replay, args, FD_DOT_TF32_CUT, err);
        if (code == FD_OK) code = run_rows_of(replay, args, FD_DOT_TF32, err);
    }
    const bool is_matrix = args.node->op == FD_OP_MATMUL;
    for (int many = 0; many < 2 && code == FD_OK && is_matrix; many++)
        if (fd_cuda_blocks_of(weight->dtype, many)) code = multiply_blocks(replay, &as_they_are, many, err);
    for (int64_t r = 0; r < args.n_pos && code == FD_OK; r++) {
        const fd_cuda_kernel k = fd_cuda_kernel_of_row(replay, args.node, weight, r % replay->n_pos);
        double *y = (double *)args.out + r * stride;
        double *room = fd_replay_is_own_row(replay, &as_they_are, r) ? replay->room + r % replay->n_pos * stride : NULL;
        if (k.how == FD_CUDA_ROUNDED || (k.how == FD_CUDA_BLOCKS && is_matrix)) continue;
        if (args.node->op == FD_OP_ATTN_MIX)
            code = mix_row(&as_they_are, k, r, x + r * width, y, room, err);
        else
            code = fd_cuda_multiply_row(replay, &as_they_are, k, 0, r, x + r * width, y, room, err);
    }
    free(rounded);
    free(row);
    return code;
}
