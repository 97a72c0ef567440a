/* Preloaded before the C library: counts the calls that change the disk below one folder, whoever makes them (Python,
   Arrow, safetensors), and at a chosen one kills the process or lets the disk refuse. `arm` switches it on. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char below[PATH_MAX];
static long target = -1, seen = 0;
static int failure = 0, lasting = 0;

/* From now on: at call number `number` (from 0) below `folder`, fail with `error`, or die if that is 0.
   `stays`: 1 fails the calls from there on that need room, as on a full disk; 2 fails all of them, as when the disk
   becomes read-only. */
void arm(const char *folder, long number, int error, int stays) {
    strncpy(below, folder, sizeof below - 1);
    target = number, failure = error, lasting = stays, seen = 0;
}

long calls(void) { return seen; }

static int is_below(const char *path) {
    char full[PATH_MAX];
    if (!below[0] || !path) return 0;
    if (path[0] != '/') {
        if (!getcwd(full, sizeof full)) return 0;
        strncat(full, "/", sizeof full - strlen(full) - 1);
        strncat(full, path, sizeof full - strlen(full) - 1);
        path = full;
    }
    return strncmp(path, below, strlen(below)) == 0;
}

static int is_file_below(int fd) {
    char link[64], path[PATH_MAX];
    if (!below[0]) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return is_below(path);
}

/* Count one call; whether it must fail. */
static int fails(int needs_room) {
    long number = seen++;
    if (number == target && failure == 0) kill(getpid(), SIGKILL);
    int hit = lasting ? target >= 0 && number >= target && (needs_room || lasting == 2) : number == target;
    if (hit && failure) { errno = failure; return 1; }
    return 0;
}

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

#define OPEN(name)                                                                  \
    int name(const char *path, int flags, ...) {                                    \
        REAL(name);                                                                 \
        mode_t mode = 0;                                                            \
        if (flags & (O_CREAT | O_TMPFILE)) {                                        \
            va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); \
        }                                                                           \
        if ((flags & O_CREAT) && is_below(path) && fails(1)) return -1;             \
        return real(path, flags, mode);                                             \
    }
OPEN(open)
OPEN(open64)

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    if (is_file_below(fd)) {
        if (seen == target && failure == 0 && size > 1) { ssize_t half = real(fd, data, size / 2); (void)half; }
        if (fails(1)) return -1;
    }
    return real(fd, data, size);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    REAL(pwrite);
    return is_file_below(fd) && fails(1) ? -1 : real(fd, data, size, at);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    REAL(pwrite64);
    return is_file_below(fd) && fails(1) ? -1 : real(fd, data, size, at);
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(writev);
    return is_file_below(fd) && fails(1) ? -1 : real(fd, parts, count);
}
int fsync(int fd) { REAL(fsync); return is_file_below(fd) && fails(0) ? -1 : real(fd); }
int ftruncate(int fd, off_t size) { REAL(ftruncate); return is_file_below(fd) && fails(1) ? -1 : real(fd, size); }
int rename(const char *from, const char *to) {
    REAL(rename);
    return is_below(to) && fails(1) ? -1 : real(from, to);
}
int link(const char *from, const char *to) { REAL(link); return is_below(to) && fails(1) ? -1 : real(from, to); }
int mkdir(const char *path, mode_t mode) { REAL(mkdir); return is_below(path) && fails(1) ? -1 : real(path, mode); }
int unlink(const char *path) { REAL(unlink); return is_below(path) && fails(0) ? -1 : real(path); }
int rmdir(const char *path) { REAL(rmdir); return is_below(path) && fails(0) ? -1 : real(path); }
