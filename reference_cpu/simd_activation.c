/* SILU_MUL, vectorised. */
#include "reference_cpu/simd.h"

void SIMD(silu_mul)(const fd_op_args *args, int64_t begin, int64_t end) {
    const float *gate = args->in[0], *up = args->in[1];
    float *y = args->out;
    int64_t whole = end - (end - begin) % VL, rest = end - whole;
    for (int64_t i = begin; i < whole; i += VL) v_store(y + i, v_silu(v_load(gate + i)) * v_load(up + i));
    v_store_part(y + whole, v_silu(v_load_part(gate + whole, rest)) * v_load_part(up + whole, rest), rest);
}
