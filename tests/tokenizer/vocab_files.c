#include "vocab_files.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/tokenizer/piece_map.h"

bool shared_path(const char *name, char path[PATH_SIZE]) {
    const char *root = getenv("FD_SHARED");
    int n = snprintf(path, PATH_SIZE, "%s/%s", root ? root : FD_SOURCE_DIR "/../shared", name);
    return n > 0 && n < PATH_SIZE && access(path, R_OK) == 0;
}

char *read_file(const char *path, size_t *size) {
    *size = 0;
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    fseek(file, 0, SEEK_END);
    long n = ftell(file);
    rewind(file);
    char *data = malloc((size_t)n + 1);
    *size = fread(data, 1, (size_t)n, file);
    data[*size] = '\0';
    fclose(file);
    return data;
}

static const char SEPARATOR[] = "\n__ggml_vocab_test__\n";

vectors read_vectors(const char *name) {
    char file[256], in[PATH_SIZE], out[PATH_SIZE];
    snprintf(file, sizeof file, "vocab/%s.inp", name);
    if (!shared_path(file, in)) return (vectors){0};
    snprintf(file, sizeof file, "vocab/%s.out", name);
    return shared_path(file, out) ? read_vectors_at(in, out) : (vectors){0};
}

vectors read_vectors_at(const char *in, const char *out) {
    size_t n_in = 0, n_out = 0;
    vectors all = {.in = read_file(in, &n_in), .out = read_file(out, &n_out)};
    if (!all.in || !all.out) return all;
    all.cases = calloc(n_in + 1, sizeof(vector_case));
    for (char *at = all.in, *end; (end = strstr(at, SEPARATOR)); at = end + strlen(SEPARATOR))
        all.cases[all.n++].text = (fd_string){at, (size_t)(end - at)};
    int line = 0;
    for (char *at = all.out, *end; (end = strchr(at, '\n')); at = end + 1, line++) {
        *end = '\0';
        if (line >= all.n) continue;
        vector_case *one = &all.cases[line];
        one->ids = malloc(((size_t)(end - at) + 1) * sizeof *one->ids);
        char *rest = at;
        for (long id = strtol(at, &rest, 10); rest != at; id = strtol(at, &rest, 10)) {
            one->ids[one->n_id++] = (int32_t)id;
            at = rest;
        }
    }
    if (line != all.n) all.n = 0;
    return all;
}

void free_vectors(vectors *all) {
    for (int i = 0; i < all->n; i++) free(all->cases[i].ids);
    free(all->cases);
    free(all->in);
    free(all->out);
    *all = (vectors){0};
}

int count_wrong(const fd_tokenizer *tokenizer, const vectors *all, int *first) {
    int wrong = 0;
    *first = -1;
    for (int i = 0; i < all->n; i++) {
        const vector_case *one = &all->cases[i];
        int32_t *ids = NULL, n = 0;
        fd_error err = {0};
        fd_code code = fd_tokenize(tokenizer, one->text.data, one->text.size, false, false, &ids, &n, &err);
        bool right = code == FD_OK && n == one->n_id && memcmp(ids, one->ids, (size_t)n * sizeof *ids) == 0;
        free(ids);
        if (!right && wrong++ == 0) *first = i;
    }
    return wrong;
}

fd_tokenizer *load_gguf(const char *path) {
    fd_error err = {0};
    fd_gguf *gguf = NULL;
    fd_tokenizer *tokenizer = NULL;
    if (fd_gguf_open(path, &gguf, &err) != FD_OK || fd_tokenizer_from_gguf(gguf, &tokenizer, &err) != FD_OK)
        fprintf(stderr, "%s\n", err.message);
    fd_gguf_close(gguf);
    return tokenizer;
}

static fd_tokenizer *from_tables(const char *pre, fd_string *tokens, int32_t n_token, fd_string *merges,
                                 int64_t n_merge) {
    fd_vocab vocab = {.model = "gpt2",
                      .pre = pre,
                      .n_token = n_token,
                      .tokens = tokens,
                      .merges = merges,
                      .n_merge = n_merge,
                      .bos = -1,
                      .eos = -1,
                      .unk = -1};
    fd_error err = {0};
    fd_tokenizer *tokenizer = NULL;
    if (fd_tokenizer_from_vocab(&vocab, &tokenizer, &err) != FD_OK) fprintf(stderr, "%s\n", err.message);
    return tokenizer;
}

fd_tokenizer *load_json(const char *encoder, const char *merges_path, const char *pre) {
    json_t *root = json_load_file(encoder, 0, NULL), *value;
    const char *key;
    size_t n_token = json_object_size(root), size;
    fd_string *tokens = calloc(n_token + 1, sizeof *tokens);
    json_object_foreach(root, key, value) {
        json_int_t id = json_integer_value(value);
        if (id >= 0 && (size_t)id < n_token) tokens[id] = (fd_string){key, strlen(key)};
    }
    char *text = read_file(merges_path, &size);
    if (!text) return NULL;
    fd_string *merges = calloc(size + 1, sizeof *merges);
    int64_t n_merge = 0;
    for (char *at = text, *end; (end = strchr(at, '\n')); at = end + 1)
        if (strncmp(at, "#version", 8) != 0 && end > at) merges[n_merge++] = (fd_string){at, (size_t)(end - at)};
    fd_tokenizer *tokenizer = from_tables(pre, tokens, (int32_t)n_token, merges, n_merge);
    free(merges);
    free(tokens);
    free(text);
    json_decref(root);
    return tokenizer;
}

