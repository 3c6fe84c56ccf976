/* Preloaded: the FAIL_AT-th allocation of this program fails, and those of the libraries under it do not. Allocations are counted from main on (a
 * program that links the CUDA runtime has some thousand of that runtime's before) and printed at exit ("allocations: N" on standard error) when FAIL_AT is
 * 0. */
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *old, size_t size);

static uintptr_t first, last; /* of the program's own code */
static long at = -1;
static atomic_long count;
static pid_t process;

static int find_program(struct dl_phdr_info *info, size_t size, void *user) {
    (void)size, (void)user;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type != PT_LOAD || !(p->p_flags & PF_X)) continue;
        first = info->dlpi_addr + p->p_vaddr;
        last = first + p->p_memsz;
    }
    return 1; /* the program comes first */
}

__attribute__((constructor)) static void begin(void) {
    const char *text = getenv("FAIL_AT");
    dl_iterate_phdr(find_program, NULL);
    process = getpid();
    at = text ? atol(text) : -1;
}

__attribute__((destructor)) static void end(void) {
    if (at == 0 && getpid() == process) dprintf(2, "allocations: %ld\n", atomic_load(&count));
}

typedef int (*main_fn)(int, char **, char **);
typedef int (*start_fn)(main_fn, int, char **, void (*)(void), void (*)(void), void (*)(void), void *);
static main_fn real_main;
static atomic_bool started;

static int counted_main(int argc, char **argv, char **environment) {
    atomic_store(&started, true);
    int status = real_main(argc, argv, environment);
    return status;
}

/* glibc's entry to main. */
int __libc_start_main(main_fn main_, int argc, char **argv, void (*init)(void), void (*fini)(void), void (*rtld)(void),
                      void *stack) {
    start_fn next;
    *(void **)&next = dlsym(RTLD_NEXT, "__libc_start_main");
    real_main = main_;
    return next(counted_main, argc, argv, init, fini, rtld, stack);
}

static bool fails(const void *caller) {
    if (at < 0 || !atomic_load(&started) || (uintptr_t)caller < first || (uintptr_t)caller >= last) return false;
    if (atomic_fetch_add(&count, 1) + 1 != at) return false;
    errno = ENOMEM;
    return true;
}

void *malloc(size_t size) {
    return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(size);
}
void *calloc(size_t n, size_t size) {
    return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(n, size);
}
void *realloc(void *old, size_t size) {
    return fails(__builtin_return_address(0)) ? NULL : __libc_realloc(old, size);
}

/* libc's own would allocate in libc's name. */
static char *copy(const char *text, size_t n, const void *caller) {
    char *to = fails(caller) ? NULL : __libc_malloc(n + 1);
    if (!to) return NULL;
    memcpy(to, text, n);
    to[n] = '\0';
    return to;
}
char *strdup(const char *text) {
    return copy(text, strlen(text), __builtin_return_address(0));
}
char *strndup(const char *text, size_t most) {
    return copy(text, strnlen(text, most), __builtin_return_address(0));
}
int vasprintf(char **to, const char *format, va_list args) {
    va_list again;
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    *to = n < 0 || fails(__builtin_return_address(0)) ? NULL : __libc_malloc((size_t)n + 1);
    if (*to) vsnprintf(*to, (size_t)n + 1, format, again);
    va_end(again);
    return *to ? n : -1;
}
int asprintf(char **to, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    *to = n < 0 || fails(__builtin_return_address(0)) ? NULL : __libc_malloc((size_t)n + 1);
    va_start(args, format);
    if (*to) vsnprintf(*to, (size_t)n + 1, format, args);
    va_end(args);
    return *to ? n : -1;
}
