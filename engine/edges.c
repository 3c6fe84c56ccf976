#include "engine/edges.h"

enum { MANY = 2 };

bool fd_reads(const fd_graph *graph, int32_t id, int32_t input) {
    for (int k = 0; k < FD_MAX_INPUTS; k++)
        if (graph->nodes[id].input[k] == input) return true;
    return false;
}

int fd_readers_of(const fd_graph *graph, int32_t id, int32_t *reader) {
    int n = 0;
    for (int32_t i = id + 1; i < graph->n_node; i++)
        for (int k = 0; k < FD_MAX_INPUTS; k++)
            if (graph->nodes[i].input[k] == id && n < MANY) {
                n++;
                *reader = i;
            }
    return n;
}

bool fd_is_plain(const fd_graph *graph, int32_t id, fd_op op) {
    return id >= 0 && graph->nodes[id].op == op && !graph->nodes[id].override;
}

int32_t fd_only_reader(const fd_graph *graph, int32_t id, fd_op op) {
    int32_t reader = -1;
    return fd_readers_of(graph, id, &reader) == 1 && fd_is_plain(graph, reader, op) ? reader : -1;
}

int32_t fd_reader_with(const fd_graph *graph, int32_t id, fd_op op) {
    for (int32_t i = id + 1; i < graph->n_node; i++)
        if (graph->nodes[i].op == op && fd_reads(graph, i, id)) return i;
    return -1;
}

bool fd_feeds_choice(const fd_graph *graph, int32_t id) {
    for (int32_t i = id + 1; i < graph->n_node; i++) {
        fd_op op = graph->nodes[i].op;
        if ((op == FD_OP_SOFTMAX || op == FD_OP_SIGMOID || op == FD_OP_TOP_K || op == FD_OP_EXPERT_WEIGHTS) &&
            fd_reads(graph, i, id))
            return true;
    }
    return false;
}

bool fd_is_norm_of_matmuls(const fd_graph *graph, int32_t id) {
    if (!fd_is_plain(graph, id, FD_OP_RMS_NORM) || graph->nodes[id].n_dim != 1) return false;
    for (int32_t i = id + 1; i < graph->n_node; i++)
        if (fd_reads(graph, i, id) && !fd_is_plain(graph, i, FD_OP_MATMUL)) return false;
    return true;
}
