/* Temporary files, in $TMPDIR, else in /tmp. */
#ifndef FD_CLI_TEMPORARY_H
#define FD_CLI_TEMPORARY_H

#include "base/status.h"

/* Makes an empty file that the caller removes. */
fd_code fd_cli_temporary(char path[4096], fd_error *err);

#endif
