/* kernel_check [PART…]: kernels against the contract on the host, bit by bit. */
#include "tests/gpu/kernel_check.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    void (*run)(gpu_test *test);
} parts[] = {
    {"comparison", check_comparison},
    {"rows", check_rows},
    {"more_rows", check_more_rows},
    {"matmul", check_matmul},
    {"many_rows", check_many_rows},
    {"matvec_fused", check_matvec_fused},
    {"replay_products", check_replay_products},
    {"attention", check_attention},
    {"attention_decode", check_attention_decode},
    {"experts", check_experts},
    {"recurrent", check_recurrent},
    {"heads", check_heads},
    {"q8", check_q8},
    {"few_f16", check_few_f16},
    {"sample", check_sample},
    {"summary", check_summary},
    {"fast", check_fast},
};

static bool wanted(const char *name, int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], name) == 0) return true;
    return argc < 2;
}

int main(int argc, char **argv) {
    gpu_test test;
    gpu_open(&test);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        int32_t cases = test.n_case, failed = test.n_failed;
        if (!wanted(parts[i].name, argc, argv)) continue;
        parts[i].run(&test);
        printf("%-18s %5d cases, %d failed\n", parts[i].name, test.n_case - cases, test.n_failed - failed);
        fflush(stdout);
    }
    return gpu_close(&test);
}
