/* Which rank a name speaks of, as engines write it (dumpers/import/ranks/rank_name.c). */
#include <criterion/criterion.h>
#include <string.h>

#include "dumpers/import/ranks/internal.h"

typedef struct name_case {
    const char *name, *rest;
    int32_t rank; /* -1: it names none */
} name_case;

static const name_case cases[] = {
    {"rank0/q-3", "q-3", 0},
    {"rank_12/s1.blk.0.attn_q", "s1.blk.0.attn_q", 12},
    {"tp3/q", "q", 3},
    {"run/tp_rank_1/step_2/q", "run/step_2/q", 1},
    {"step=0___rank=1___dump_index=7___name=q___layer_id=3", "step=0___rank=0___dump_index=7___name=q___layer_id=3", 1},
    {"forward_pass_id=2___rank=13___name=q", "forward_pass_id=2___rank=0___name=q", 13},
    {"sglang_dump_1763811234.25_2/forward_pass_id=0___name=q", "forward_pass_id=0___name=q", 2},
    {"TP1_PP0_Rank1_pid77/Pass00003/model.norm", "step_3/model.norm", 1},
    {"tp1/Pass3/q", "step_3/q", 1},
    {"TP0_PP0_Rank0_pid7/Pass00000/model.layers.0.mlp", "step_0/model.layers.0.mlp", 0},
    {"step_0/model.norm/outputs_cuda_1", "step_0/model.norm", 1},
    {"step_0/model.norm/outputs_0_cuda_1", "step_0/model.norm", 1},
    {"step_1/model.norm/outputs_1_cuda_10", "step_1/model.norm:out1", 10},
    {"step_0/model.norm/inputs_0_cuda_0", "step_0/model.norm:in", 0},
    {"step_0/model.norm/inputs_1_cuda_0", "step_0/model.norm:in1", 0},
    {"q-3", NULL, -1},
    {"ranking/q", NULL, -1},
    {"rank1", NULL, -1},
    {"rank1x/q", NULL, -1},
    {"rank4096/q", NULL, -1},
    {"frank=1___name=q", NULL, -1},
    {"outputs_cuda_1x", NULL, -1},
    {"rank0/", NULL, -1},
    {"", NULL, -1},
};

Test(ranks, names_lose_their_rank) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char rest[1100] = "";
        int32_t rank = -1;
        bool found = fd_rank_of_name(cases[i].name, rest, sizeof rest, &rank);
        cr_expect_eq(found, cases[i].rank >= 0, "%s", cases[i].name);
        if (!found) continue;
        cr_expect_eq(rank, cases[i].rank, "%s: rank %d", cases[i].name, rank);
        cr_expect_str_eq(rest, cases[i].rest, "%s: \"%s\"", cases[i].name, rest);
    }
}

Test(ranks, long_names_are_refused_not_cut) {
    char name[1200], rest[1100];
    int32_t rank;
    memset(name, 'x', sizeof name);
    memcpy(name, "rank0/", 6);
    name[sizeof name - 1] = '\0';
    cr_expect_not(fd_rank_of_name(name, rest, sizeof rest, &rank));
}

Test(ranks, a_tensor_s_rank_is_its_last) {
    size_t length;
    cr_expect_eq(fd_rank_of_tensor("q:rank2:rank13", &length), 13);
    cr_expect_eq(length, strlen("q:rank2"));
    cr_expect_eq(fd_rank_of_tensor("q:ranks", &length), -1);
    cr_expect_eq(length, strlen("q:ranks"));
}
