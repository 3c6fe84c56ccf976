#include "cli/npy.h"

#include "cli/output.h"

/* Format 1.0: magic, length of the header, the header up to a multiple of 64 bytes, elements. */
fd_code fd_cli_write_npy(const char *path, int rank, const int64_t *shape, const double *x, bool wide, fd_error *err) {
    char header[118];
    int64_t count = 1;
    FILE *to;
    FD_TRY(fd_cli_output_open(path, &to, err));
    int n = snprintf(header, sizeof header, "{'descr': '<f%d', 'fortran_order': False, 'shape': (", wide ? 8 : 4);
    for (int i = 0; i < rank; i++) {
        n += snprintf(header + n, sizeof header - (size_t)n, "%lld, ", (long long)shape[i]);
        count *= shape[i];
    }
    n += snprintf(header + n, sizeof header - (size_t)n, "), }");
    fwrite("\x93NUMPY\x01\0\x76\0", 1, 10, to); /* 0x76: 118 bytes of header */
    fprintf(to, "%s%*s\n", header, 117 - n, "");
    for (int64_t i = 0; i < count; i++) {
        float narrow = (float)x[i];
        fwrite(wide ? (const void *)&x[i] : (const void *)&narrow, wide ? 8 : 4, 1, to);
    }
    return fd_cli_output_close(to, path, err);
}
