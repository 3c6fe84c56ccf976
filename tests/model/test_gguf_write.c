/* Writing: what was put is read back, and a write that fails leaves the directory as it was. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/gguf_writer/gguf_writer.h"
#include "tests/common.h"
#include "tests/ops/shared_files.h"
#include "tests/scratch.h"

static char folder[SCRATCH_PATH];

static void make_folder(void) {
    cr_assert_not_null(mkdtemp(scratch_path(folder, "fd_gguf_write_XXXXXX")));
}

static const char *in_folder(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int n_files(void) {
    int n = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));) n += entry->d_name[0] != '.';
    if (dir) closedir(dir);
    return n;
}

static void remove_folder(void) {
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        if (entry->d_name[0] != '.') unlink(in_folder(entry->d_name));
    if (dir) closedir(dir);
    rmdir(folder);
}

TestSuite(gguf_write, .init = make_folder, .fini = remove_folder);

static fd_error err;
#define MUST(call) cr_assert_eq(call, FD_OK, "%s", err.message)

typedef struct counter { /* a fill that writes its element's number, and remembers how it was called */
    int64_t columns, next_row;
    int n_call;
    int64_t fail_at_row; /* -1: never */
} counter;

static fd_code fill_numbers(void *user, int64_t row0, int64_t n_row, void *to, fd_error *error) {
    counter *c = user;
    cr_assert_eq(row0, c->next_row, "rows come in order, each once");
    if (c->fail_at_row >= row0 && c->fail_at_row < row0 + n_row)
        return fd_fail(error, FD_ERR_INPUT, "the source ran dry");
    float *values = to;
    for (int64_t i = 0; i < n_row * c->columns; i++) values[i] = (float)(row0 * c->columns + i);
    c->next_row = row0 + n_row;
    c->n_call++;
    return FD_OK;
}

static fd_gguf_writer *new_writer(void) {
    fd_gguf_writer *writer;
    MUST(fd_gguf_writer_new(&writer, &err));
    return kept(writer);
}

static fd_gguf *open_written(const char *name) {
    fd_gguf *gguf;
    MUST(fd_gguf_open(in_folder(name), &gguf, &err));
    return kept(gguf);
}

static fd_gguf_writer *writer_with(counter *c, int64_t rows) {
    fd_gguf_writer *writer = new_writer();
    MUST(fd_gguf_put_string(writer, "general.architecture", "test", &err));
    int64_t shape[2] = {c->columns, rows};
    MUST(fd_gguf_put_tensor(writer, "filled", FD_F32, 2, shape, NULL, fill_numbers, c, &err));
    return writer;
}

