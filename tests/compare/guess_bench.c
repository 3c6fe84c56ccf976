#include "tests/compare/guess_bench.h"

#include <criterion/criterion.h>
#include <string.h>

#include "tests/compare/said.h"

const char *const all = "*", *const fused = "*norm,*attn_[qkv],*attn_out,*proj,*inp,*down,*l_out,logits",
                  *const hooks = "token_embd,*norm,*attn_[qkv],*proj,*down,*l_out,logits", /* no ffn_inp */
                      *const layers = "token_embd,*l_out,logits";

void expect_guess(const bench *b, const guessed *bug, const char *tensors, const char *emulated, bool stated) {
    fd_graph *faulty;
    fd_error err = {0};
    must(fd_graph_clone(b->graph, &faulty, &err), &err);
    for (int32_t k = 0; k < faulty->n_node; k++)
        if (fd_ends_with(faulty->nodes[k].name, bug->nodes)) bug->edit(faulty, &faulty->nodes[k]);
    fd_verdict v =
        judged(b, faulty, (recording){.emulated = emulated, .tensors = tensors, .numerics = stated ? NULL : "unknown"});
    const fd_explanation *e = &v.diagnosis.explanation;
    const char *name = e->named ? e->remaining[0].name : "", *says = e->named ? e->remaining[0].summary : "";
    cr_expect_eq(v.status, FD_DIVERGED, "%s in %s, %s", bug->name, emulated, tensors);
    cr_expect(strcmp(name, bug->name) == 0 && strstr(says, bug->says), "%s in %s, %s: named \"%s\" (%s); %s", bug->name,
              emulated, tensors, name, says, unnamed_of(e));
    fd_verdict_free(&v);
    fd_graph_free(faulty);
}
