/* The least that records a trace: a model of one embedding and one matrix, computed for three tokens at once and then
 * for two more, one by one.
 *
 *     cc main.c $(pkg-config --cflags --libs firstdiff_trace) -o main
 *     FIRSTDIFF_TRACE=toy.h5 ./main && firstdiff inspect toy.h5
 *
 * Without FIRSTDIFF_TRACE the calls do nothing: they can stay in the code. */
#include <firstdiff_trace.h>
#include <stdio.h>

enum { N_EMBD = 4, N_VOCAB = 6 };

static float embedding[N_VOCAB][N_EMBD], output[N_VOCAB][N_EMBD];

static void forward(const int32_t *tokens, int n, fd_tracer *trace) {
    float x[8][N_EMBD], logits[8][N_VOCAB];
    fd_tracer_step(trace, tokens, n);
    for (int t = 0; t < n; t++)
        for (int i = 0; i < N_EMBD; i++) x[t][i] = embedding[tokens[t]][i];
    fd_tracer_put_f32(trace, "token_embd", &x[0][0], n, N_EMBD);
    for (int t = 0; t < n; t++)
        for (int o = 0; o < N_VOCAB; o++) {
            logits[t][o] = 0;
            for (int i = 0; i < N_EMBD; i++) logits[t][o] += output[o][i] * x[t][i];
        }
    fd_tracer_put_f32(trace, "logits", &logits[0][0], n, N_VOCAB);
}

int main(void) {
    const int32_t tokens[] = {5, 0, 3, 1, 1};
    char message[512];
    for (int o = 0; o < N_VOCAB; o++)
        for (int i = 0; i < N_EMBD; i++) {
            embedding[o][i] = (float)(o + i);
            output[o][i] = (float)(o - i);
        }
    fd_tracer_options options = {.engine = "toy 1.0", .numerics = "f32"};
    fd_tracer *trace = fd_tracer_open(NULL, &options);
    fd_tracer_put_weight_f32(trace, "token_embd.weight", &embedding[0][0], N_VOCAB, N_EMBD); /* what was loaded */
    fd_tracer_put_weight_f32(trace, "output.weight", &output[0][0], N_VOCAB, N_EMBD);
    forward(tokens, 3, trace);
    forward(tokens + 3, 1, trace);
    forward(tokens + 4, 1, trace);
    if (fd_tracer_close(trace, message, sizeof message)) {
        fprintf(stderr, "no trace: %s\n", message);
        return 2;
    }
    return 0;
}
