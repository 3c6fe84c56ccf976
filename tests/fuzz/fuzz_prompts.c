/* libFuzzer target for files of prompts: whatever bytes stand there, as lines or as JSON lines (the first byte decides),
 * a list that is accepted has prompts, and each has ids of the vocabulary. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/prompt_list.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition, const char *promise) {
    if (condition) return;
    fprintf(stderr, "fuzz_prompts: broken promise: %s\n", promise);
    abort();
}

#ifdef FD_FUZZ_PLANTED
static volatile char sink;
#endif

/* <unk>, a letter and a pair of them: text becomes ids without a model's file. */
static const fd_cli_model *small_model(void) {
    static const fd_string tokens[] = {{"<unk>", 5}, {"a", 1}, {"aa", 2}};
    static const int32_t types[] = {FD_TOKEN_UNKNOWN, FD_TOKEN_NORMAL, FD_TOKEN_NORMAL};
    static const float scores[] = {0, -2, -1};
    static fd_graph graph = {.hparams = {.n_vocab = 3}};
    static fd_cli_model model = {.graph = &graph};
    fd_vocab vocab = {
        .model = "llama", .n_token = 3, .tokens = tokens, .scores = scores, .types = types, .bos = -1, .eos = -1};
    if (!model.tokenizer)
        require(fd_tokenizer_from_vocab(&vocab, &model.tokenizer, &model.tokenizer_error) == FD_OK,
                "the vocabulary is one");
    return &model;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const fd_cli_model *model = small_model();
    fd_cli_prompts list = {0};
    fd_error err = {0};
    if (size == 0) return 0;
    bool json = data[0] == '{';
    char *copy = malloc(size); /* of the very size, so that a byte too far is seen */
    if (!copy) return 0;
    memcpy(copy, data, size);
#ifdef FD_FUZZ_PLANTED
    sink = copy[size];
#endif
    fd_code code = fd_cli_prompts_parse(copy, size, json, "fuzz", model, &list, &err);
    require(code == FD_OK || err.message[0], "a refusal says why");
    require(code != FD_OK || list.n > 0, "a list that is accepted is not empty");
    for (int32_t i = 0; i < list.n; i++) {
        require(list.items[i].n_id > 0 && list.items[i].line > 0, "every prompt has ids and a line");
        for (int32_t k = 0; k < list.items[i].n_id; k++)
            require(list.items[i].ids[k] >= 0 && list.items[i].ids[k] < model->graph->hparams.n_vocab,
                    "ids are of the vocabulary");
    }
    fd_cli_prompts_free(&list);
    free(copy);
    return 0;
}
