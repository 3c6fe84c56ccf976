/* What a process that reads a hostile file may still ask the system for. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "dumpers/hdf5/wall.h"

#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__)) && !defined(FD_SANITIZED)
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#if defined(__x86_64__)
#define MACHINE AUDIT_ARCH_X86_64
#else
#define MACHINE AUDIT_ARCH_AARCH64
#endif

/* Reading what is open, memory, time, waiting for the parent, and the end. */
static const int allowed[] = {
    SYS_read,         SYS_pread64,         SYS_lseek,           SYS_fstat,       SYS_mmap,       SYS_munmap,
    SYS_mremap,       SYS_mprotect,        SYS_madvise,         SYS_brk,         SYS_futex,      SYS_clock_gettime,
    SYS_gettimeofday, SYS_nanosleep,       SYS_clock_nanosleep, SYS_sched_yield, SYS_getpid,     SYS_getppid,
    SYS_gettid,       SYS_rt_sigprocmask,  SYS_rt_sigreturn,    SYS_exit,        SYS_exit_group, SYS_getrandom,
    SYS_sysinfo,      SYS_restart_syscall,
};

/* Everything else fails with EPERM, so that the library can say what it could not do. */
static void filter_calls(void) {
    enum { N = sizeof allowed / sizeof *allowed };
    struct sock_filter program[N + 6];
    size_t n = 0;
    program[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
    program[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MACHINE, 1, 0);
    program[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL);
    program[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (size_t i = 0; i < N; i++) /* the last statement is as many steps on as there are comparisons left, and one */
        program[n++] =
            (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)allowed[i], (uint8_t)(N - i), 0);
    program[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    program[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog filter = {(unsigned short)n, program};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return; /* limits remain */
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}
#else
static void filter_calls(void) {}
#endif

/* Bytes of memory that this process can write to alone, as RLIMIT_DATA counts them. */
static size_t data_bytes(void) {
    size_t field[6] = {0};
    FILE *file = fopen("/proc/self/statm", "r");
    int n =
        file ? fscanf(file, "%zu %zu %zu %zu %zu %zu", &field[0], &field[1], &field[2], &field[3], &field[4], &field[5])
             : 0;
    if (file) fclose(file);
    return n == 6 ? field[5] * (size_t)sysconf(_SC_PAGESIZE) : 0;
}

static void limit(int what, size_t most) {
    struct rlimit now;
    if (getrlimit(what, &now) != 0 || now.rlim_cur <= most) return;
    now.rlim_cur = most;
    if (now.rlim_max > most) now.rlim_max = most;
    setrlimit(what, &now);
}

void fd_wall_limit_memory(size_t bytes) {
    size_t data = data_bytes();
#ifdef FD_SANITIZED
    data = 0; /* their own memory would count */
#endif
    if (data > 0 && bytes < SIZE_MAX - data) limit(RLIMIT_DATA, data + bytes);
}

void fd_wall_confine(void) {
    limit(RLIMIT_FSIZE, 0);
    limit(RLIMIT_NOFILE, 0); /* what is open stays open */
    filter_calls();
}
