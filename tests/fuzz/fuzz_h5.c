/* Fuzzes what reads HDF5 files past the library: 8 bytes of an object header's address, then the file. Every chunk that
 * is found must lie in the file. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/hdf5/index.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint64_t address;
    if (size < sizeof address) return 0;
    memcpy(&address, data, sizeof address);
    fd_h5_bytes bytes = {-1, data + sizeof address, size - sizeof address};
    fd_h5_object object;
    static fd_h5_nearby nearby;
    nearby.headers.n = nearby.strings.n = 0;
    (void)fd_h5_plain_file(&bytes);
    if (!fd_h5_object_read(&bytes, &nearby, address, &object)) return 0;
    int64_t n = fd_h5_chunk_count(&object.shape, &object.layout, 1 << 16);
    uint64_t *chunks = n >= 0 ? malloc((size_t)n * sizeof *chunks + 1) : NULL;
    if (chunks && fd_h5_chunk_addresses(&bytes, &object.shape, &object.layout, chunks))
        for (int64_t i = 0; i < n; i++) {
            uint8_t byte;
            if (chunks[i] == FD_H5_NOWHERE) continue;
            assert(fd_h5_bytes_read(&bytes, chunks[i], 0, &byte));
#ifdef FD_FUZZ_PLANTED /* the mutant: a chunk is read to where the next element would lie; tests/fuzz/run checks that it is found */
            byte = bytes.data[bytes.size + (chunks[i] != 0)];
            if (byte == 77) abort();
#endif
        }
    free(chunks);
    return 0;
}