Test(gguf_write, everything_put_is_read_back) {
    fd_gguf_writer *writer = new_writer();
    const uint16_t u16[3] = {1, 2, 65535};
    const fd_string words[3] = {{"plain", 5}, {"", 0}, {"with\0nul", 8}};
    const uint8_t q8[2 * 34] = {0, 60, 1, 2, 3}, odd[3] = {9, 8, 7};
    MUST(fd_gguf_put_u32(writer, "u32", 4000000000u, &err));
    MUST(fd_gguf_put_f32(writer, "f32", 1e-6f, &err));
    MUST(fd_gguf_put_bool(writer, "bool", true, &err));
    MUST(fd_gguf_put_string(writer, "string", "naïve ✓", &err));
    MUST(fd_gguf_put_array(writer, "u16", FD_GGUF_U16, u16, 3, &err));
    MUST(fd_gguf_put_array(writer, "nothing", FD_GGUF_F64, NULL, 0, &err));
    MUST(fd_gguf_put_strings(writer, "words", words, 3, &err));
    MUST(fd_gguf_put_tensor(writer, "odd", 24 /* I8 */, 1, (int64_t[]){3}, odd, NULL, NULL, &err));
    MUST(fd_gguf_put_tensor(writer, "q8", FD_Q8_0, 2, (int64_t[]){32, 2}, q8, NULL, NULL, &err));
    counter c = {.columns = 1000, .fail_at_row = -1};
    MUST(fd_gguf_put_tensor(writer, "filled", FD_F32, 3, (int64_t[]){1000, 50, 100}, NULL, fill_numbers, &c, &err));
    MUST(fd_gguf_write(writer, in_folder("a.gguf"), &err));
    cr_expect_eq(n_files(), 1);
    cr_expect(c.next_row == 5000 && c.n_call > 1, "20 MB are filled in pieces (%d)", c.n_call);

    fd_gguf *gguf = open_written("a.gguf");
    cr_expect_eq(fd_gguf_version(gguf), 3u);
    cr_expect_eq(fd_gguf_n_kv(gguf), 7u);
    int64_t integer;
    double number;
    bool flag;
    fd_string string;
    cr_expect(fd_gguf_get_i64(gguf, "u32", 0, &integer, &err) == FD_OK && integer == 4000000000);
    cr_expect(fd_gguf_get_f64(gguf, "f32", 0, &number, &err) == FD_OK && number == (double)1e-6f);
    cr_expect(fd_gguf_get_bool(gguf, "bool", false, &flag, &err) == FD_OK && flag);
    cr_expect(fd_gguf_get_string(gguf, "string", &string, &err) == FD_OK && string.size == 10 &&
              !memcmp(string.data, "naïve ✓", 10));
    cr_expect(fd_gguf_item_i64(fd_gguf_find(gguf, "u16"), 2, &integer) && integer == 65535);
    cr_expect(fd_gguf_find(gguf, "nothing")->count == 0 &&
              !fd_gguf_item_f64(fd_gguf_find(gguf, "nothing"), 0, &number));
    size_t cursor = 0;
    for (int i = 0; i < 3; i++) {
        cr_assert(fd_gguf_next_string(fd_gguf_find(gguf, "words"), &cursor, &string));
        cr_expect(string.size == words[i].size && !memcmp(string.data, words[i].data, string.size));
    }
    cr_expect_eq(memcmp(fd_gguf_find_tensor(gguf, "odd")->data, odd, 3), 0);
    cr_expect_eq(memcmp(fd_gguf_find_tensor(gguf, "q8")->data, q8, sizeof q8), 0);
    const fd_gguf_tensor *filled = fd_gguf_find_tensor(gguf, "filled");
    cr_expect(filled->n_dim == 3 && filled->shape[0] == 1000 && filled->shape[1] == 50 && filled->shape[2] == 100);
    for (int64_t i = 0; i < 5000000; i++) cr_assert_eq(((const float *)filled->data)[i], (float)i);
}

static void expect_same(const fd_gguf *a, const fd_gguf *b) {
    cr_assert_eq(fd_gguf_n_kv(a), fd_gguf_n_kv(b));
    cr_assert_eq(fd_gguf_n_tensor(a), fd_gguf_n_tensor(b));
    for (size_t i = 0; i < fd_gguf_n_kv(a); i++) {
        const fd_gguf_kv *x = fd_gguf_kv_at(a, i), *y = fd_gguf_kv_at(b, i);
        cr_assert(x->key.size == y->key.size && memcmp(x->key.data, y->key.data, x->key.size) == 0);
        cr_assert(x->type == y->type && x->item_type == y->item_type && x->count == y->count && x->size == y->size);
        cr_assert_eq(memcmp(x->data, y->data, x->size), 0);
    }
    for (size_t i = 0; i < fd_gguf_n_tensor(a); i++) {
        const fd_gguf_tensor *x = fd_gguf_tensor_at(a, i), *y = fd_gguf_tensor_at(b, i);
        cr_assert(strcmp(x->name, y->name) == 0 && x->dtype == y->dtype && x->n_dim == y->n_dim &&
                  x->bytes == y->bytes);
        cr_assert_eq(memcmp(x->shape, y->shape, sizeof x->shape), 0);
        cr_assert_eq(memcmp(x->data, y->data, x->bytes), 0);
    }
}

/* Every model and vocabulary at hand, copied key by key and tensor by tensor, is the same model. */
Test(gguf_write, real_files_survive_a_copy) {
    const char *folders[] = {"conformance", "models", "vocab"};
    size_t total = 0;
    for (size_t f = 0; f < sizeof folders / sizeof *folders; f++) {
        size_t n;
        char **files = shared_files(folders[f], ".gguf", &n);
        total += n;
        for (size_t i = 0; i < n; i++) {
            fd_gguf *gguf, *copy;
            fd_gguf_writer *writer = new_writer();
            MUST(fd_gguf_open(files[i], &gguf, &err));
            for (size_t k = 0; k < fd_gguf_n_kv(gguf); k++) MUST(fd_gguf_put_kv(writer, fd_gguf_kv_at(gguf, k), &err));
            for (size_t t = 0; t < fd_gguf_n_tensor(gguf); t++) {
                const fd_gguf_tensor *tensor = fd_gguf_tensor_at(gguf, t);
                MUST(fd_gguf_put_tensor(writer, tensor->name, tensor->dtype, tensor->n_dim, tensor->shape, tensor->data,
                                        NULL, NULL, &err));
            }
            MUST(fd_gguf_write(writer, in_folder("copy.gguf"), &err));
            MUST(fd_gguf_open(in_folder("copy.gguf"), &copy, &err));
            expect_same(gguf, copy);
            fd_gguf_close(copy);
            fd_gguf_close(gguf);
        }
    }
    if (total == 0) cr_skip_test("no shared data: set FD_SHARED");
}

