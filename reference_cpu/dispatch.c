/* Which functions run the ops: the instruction sets of this build, what this machine has of them, what FD_SIMD asks
 * for. */
#include <stdlib.h>
#include <string.h>

#include "reference_cpu/ops.h"

#ifdef FD_REF_X86 /* set by the build where v3 and v4 are compiled */
#define FOR_EACH_ISA(X) X(baseline) X(v3) X(v4)
#else
#define FOR_EACH_ISA(X) X(baseline)
#endif

#define DECLARE(isa)                                                                                                   \
    extern const fd_ref_ops fd_ref_ops_f32_##isa, fd_ref_ops_f64_##isa, fd_simd_ops_##isa, fd_simd_ops_f64_##isa;
FOR_EACH_ISA(DECLARE)

/* The products of q8act, which stand in the place of the exact ones. */
#define DECLARE_Q8(isa)                                                                                                \
    void fd_ref_q8act_matmul_f32_##isa(const fd_op_args *, int64_t, int64_t);                                          \
    void fd_ref_q8act_expert_matmul_f32_##isa(const fd_op_args *, int64_t, int64_t);                                   \
    void fd_simd_q8act_matmul_##isa(const fd_op_args *, int64_t, int64_t);                                             \
    void fd_simd_q8act_expert_matmul_##isa(const fd_op_args *, int64_t, int64_t);
FOR_EACH_ISA(DECLARE_Q8)

static const struct {
    const fd_ref_ops *f32, *f64, *simd, *simd_f64;
    fd_ref_fn q8_matmul[2], q8_expert_matmul[2]; /* scalar, vectorised */
} built[FD_ISA_COUNT] = {
#define ROW(isa)                                                                                                       \
    {&fd_ref_ops_f32_##isa,                                                                                            \
     &fd_ref_ops_f64_##isa,                                                                                            \
     &fd_simd_ops_##isa,                                                                                               \
     &fd_simd_ops_f64_##isa,                                                                                           \
     {fd_ref_q8act_matmul_f32_##isa, fd_simd_q8act_matmul_##isa},                                                      \
     {fd_ref_q8act_expert_matmul_f32_##isa, fd_simd_q8act_expert_matmul_##isa}},
    FOR_EACH_ISA(ROW)};

static const char *const names[FD_ISA_COUNT] = {"baseline", "v3", "v4"};

const char *fd_isa_name(fd_isa isa) {
    return names[isa];
}

static bool machine_has(fd_isa isa) {
    if (isa == FD_ISA_BASELINE) return true;
#ifdef FD_REF_X86
    bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    if (isa == FD_ISA_V3) return v3;
    return v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
#else
    return false;
#endif
}

fd_isa fd_isa_best(void) {
    fd_isa best = FD_ISA_BASELINE;
    for (int isa = 0; isa < FD_ISA_COUNT; isa++)
        if (built[isa].f32 && machine_has((fd_isa)isa)) best = (fd_isa)isa;
    return best;
}

fd_code fd_isa_wanted(fd_isa *out, fd_error *err) {
    const char *wanted = getenv("FD_SIMD");
    *out = fd_isa_best();
    if (!wanted || !*wanted) return FD_OK;
    for (int isa = 0; isa < FD_ISA_COUNT; isa++) {
        if (strcmp(wanted, names[isa]) != 0) continue;
        if (!built[isa].f32 || !machine_has((fd_isa)isa))
            return fd_fail(err, FD_ERR_UNSUPPORTED, "FD_SIMD=%s: this machine has no more than %s", wanted,
                           names[*out]);
        *out = (fd_isa)isa;
        return FD_OK;
    }
    return fd_fail(err, FD_ERR_INPUT, "FD_SIMD=%s: expected baseline, v3 or v4", wanted);
}

fd_ref_ops fd_ref_select(fd_numerics numerics, fd_isa isa, bool scalar) {
    if (scalar) isa = FD_ISA_BASELINE;
    bool f64 = numerics == FD_NUMERICS_F64;
    const fd_ref_ops *simd = f64 ? built[isa].simd_f64 : built[isa].simd;
    fd_ref_ops ops = f64 ? *built[isa].f64 : *built[isa].f32;
    for (int op = 0; op < FD_OP_COUNT && !scalar; op++)
        if (simd->run[op]) ops.run[op] = simd->run[op];
    if (numerics == FD_NUMERICS_Q8ACT) {
        ops.run[FD_OP_MATMUL] = built[isa].q8_matmul[!scalar];
        ops.run[FD_OP_EXPERT_MATMUL] = built[isa].q8_expert_matmul[!scalar];
    }
    return ops;
}
