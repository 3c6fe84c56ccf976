/* libFuzzer targets for foreign formats and maps, one program each (FD_FUZZ_FORMAT): whatever bytes are parsed,
 * everything a caller can reach is safe to touch. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/map.h"
#include "dumpers/import/npy.h"
#include "dumpers/import/pickle.h"
#include "dumpers/import/safetensors.h"
#include "dumpers/import/zip.h"

enum { NPY, NPZ, SAFETENSORS, PICKLE, MAP };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition, const char *promise) {
    if (condition) return;
    fprintf(stderr, "fuzz_import: broken promise: %s\n", promise);
    abort();
}

static volatile double sink; /* what is read must be seen to be used */

static void touch(const fd_array *array) {
    int64_t n = 1;
    for (int i = 0; i < array->rank; i++) n *= array->shape[i];
    if (n > 1 << 20) return;
    double *values = malloc(sizeof *values * (size_t)(n + 1));
    if (!values) return;
    fd_array_fetch(array, values);
    for (int64_t i = 0; i < n; i++) sink += values[i];
    free(values);
}

static fd_code read_npy(const void *data, size_t size, fd_error *err) {
    fd_array array;
    FD_TRY(fd_npy_parse("x.npy", data, size, &array, err));
    touch(&array);
    return FD_OK;
}

static fd_code read_npz(const void *data, size_t size, fd_error *err) {
    fd_zip *zip;
    FD_TRY(fd_zip_open("x.npz", data, size, &zip, err));
    for (size_t i = 0; i < fd_zip_count(zip); i++) {
        const void *bytes;
        void *owned;
        fd_error inner = {0};
        const char *name = fd_zip_name(zip, i);
        require(name[0] != '/' && strncmp(name, "../", 3) != 0 && !strstr(name, "/../"), "no name leads out");
        if (fd_zip_extract(zip, i, &bytes, &owned, &inner) != FD_OK) continue;
        read_npy(bytes, fd_zip_bytes(zip, i), &inner);
        free(owned);
    }
    fd_zip_close(zip);
    return FD_OK;
}

static fd_code read_safetensors(const void *data, size_t size, fd_error *err) {
    fd_safetensors file;
    FD_TRY(fd_safetensors_parse("x.safetensors", data, size, &file, err));
    for (size_t i = 0; i < file.n; i++) touch(&file.items[i].array);
    fd_safetensors_free(&file);
    return FD_OK;
}

static fd_code read_pickle(const void *data, size_t size, fd_error *err) {
    fd_pickle pickle;
    FD_TRY(fd_pickle_parse("x.pt", data, size, &pickle, err));
    require(pickle.n > 0 && pickle.n <= size, "few bytes are few tensors");
    for (size_t i = 0; i < pickle.n; i++) {
        const fd_pickle_tensor *tensor = &pickle.items[i];
        require(tensor->rank <= FD_ARRAY_MAX_RANK && tensor->offset >= 0, "a tensor has sizes");
        sink += (double)strlen(tensor->name) + (double)strlen(tensor->storage);
    }
    fd_pickle_free(&pickle);
    return FD_OK;
}

/* Every rule against some names, its reading of a small array and its operations on it. */
static void use_rule(const fd_name_map *map, const fd_name_map_rule *rule) {
    static const char *const names[] = {"Qcur-3.ROPE", "model.layers.12.mlp.up_proj:in", "", "x"};
    const fd_name_map_values values = {.of = {0, 4, 2, 2, 8}, .rope_neighbours = 1};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (size_t s = 0; s < rule->n_source; s++) {
            fd_name_map_capture capture;
            char node[64];
            if (fd_name_map_matches(rule->sources[s].pattern, names[i], &capture))
                fd_name_map_node(rule, &capture, node, sizeof node);
        }
    double a[24] = {0}, b[24] = {0}, *in = a, *scratch = b;
    int rank = 2;
    int64_t shape[8] = {3, 8}, n = 1;
    fd_error err = {0};
    if (fd_name_map_reshape(map, rule, &values, 3, &rank, shape, &err) != FD_OK) {
        require(err.message[0] != '\0', "an error has a message");
        return;
    }
    for (int i = 0; i < rank; i++) n *= shape[i];
    require(n == 24, "shape= makes and loses no elements");
    n = 1;
    if (fd_name_map_apply(map, rule, &values, &rank, shape, &in, &scratch, &err) != FD_OK) {
        require(err.message[0] != '\0', "an error has a message");
        return;
    }
    for (int i = 0; i < rank; i++) n *= shape[i];
    require(n >= 1 && n <= 24, "operations never make elements");
    for (int64_t i = 0; i < n; i++) sink += in[i];
}

static fd_code read_map(const void *data, size_t size, fd_error *err) {
    fd_name_map *map;
    FD_TRY(fd_name_map_parse("x.map", data, size, &map, err));
    for (size_t r = 0; r < map->n_rule; r++) use_rule(map, &map->rules[r]);
    fd_name_map_listed(&map->skip, "norm-0.RMS_NORM");
    fd_name_map_free(map);
    return FD_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static fd_code (*const readers[])(const void *, size_t, fd_error *) = {
        [NPY] = read_npy, [NPZ] = read_npz, [SAFETENSORS] = read_safetensors, [PICKLE] = read_pickle, [MAP] = read_map};
    fd_error err = {0};
    fd_code code = readers[FD_FUZZ_FORMAT](data, size, &err);
    if (code != FD_OK) {
        require(err.code == code && err.message[0] && !strchr(err.message, '\n'), "an error has a one-line message");
        return 0;
    }
#ifdef FD_FUZZ_PLANTED /* the mutant: one byte too far in what was accepted; tests/fuzz/run checks that it is found */
    sink += data[size];
#endif
    return 0;
}
