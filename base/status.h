/* How functions say that they failed.
 *
 * A function that can fail returns an fd_code and takes an fd_error as its last parameter; on failure the error holds a
 * message that names the object, what was found and what was expected. Bad input never asserts; our own bugs do.
 * Nothing below cli/ prints or exits. */
#ifndef FD_BASE_STATUS_H
#define FD_BASE_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fd_code {
    FD_OK = 0,
    FD_ERR_INPUT,       /* unusable input or usage                        exit status 2 */
    FD_ERR_INCOMPLETE,  /* nothing comparable, missing parts, truncated   exit status 3 */
    FD_ERR_IO,          /* the operating system or HDF5 refused           exit status 2 */
    FD_ERR_MEMORY,      /* out of host or device memory                   exit status 2 */
    FD_ERR_DEVICE,      /* CUDA failed, or there is no device             exit status 2 */
    FD_ERR_UNSUPPORTED, /* known, but not by this build or backend        exit status 2 */
    FD_STOP,            /* an observer asked the run to stop: no failure */
} fd_code;

typedef struct fd_error {
    fd_code code;
    char message[1024]; /* UTF-8, one line, no trailing newline; empty while code is FD_OK */
} fd_error;

#if defined(__GNUC__)
#define FD_PRINTF(format_at, args_at) __attribute__((format(printf, format_at, args_at)))
#else
#define FD_PRINTF(format_at, args_at)
#endif

/* Writes the message and returns `code`, so that `return fd_fail(err, FD_ERR_INPUT, "…")` is one line. */
fd_code fd_fail(fd_error *err, fd_code code, const char *format, ...) FD_PRINTF(3, 4);

/* Puts "prefix: " before the message already there; returns its code. */
fd_code fd_error_prefix(fd_error *err, const char *format, ...) FD_PRINTF(2, 3);

/* The exit status a command ends with when it fails with this code (2 or 3; 0 for FD_OK and FD_STOP). */
int fd_exit_status(fd_code code);

/* Returns from the calling function with the callee's code when it is not FD_OK. */
#define FD_TRY(call)                                                                                                   \
    do {                                                                                                               \
        fd_code fd_try_code = (call);                                                                                  \
        if (fd_try_code != FD_OK) return fd_try_code;                                                                  \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