Test(gguf_write, alignment_is_what_was_put) {
    for (uint32_t alignment = 1; alignment <= 4096; alignment *= 8) {
        fd_gguf_writer *writer = new_writer();
        const uint8_t one[3] = {1, 2, 3}, two[1] = {4};
        MUST(fd_gguf_put_u32(writer, "general.alignment", alignment, &err));
        MUST(fd_gguf_put_tensor(writer, "one", 24, 1, (int64_t[]){3}, one, NULL, NULL, &err));
        MUST(fd_gguf_put_tensor(writer, "two", 24, 1, (int64_t[]){1}, two, NULL, NULL, &err));
        MUST(fd_gguf_write(writer, in_folder("a.gguf"), &err));
        fd_gguf *gguf = open_written("a.gguf");
        cr_expect_eq(fd_gguf_alignment(gguf), alignment);
        cr_expect_eq(*(const uint8_t *)fd_gguf_find_tensor(gguf, "two")->data, 4);
        cr_expect_eq(fd_gguf_file_size(gguf) % alignment, 0u, "the last tensor is padded as well");
        fd_gguf_close(gguf);
    }
}

#define REFUSED(call, text)                                                                                            \
    do {                                                                                                               \
        cr_expect_eq(call, FD_ERR_INPUT);                                                                              \
        cr_expect(strstr(err.message, text), "%s", err.message);                                                       \
    } while (0)

Test(gguf_write, what_a_reader_would_refuse_is_refused) {
    fd_gguf_writer *writer = new_writer();
    const float data[64] = {0};
    char name[200];
    memset(name, 'n', sizeof name);
    name[128] = '\0';
    MUST(fd_gguf_put_u32(writer, "key", 1, &err));
    REFUSED(fd_gguf_put_f32(writer, "key", 1, &err), "key key was put twice");
    REFUSED(fd_gguf_put_u32(writer, "", 1, &err), "a key of 0 bytes");
    REFUSED(fd_gguf_put_u32(writer, "a\nb", 1, &err), "control characters");
    REFUSED(fd_gguf_put_u32(writer, "general.alignment", 48, &err), "power of two");
    REFUSED(fd_gguf_put_string(writer, "general.alignment", "32", &err), "expected u32");
    REFUSED(fd_gguf_put_array(writer, "x", FD_GGUF_STRING, data, 1, &err), "number type");
    REFUSED(fd_gguf_put_array(writer, "x", FD_GGUF_BOOL, (uint8_t[]){1, 2}, 2, &err), "bool 1 is 2");
    REFUSED(fd_gguf_put_tensor(writer, "", FD_F32, 1, (int64_t[]){1}, data, NULL, NULL, &err), "name of 0 bytes");
    REFUSED(fd_gguf_put_tensor(writer, name, FD_F32, 1, (int64_t[]){1}, data, NULL, NULL, &err), "name of 128 bytes");
    REFUSED(fd_gguf_put_tensor(writer, "t", FD_F32, 0, (int64_t[]){1}, data, NULL, NULL, &err), "t: 0 dimensions");
    REFUSED(fd_gguf_put_tensor(writer, "t", FD_F32, 5, (int64_t[]){1, 1, 1, 1, 1}, data, NULL, NULL, &err),
            "5 dimensions");
    REFUSED(fd_gguf_put_tensor(writer, "t", FD_F32, 2, (int64_t[]){4, 0}, data, NULL, NULL, &err), "dimension 1 is 0");
    REFUSED(fd_gguf_put_tensor(writer, "t", FD_Q8_0, 1, (int64_t[]){33}, data, NULL, NULL, &err),
            "rows of 33 elements");
    REFUSED(fd_gguf_put_tensor(writer, "t", 77, 1, (int64_t[]){1}, data, NULL, NULL, &err), "type id 77");
    REFUSED(fd_gguf_put_tensor(writer, "t", FD_F32, 1, (int64_t[]){1}, NULL, NULL, NULL, &err),
            "neither data and fill");
    REFUSED(fd_gguf_put_tensor(writer, "t", FD_F32, 1, (int64_t[]){1}, data, fill_numbers, NULL, &err),
            "both data and fill");
    MUST(fd_gguf_put_tensor(writer, "t", FD_F32, 1, (int64_t[]){1}, data, NULL, NULL, &err));
    MUST(fd_gguf_put_tensor(writer, "t", FD_F32, 1, (int64_t[]){1}, data, NULL, NULL, &err));
    REFUSED(fd_gguf_write(writer, in_folder("a.gguf"), &err), "tensor t was put twice");
    cr_expect_eq(n_files(), 0);
}

