/* A library for LD_PRELOAD that records what a process writes to its store, syncs, and says to others, in order.
 *
 * Environment (set by jepsen/durability.py):
 *   JEPSEN_TRACE       the file to which records are appended; several processes may share it
 *   JEPSEN_TRACE_NAME  who this process is
 *   JEPSEN_TRACE_ROOT  the folder whose files are recorded
 *
 * The order is what counts. A write is recorded before it is done, a sync and a rename after they succeeded, and
 * a send together with what was really taken, under one lock: so whatever a process knows when it sends stands
 * before the send. Records of several processes keep that order too, since each is one append.
 *
 * What it does not see: mmap, io_uring, sendfile (nothing here uses them).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITTEN = 1, SYNCED = 2, RENAMED = 3, SENT = 4 };

struct record { /* followed by name, path and data */
    uint32_t kind, name_length, path_length, data_length;
    int64_t offset;
};

static int out = -1;
static char name[64];
static char root[PATH_MAX];
static size_t root_length;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define REAL(result, call, ...) static result (*real_##call)(__VA_ARGS__)
REAL(ssize_t, pwritev, int, const struct iovec *, int, off_t);
REAL(ssize_t, pwritev2, int, const struct iovec *, int, off_t, int);
REAL(ssize_t, pwrite, int, const void *, size_t, off_t);
REAL(int, fsync, int);
REAL(int, fdatasync, int);
REAL(int, rename, const char *, const char *);
REAL(ssize_t, send, int, const void *, size_t, int);
REAL(ssize_t, sendmsg, int, const struct msghdr *, int);
#define FIND(call) *(void **)&real_##call = dlsym(RTLD_NEXT, #call)

static void ready(void)
{
    if (!real_send) {
        FIND(pwritev); FIND(pwritev2); FIND(pwrite); FIND(fsync); FIND(fdatasync); FIND(rename); FIND(sendmsg);
        FIND(send);
    }
}

__attribute__((constructor)) static void begin(void)
{
    const char *file = getenv("JEPSEN_TRACE"), *who = getenv("JEPSEN_TRACE_NAME");
    const char *below = getenv("JEPSEN_TRACE_ROOT");
    ready();
    if (!file || !who || !below || strlen(who) >= sizeof name || strlen(below) >= sizeof root)
        return;
    strcpy(name, who);
    strcpy(root, below);
    root_length = strlen(root);
    out = open(file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

/* The path of a descriptor below the root, without the root; NULL when it is none of ours. */
static const char *path_of(int file, char *path)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = syscall(SYS_readlink, link, path, PATH_MAX - 1);
    path[length > 0 ? length : 0] = 0;
    if (strncmp(path, root, root_length) || (path[root_length] && path[root_length] != '/'))
        return NULL;
    return path + root_length + (path[root_length] == '/');
}

/* What a trace with a gap would tell is worse than a test that ends. */
static void note(uint32_t kind, const char *path, int64_t offset, const struct iovec *data, size_t size)
{
    struct record head = {kind, strlen(name), strlen(path), size, offset};
    struct iovec parts[] = {
        {&head, sizeof head}, {name, head.name_length}, {(void *)path, head.path_length},
        data ? *data : (struct iovec){NULL, 0},
    };
    ssize_t whole = sizeof head + head.name_length + head.path_length + size;
    int error = errno;
    if (syscall(SYS_writev, out, parts, 4) != whole)
        abort();
    errno = error;
}

/* The bytes of all parts, to be freed. */
static struct iovec joined(const struct iovec *parts, size_t count)
{
    size_t size = 0, end = 0;
    for (size_t each = 0; each < count; each++)
        size += parts[each].iov_len;
    char *bytes = malloc(size + 1);
    if (!bytes)
        abort();
    for (size_t each = 0; each < count; each++) {
        memcpy(bytes + end, parts[each].iov_base, parts[each].iov_len);
        end += parts[each].iov_len;
    }
    return (struct iovec){bytes, size};
}

static void note_parts(int file, const struct iovec *parts, int count, off_t at)
{
    char path[PATH_MAX];
    const char *below;
    if (out < 0 || !(below = path_of(file, path)))
        return;
    struct iovec whole = joined(parts, (size_t)count);
    note(WRITTEN, below, at, &whole, whole.iov_len);
    free(whole.iov_base);
}

ssize_t pwritev(int file, const struct iovec *parts, int count, off_t at)
{
    ready();
    note_parts(file, parts, count, at);
    return real_pwritev(file, parts, count, at);
}

ssize_t pwritev64(int file, const struct iovec *parts, int count, off_t at)
{
    return pwritev(file, parts, count, at);
}

ssize_t pwritev2(int file, const struct iovec *parts, int count, off_t at, int flags)
{
    ready();
    note_parts(file, parts, count, at);
    return real_pwritev2(file, parts, count, at, flags);
}

ssize_t pwritev64v2(int file, const struct iovec *parts, int count, off_t at, int flags)
{
    return pwritev2(file, parts, count, at, flags);
}

ssize_t pwrite(int file, const void *data, size_t size, off_t at)
{
    char path[PATH_MAX];
    const char *below;
    struct iovec whole = {(void *)data, size};
    ready();
    if (out >= 0 && (below = path_of(file, path)))
        note(WRITTEN, below, at, &whole, size);
    return real_pwrite(file, data, size, at);
}

ssize_t pwrite64(int file, const void *data, size_t size, off_t at)
{
    return pwrite(file, data, size, at);
}

static int synced(int (*real)(int), int file)
{
    char path[PATH_MAX];
    const char *below = out >= 0 ? path_of(file, path) : NULL;
    int result = real(file);
    if (!result && below) {
        pthread_mutex_lock(&lock);
        note(SYNCED, below, 0, NULL, 0);
        pthread_mutex_unlock(&lock);
    }
    return result;
}

int fsync(int file)
{
    ready();
    return synced(real_fsync, file);
}

int fdatasync(int file)
{
    ready();
    return synced(real_fdatasync, file);
}

/* The data of the record is the new path. */
int rename(const char *one, const char *two)
{
    ready();
    int result = real_rename(one, two);
    if (!result && out >= 0 && !strncmp(one, root, root_length) && one[root_length] == '/' &&
        !strncmp(two, root, root_length) && two[root_length] == '/') {
        struct iovec target = {(void *)(two + root_length + 1), strlen(two + root_length + 1)};
        note(RENAMED, one + root_length + 1, 0, &target, target.iov_len);
    }
    return result;
}

/* Whether a socket leads to others: a process wakes itself through a pair of Unix sockets. */
static int leads_out(int file)
{
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    return !getsockname(file, (struct sockaddr *)&address, &size) && address.ss_family != AF_UNIX;
}

/* The number of a socket that leads to others, which no other connection of this process has at the same time; 0: no. */
static unsigned long long outward(int file)
{
    struct stat status;
    return out >= 0 && !fstat(file, &status) && leads_out(file) ? (unsigned long long)status.st_ino : 0;
}

/* The path is the number of the socket. */
static void note_sent(unsigned long long number, const struct iovec *data, ssize_t taken)
{
    char socket[32];
    struct iovec sent = {data->iov_base, (size_t)taken};
    if (taken <= 0)
        return;
    snprintf(socket, sizeof socket, "%llu", number);
    note(SENT, socket, 0, &sent, sent.iov_len);
}

ssize_t send(int file, const void *data, size_t size, int flags)
{
    ready();
    unsigned long long number = outward(file);
    struct iovec whole = {(void *)data, size};
    if (!number)
        return real_send(file, data, size, flags);
    pthread_mutex_lock(&lock);
    ssize_t taken = real_send(file, data, size, flags);
    note_sent(number, &whole, taken);
    pthread_mutex_unlock(&lock);
    return taken;
}

ssize_t sendmsg(int file, const struct msghdr *message, int flags)
{
    ready();
    unsigned long long number = outward(file);
    if (!number)
        return real_sendmsg(file, message, flags);
    struct iovec whole = joined(message->msg_iov, message->msg_iovlen);
    pthread_mutex_lock(&lock);
    ssize_t taken = real_sendmsg(file, message, flags);
    int error = errno;
    note_sent(number, &whole, taken);
    pthread_mutex_unlock(&lock);
    free(whole.iov_base);
    errno = error;
    return taken;
}
