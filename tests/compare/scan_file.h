/* Files with which the tests of scanning (compare/diff/scan.h) are made. */
#ifndef FD_TESTS_COMPARE_SCAN_FILE_H
#define FD_TESTS_COMPARE_SCAN_FILE_H

#include <hdf5.h>

/* So many files at a time: each is written once and compared with several others. */
enum { FD_SCAN_FILES = 20 };

const char *fd_scan_path(int file);
/* What makes a file a trace: its schema and `n` tokens. */
void fd_scan_put_frame(hid_t file, hsize_t n);
void fd_scan_unlink(void);

#endif