/* ---- failures on the way ---- */

Test(gguf_write, a_failing_fill_leaves_the_old_file) {
    FILE *old = fopen(in_folder("a.gguf"), "wb");
    cr_assert(old && fputs("old", old) >= 0 && fclose(old) == 0);
    counter c = {.columns = 1 << 20, .fail_at_row = 5}; /* 4 MB rows: some pieces are written before it fails */
    fd_gguf_writer *writer = writer_with(&c, 8);
    cr_expect_eq(fd_gguf_write(writer, in_folder("a.gguf"), &err), FD_ERR_INPUT);
    cr_expect(strstr(err.message, "tensor filled: the source ran dry"), "%s", err.message);
    cr_expect(c.n_call > 0);
    cr_expect_eq(n_files(), 1);
    char text[8] = "";
    FILE *file = fopen(in_folder("a.gguf"), "rb");
    cr_assert(file && fread(text, 1, sizeof text, file) == 3 && fclose(file) == 0);
    cr_expect_str_eq(text, "old");
}

/* A file size limit stands in for a full disk: write() fails the same way, after part of the file is there. */
Test(gguf_write, a_full_disk_leaves_nothing_behind) {
    signal(SIGXFSZ, SIG_IGN);
    const struct rlimit limit = {1 << 20, 1 << 20};
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    counter c = {.columns = 1024, .fail_at_row = -1};
    fd_gguf_writer *writer = writer_with(&c, 1024); /* 4 MB */
    cr_expect_eq(fd_gguf_write(writer, in_folder("a.gguf"), &err), FD_ERR_IO);
    cr_expect(strstr(err.message, in_folder("a.gguf")) && strstr(err.message, "cannot write at byte 1048576"), "%s",
              err.message);
    cr_expect_eq(n_files(), 0);
}

Test(gguf_write, unwritable_places_are_named) {
    counter c = {.columns = 8, .fail_at_row = -1};
    fd_gguf_writer *writer = writer_with(&c, 8);
    char pipe[512], below_file[512];
    strcpy(pipe, in_folder("pipe")); /* stands for every special file: renaming over /dev/null would replace it */
    strcpy(below_file, in_folder("file/a.gguf"));
    cr_assert_eq(mkfifo(pipe, 0600), 0);
    FILE *file = fopen(in_folder("file"), "wb");
    cr_assert(file && fclose(file) == 0);
    const char *places[] = {"/proc/fd_no_such_folder/a.gguf", below_file, pipe, folder};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        cr_expect_eq(fd_gguf_write(writer, places[i], &err), FD_ERR_IO);
        cr_expect(strstr(err.message, places[i]), "%s", err.message);
    }
    struct stat st;
    cr_expect(stat(pipe, &st) == 0 && S_ISFIFO(st.st_mode), "a pipe is not replaced by a file");
    cr_expect_eq(n_files(), 2, "nothing is left behind");
    cr_expect_eq(c.n_call, 0, "nothing is computed for a place that cannot be written");
}

Test(gguf_write, a_writer_can_write_twice) {
    counter c = {.columns = 8, .fail_at_row = -1};
    fd_gguf_writer *writer = writer_with(&c, 8);
    MUST(fd_gguf_write(writer, in_folder("a.gguf"), &err));
    c.next_row = 0;
    MUST(fd_gguf_write(writer, in_folder("a.gguf"), &err));
    fd_gguf *gguf = open_written("a.gguf");
    cr_expect_eq(((const float *)fd_gguf_tensor_at(gguf, 0)->data)[63], 63.0f);
}
