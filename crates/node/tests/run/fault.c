/* What happens to a program on a bad day, from inside the real one: tests preload it (LD_PRELOAD, ld.so(8)).
 *
 *   FAULT_STEPS=file      a byte is added for each thing asked of the kernel or of nft: a message to a netlink socket, or a
 *                         write to a pipe
 *   FAULT_DIE_AFTER=n     SIGKILL right after the n-th of these
 *   FAULT_CLOCK=file      so many seconds the wall clock is off; read at every call
 *   FAULT_FSYNC=file      as long as there is such a file, fsync and fdatasync fail with EIO
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static atomic_int steps;

/* Programs that ours starts inherit the environment. */
static const char *wish(const char *name)
{
    return strcmp(program_invocation_short_name, "anabranch") == 0 ? getenv(name) : NULL;
}

static void step(void)
{
    const char *file = wish("FAULT_STEPS"), *last = wish("FAULT_DIE_AFTER");
    int done = 1 + atomic_fetch_add(&steps, 1);
    if (file) {
        int fd = (int)syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        syscall(SYS_write, fd, ".", 1);
        syscall(SYS_close, fd);
    }
    if (last && done == atoi(last))
        raise(SIGKILL);
}

static int is_netlink(int fd)
{
    int domain = 0;
    socklen_t len = sizeof domain;
    int saved = errno, failed = getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len);
    errno = saved;
    return !failed && domain == AF_NETLINK;
}

ssize_t sendto(int fd, const void *bytes, size_t len, int flags, const struct sockaddr *to, socklen_t to_len)
{
    ssize_t sent = syscall(SYS_sendto, fd, bytes, len, flags, to, to_len);
    if (sent >= 0 && is_netlink(fd))
        step();
    return sent;
}

ssize_t send(int fd, const void *bytes, size_t len, int flags)
{
    return sendto(fd, bytes, len, flags, NULL, 0);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    ssize_t sent = syscall(SYS_sendmsg, fd, message, flags);
    if (sent >= 0 && is_netlink(fd))
        step();
    return sent;
}

ssize_t write(int fd, const void *bytes, size_t len)
{
    ssize_t written = syscall(SYS_write, fd, bytes, len);
    struct stat is;
    int saved = errno;
    if (written >= 0 && !fstat(fd, &is) && S_ISFIFO(is.st_mode))
        step();
    errno = saved;
    return written;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    const char *file = clock == CLOCK_REALTIME ? wish("FAULT_CLOCK") : NULL;
    if (!failed && file) {
        char text[32] = "";
        int fd = (int)syscall(SYS_openat, AT_FDCWD, file, O_RDONLY | O_CLOEXEC);
        if (fd >= 0) {
            syscall(SYS_read, fd, text, sizeof text - 1);
            syscall(SYS_close, fd);
        }
        now->tv_sec += atol(text);
    }
    return failed;
}

static int sync_as(long call, int fd)
{
    const char *file = wish("FAULT_FSYNC");
    if (file && syscall(SYS_faccessat, AT_FDCWD, file, F_OK) == 0) {
        errno = EIO;
        return -1;
    }
    return (int)syscall(call, fd);
}

int fsync(int fd)
{
    return sync_as(SYS_fsync, fd);
}

int fdatasync(int fd)
{
    return sync_as(SYS_fdatasync, fd);
}
