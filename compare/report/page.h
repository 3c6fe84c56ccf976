/* The report page's parts (page/), compiled in. */
#ifndef FD_COMPARE_REPORT_PAGE_H
#define FD_COMPARE_REPORT_PAGE_H

#include <stdio.h>

#include "compare/verdict.h"

const char *fd_page_style(void);
const char *fd_page_script(void);

/* `const nodes=…;`, `const first=…;` and `const measured=…;` for the script: nothing in it ends a script element. */
void fd_page_data(FILE *to, const fd_verdict *verdict);

#endif
