/* A program of somebody else's that uses the installed library: runs two tokens and prints the first logit's bits. */
#include <stdio.h>
#include <stdlib.h>

#include <model/gguf/gguf.h>
#include <numerics/contract.h>
#include <reference_cpu/reference.h>

static int fail(const fd_error *err) {
    fprintf(stderr, "%s\n", err->message);
    return 2;
}

int main(int argc, char **argv) {
    fd_error err = {0};
    fd_gguf *gguf;
    fd_graph *graph;
    fd_exec *exec;
    if (argc != 2) return 2;
    if (fd_gguf_open(argv[1], &gguf, &err) != FD_OK) return fail(&err);
    if (fd_graph_build(gguf, &graph, NULL, &err) != FD_OK) return fail(&err);
    fd_reference_options options = {.n_ctx = 8};
    if (fd_reference_new(graph, &options, &exec, &err) != FD_OK) return fail(&err);
    int32_t tokens[2] = {1, 2};
    float *logits = malloc(sizeof *logits * (size_t)graph->hparams.n_vocab);
    fd_batch batch = {.tokens = tokens, .n_tok = 2, .logits = logits};
    if (fd_exec_forward(exec, &batch, &err) != FD_OK) return fail(&err);
    printf("%08x\n", fd_bits32(logits[0]));
    free(logits);
    fd_exec_free(exec);
    fd_graph_free(graph);
    fd_gguf_close(gguf);
    return 0;
}