size_t byte_character(unsigned char byte, char to[2]) {
    unsigned c = byte;
    if (byte <= 32)
        c = 256u + byte;
    else if (byte >= 127 && byte <= 160)
        c = 256u + 33u + (byte - 127u);
    else if (byte == 173)
        c = 256u + 67u;
    if (c < 0x80) {
        to[0] = (char)c;
        return 1;
    }
    to[0] = (char)(0xc0 | c >> 6);
    to[1] = (char)(0x80 | (c & 0x3f));
    return 2;
}

static size_t write_characters(const char *bytes, size_t n, char *to) {
    size_t at = 0;
    for (size_t i = 0; i < n; i++) at += byte_character((unsigned char)bytes[i], to + at);
    return at;
}

static size_t decode_base64(const char *text, size_t n, char *to) {
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    unsigned bits = 0, held = 0;
    size_t size = 0;
    for (size_t i = 0; i < n && text[i] != '='; i++) {
        bits = bits << 6 | (unsigned)(strchr(alphabet, text[i]) - alphabet);
        held += 6;
        if (held < 8) continue;
        held -= 8;
        to[size++] = (char)(bits >> held);
    }
    return size;
}

/* Where the token's bytes part when everything of a better rank has been merged; 0 when more than two parts are
 * left. */
static size_t find_parting(const fd_piece_map *ranks, const char *bytes, size_t n, int32_t rank) {
    size_t cuts[300], n_part = n; /* part i is [cuts[i], cuts[i + 1]) */
    if (n + 1 > 300) return 0;
    for (size_t i = 0; i <= n; i++) cuts[i] = i;
    while (n_part > 2) {
        int32_t best = rank;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n_part; i++) {
            int32_t found = fd_piece_map_find(ranks, bytes + cuts[i], cuts[i + 2] - cuts[i]);
            if (found < 0 || found >= best) continue;
            best = found;
            at = i + 1;
        }
        if (at == 0) return 0;
        memmove(cuts + at, cuts + at + 1, (n_part - at) * sizeof *cuts);
        n_part--;
    }
    return cuts[1];
}

fd_tokenizer *load_tiktoken(const char *path, const char *pre) {
    size_t size, at_pool = 0;
    char *text = read_file(path, &size), *pool = malloc(8 * size + 8);
    if (!text) return NULL;
    fd_piece_map ranks = {0}; /* a piece's number is its rank, as the lines stand in rising rank */
    fd_error err = {0};
    for (char *at = text, *end; (end = strchr(at, '\n')); at = end + 1) {
        char bytes[1024];
        int32_t rank;
        char *space = memchr(at, ' ', (size_t)(end - at));
        size_t n = decode_base64(at, (size_t)(space - at), bytes);
        if (fd_piece_map_add(&ranks, bytes, n, &rank, &err) != FD_OK || rank != atoi(space + 1)) return NULL;
    }
    fd_string *tokens = calloc((size_t)ranks.n, sizeof *tokens), *merges = calloc((size_t)ranks.n, sizeof *merges);
    int64_t n_merge = 0;
    for (int32_t rank = 0; rank < ranks.n; rank++) {
        const char *bytes = ranks.pool + ranks.starts[rank];
        size_t n = ranks.starts[rank + 1] - ranks.starts[rank];
        tokens[rank] = (fd_string){pool + at_pool, write_characters(bytes, n, pool + at_pool)};
        at_pool += tokens[rank].size;
        size_t parting = n > 1 ? find_parting(&ranks, bytes, n, rank) : 0;
        if (parting == 0) continue;
        char *line = pool + at_pool;
        size_t left = write_characters(bytes, parting, line);
        line[left] = ' ';
        size_t right = write_characters(bytes + parting, n - parting, line + left + 1);
        merges[n_merge++] = (fd_string){line, left + 1 + right};
        at_pool += left + 1 + right;
    }
    fd_tokenizer *tokenizer = from_tables(pre, tokens, ranks.n, merges, n_merge);
    fd_piece_map_free(&ranks);
    free(tokens);
    free(merges);
    free(pool);
    free(text);
    return tokenizer;
}

size_t decode_ids(const fd_tokenizer *tokenizer, const int32_t *ids, int32_t n, bool special, char *to,
                  size_t capacity) {
    size_t at = 0;
    for (int32_t i = 0; i < n; i++) {
        size_t room = capacity > at ? capacity - at : 0;
        int32_t size = fd_token_bytes(tokenizer, ids[i], special, to + (room ? at : 0), (int32_t)room);
        if (size > 0) at += (size_t)size;
    }
    return at;
}
