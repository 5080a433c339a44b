/* A library for LD_PRELOAD that shifts a process' clocks and lets its disk fail, steered while it runs.
 *
 * Environment (set by jepsen/nemeses/preload.py):
 *   JEPSEN_FAULTS          the control file, `struct control` below, mapped shared with the harness
 *   JEPSEN_FAULTS_ROOT     the folder whose files are struck; others are left alone
 *   JEPSEN_FAULTS_JOURNAL  a folder outside of the root for the undo journal; not set: no journal
 *   JEPSEN_FAULTS_SKIP     a folder below the root that the journal leaves alone
 *
 * The undo journal knows what a power cut would lose. Before a file is written or cut, its old bytes are
 * appended to <journal>/<inode>; a sync of the file empties that. Before a name is made, moved or removed that
 * is noted in <journal>/names, and what the name stood for is kept as a hard link; a sync of the folder is
 * noted there, too. After SIGKILL jepsen/nemeses/journal.py takes back what was not synced. A record is written
 * before its operation and forgotten after the sync has returned, so a kill in between is a power cut in between.
 *
 * What it does not see: mmap (the store has none), io_uring, file systems' own write-back (a file that was
 * never synced counts as lost, however old).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum {
    OP_WRITE = 1,   /* write, writev, pwrite, pwritev */
    OP_SYNC = 2,    /* fsync, fdatasync; of folders too */
    OP_READ = 4,    /* pread */
    OP_CREATE = 8,  /* open of a new file, mkdir */
    OP_RESERVE = 16, /* fallocate */
    OP_NAME = 32,   /* rename, unlink, rmdir */
    OP_CUT = 64,    /* ftruncate, open with O_TRUNC */
    OP_OPEN = 128   /* open of an existing file for writing */
};

#define RULES 8
#define MAGIC 0x4a465054u
#define NS 1000000000LL

struct rule { /* 128 bytes */
    uint32_t active;
    uint32_t operations;
    int32_t error;      /* 0: only slow */
    uint32_t delay_ms;
    int64_t skip;       /* calls that pass before the first is struck */
    int64_t count;      /* calls that are struck; negative: all */
    int64_t hits;       /* calls that were struck */
    int64_t first_byte, end_byte; /* of reads and writes; end 0: any */
    uint32_t growing;   /* only calls that need more room */
    uint32_t unused;
    char contains[64];  /* in the path below the root; empty: any */
};

struct control {
    uint32_t magic;
    uint32_t armed;     /* operations of all active rules */
    int64_t realtime_offset_ns;
    int64_t monotonic_offset_ns;
    int64_t unused;
    struct rule rules[RULES];
};

static struct control *control;
static char root[PATH_MAX];
static size_t root_length;
static char journal[PATH_MAX];
static char skipped[PATH_MAX];
static size_t skipped_length;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned long name_count;

#define REAL(result, name, ...) static result (*real_##name)(__VA_ARGS__)
REAL(int, clock_gettime, clockid_t, struct timespec *);
REAL(int, open, const char *, int, ...);
REAL(int, openat, int, const char *, int, ...);
REAL(ssize_t, write, int, const void *, size_t);
REAL(ssize_t, writev, int, const struct iovec *, int);
REAL(ssize_t, pwrite, int, const void *, size_t, off_t);
REAL(ssize_t, pwritev, int, const struct iovec *, int, off_t);
REAL(ssize_t, pwritev2, int, const struct iovec *, int, off_t, int);
REAL(ssize_t, pread, int, void *, size_t, off_t);
REAL(int, fsync, int);
REAL(int, fdatasync, int);
REAL(int, ftruncate, int, off_t);
REAL(int, posix_fallocate, int, off_t, off_t);
REAL(int, fallocate, int, int, off_t, off_t);
REAL(int, rename, const char *, const char *);
REAL(int, renameat, int, const char *, int, const char *);
REAL(int, unlink, const char *);
REAL(int, unlinkat, int, const char *, int);
REAL(int, rmdir, const char *);
REAL(int, mkdir, const char *, mode_t);
REAL(int, mkdirat, int, const char *, mode_t);

#define FIND(name) *(void **)&real_##name = dlsym(RTLD_NEXT, #name)

static void find_all(void)
{
    FIND(clock_gettime); FIND(open); FIND(openat); FIND(write); FIND(writev); FIND(pwrite);
    FIND(pwritev); FIND(pwritev2); FIND(pread); FIND(fsync); FIND(fdatasync); FIND(ftruncate);
    FIND(posix_fallocate); FIND(fallocate); FIND(rename); FIND(renameat); FIND(unlink);
    FIND(unlinkat); FIND(rmdir); FIND(mkdir); FIND(mkdirat);
}

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("JEPSEN_FAULTS"), *below = getenv("JEPSEN_FAULTS_ROOT");
    const char *side = getenv("JEPSEN_FAULTS_JOURNAL"), *skip = getenv("JEPSEN_FAULTS_SKIP");
    if (!real_open)
        find_all();
    if (!path)
        return;
    int file = real_open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return;
    void *at = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (at == MAP_FAILED || ((struct control *)at)->magic != MAGIC)
        return;
    if (below && strlen(below) < sizeof root) {
        strcpy(root, below);
        root_length = strlen(root);
    }
    if (side && strlen(side) + 64 < sizeof journal)
        strcpy(journal, side);
    if (skip && strlen(skip) < sizeof skipped) {
        strcpy(skipped, skip);
        skipped_length = strlen(skipped);
    }
    control = at;
}

/* Library constructors of others may call us before ours has run. */
static inline void ready(void)
{
    if (!real_open)
        find_all();
}

/* --- clocks --- */

static void shift(struct timespec *at, int64_t offset_ns)
{
    int64_t ns = at->tv_nsec + offset_ns % NS;
    at->tv_sec += offset_ns / NS;
    if (ns < 0) {
        ns += NS;
        at->tv_sec--;
    } else if (ns >= NS) {
        ns -= NS;
        at->tv_sec++;
    }
    at->tv_nsec = ns;
}

int clock_gettime(clockid_t clock, struct timespec *at)
{
    ready();
    int result = real_clock_gettime(clock, at);
    if (result || !control)
        return result;
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI)
        shift(at, __atomic_load_n(&control->realtime_offset_ns, __ATOMIC_RELAXED));
    else if (clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_RAW ||
             clock == CLOCK_MONOTONIC_COARSE || clock == CLOCK_BOOTTIME)
        shift(at, __atomic_load_n(&control->monotonic_offset_ns, __ATOMIC_RELAXED));
    return result;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now))
        return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at)
{
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now))
        return -1;
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}

/* --- whom a call concerns --- */

static int is_below_root(const char *path)
{
    return root_length && !strncmp(path, root, root_length) &&
           (path[root_length] == '/' || !path[root_length]);
}

/* The path of a descriptor, "" when it has none; 0 when it is none of ours. */
static int path_of(int file, char *path)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = syscall(SYS_readlink, link, path, PATH_MAX - 1);
    path[length > 0 ? length : 0] = 0;
    return is_below_root(path);
}

/* Make a path absolute; 0 when it is none of ours. */
static int path_at(int folder, const char *name, char *path)
{
    char base[PATH_MAX];
    if (name[0] == '/') {
        if (strlen(name) >= PATH_MAX)
            return 0;
        strcpy(path, name);
        return is_below_root(path);
    }
    if (folder == AT_FDCWD) {
        if (!getcwd(base, sizeof base))
            return 0;
    } else {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        ssize_t length = syscall(SYS_readlink, link, base, sizeof base - 1);
        if (length <= 0)
            return 0;
        base[length] = 0;
    }
    if (strlen(base) + strlen(name) + 2 > PATH_MAX)
        return 0;
    strcpy(path, base);
    strcat(path, "/");
    strcat(path, name);
    return is_below_root(path);
}

static inline int is_watched(uint32_t operation)
{
    return control && ((control->armed & operation) || journal[0]);
}

/* The error with which a call fails, 0 when it goes on; slow calls sleep here. */
static int strike(const char *path, uint32_t operation, int64_t first, int64_t end, int grows)
{
    if (!(control->armed & operation))
        return 0;
    for (int at = 0; at < RULES; at++) {
        struct rule *rule = &control->rules[at];
        if (!__atomic_load_n(&rule->active, __ATOMIC_ACQUIRE) || !(rule->operations & operation))
            continue;
        if (rule->contains[0] && !strstr(path + root_length, rule->contains))
            continue;
        if (rule->growing && !grows)
            continue;
        if (rule->end_byte && (end <= rule->first_byte || first >= rule->end_byte))
            continue;
        if (rule->skip > 0 && __atomic_fetch_sub(&rule->skip, 1, __ATOMIC_RELAXED) > 0)
            continue;
        if (rule->count >= 0 && __atomic_fetch_sub(&rule->count, 1, __ATOMIC_RELAXED) <= 0) {
            __atomic_store_n(&rule->count, 0, __ATOMIC_RELAXED);
            continue;
        }
        __atomic_fetch_add(&rule->hits, 1, __ATOMIC_RELAXED);
        if (rule->delay_ms) {
            struct timespec pause = {rule->delay_ms / 1000, rule->delay_ms % 1000 * 1000000L};
            nanosleep(&pause, NULL);
        }
        if (rule->error)
            return rule->error;
    }
    return 0;
}

/* --- the undo journal --- */

struct record {
    uint32_t kind;      /* 1: bytes were overwritten, 2: the file was cut or grown */
    uint32_t length;    /* of the old bytes that follow */
    int64_t offset;
    int64_t old_size;
    int64_t new_bytes;  /* how many bytes the call writes from offset on; 0 for kind 2 */
};

static int is_journaled(const char *path)
{
    return journal[0] && !(skipped_length && !strncmp(path, skipped, skipped_length) &&
                           (path[skipped_length] == '/' || !path[skipped_length]));
}

static int open_journal(const char *name, int flags)
{
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", journal, name);
    return real_open(path, flags | O_CLOEXEC, 0600);
}

static int open_file_journal(ino_t inode, int flags)
{
    char name[32];
    snprintf(name, sizeof name, "%llu", (unsigned long long)inode);
    return open_journal(name, flags);
}

/* What a broken journal would tell is worse than a test that ends. */
static void must(int is_well)
{
    if (!is_well) {
        static const char text[] = "jepsen faults.c: the undo journal cannot be written\n";
        ssize_t ignored = real_write(2, text, sizeof text - 1);
        (void)ignored;
        abort();
    }
}

static void note_bytes(int file, uint32_t kind, int64_t offset, int64_t end)
{
    struct stat status;
    int64_t new_end = end;
    if (fstat(file, &status) || !S_ISREG(status.st_mode))
        return;
    /* The descriptor may be open for writing only, so the old bytes are read through another one. */
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    int reader = real_open(link, O_RDONLY | O_CLOEXEC);
    int out = open_file_journal(status.st_ino, O_WRONLY | O_CREAT | O_APPEND);
    must(reader >= 0 && out >= 0);
    if (end > status.st_size)
        end = status.st_size;
    do { /* large writes are noted in pieces; at least one record, for the size */
        int64_t length = end - offset;
        if (length < 0)
            length = 0;
        if (length > 1 << 20)
            length = 1 << 20;
        int is_last = offset + length >= end;
        int64_t new_bytes = kind != 1 ? 0 : is_last ? new_end - offset : length;
        struct record record = {kind, (uint32_t)length, offset, status.st_size, new_bytes};
        char *data = malloc(sizeof record + length);
        must(data != NULL);
        memcpy(data, &record, sizeof record);
        must(real_pread(reader, data + sizeof record, length, offset) == length);
        must(real_write(out, data, sizeof record + length) == (ssize_t)(sizeof record + length));
        free(data);
        offset += length;
    } while (offset < end);
    close(reader);
    close(out);
}

static void note_name(const char *kind, unsigned long number, const char *one, const char *two)
{
    char line[2 * PATH_MAX + 64];
    int length = snprintf(line, sizeof line, "%s\t%lu\t%s\t%s\n", kind, number, one, two);
    int out = open_journal("names", O_WRONLY | O_CREAT | O_APPEND);
    must(out >= 0 && length < (int)sizeof line && real_write(out, line, length) == length);
    close(out);
}

/* Keep what a name stands for; the number under which it is kept, 0 when it stands for nothing. */
static unsigned long keep(const char *path)
{
    struct stat status;
    char kept[PATH_MAX + 64];
    if (lstat(path, &status) || !S_ISREG(status.st_mode))
        return 0;
    do
        snprintf(kept, sizeof kept, "%s/kept-%lu", journal, ++name_count);
    while (!access(kept, F_OK));
    must(!link(path, kept));
    return name_count;
}

static void forget_synced(int file, const char *path)
{
    struct stat status;
    if (fstat(file, &status))
        return;
    if (S_ISDIR(status.st_mode)) {
        note_name("synced", 0, path, "");
        return;
    }
    int out = open_file_journal(status.st_ino, O_WRONLY);
    if (out >= 0) {
        must(!real_ftruncate(out, 0));
        close(out);
    }
}

/* --- calls on descriptors --- */

static int64_t size_of(int file)
{
    struct stat status;
    return fstat(file, &status) ? 0 : status.st_size;
}

/* Returns 1 when the call must fail with errno, else it goes on, with the journal locked if `*held`. */
static int before_write(int file, int64_t offset, size_t length, int *held)
{
    char path[PATH_MAX];
    *held = 0;
    if (!is_watched(OP_WRITE) || !path_of(file, path))
        return 0;
    if (offset < 0)
        offset = (fcntl(file, F_GETFL) & O_APPEND) ? size_of(file) : lseek(file, 0, SEEK_CUR);
    int64_t end = offset + (int64_t)length;
    int error = strike(path, OP_WRITE, offset, end, end > size_of(file));
    if (error) {
        errno = error;
        return 1;
    }
    if (is_journaled(path)) {
        pthread_mutex_lock(&lock);
        *held = 1;
        note_bytes(file, 1, offset, end);
    }
    return 0;
}

static void after(int held)
{
    if (held) {
        int error = errno;
        pthread_mutex_unlock(&lock);
        errno = error;
    }
}

static size_t total(const struct iovec *parts, int count)
{
    size_t sum = 0;
    for (int at = 0; at < count; at++)
        sum += parts[at].iov_len;
    return sum;
}

#define WRITER(signature, offset, length, call) \
    signature \
    { \
        int held; \
        ready(); \
        if (before_write(file, offset, length, &held)) \
            return -1; \
        ssize_t result = call; \
        after(held); \
        return result; \
    }

WRITER(ssize_t write(int file, const void *data, size_t size), -1, size,
       real_write(file, data, size))
WRITER(ssize_t writev(int file, const struct iovec *parts, int count), -1, total(parts, count),
       real_writev(file, parts, count))
WRITER(ssize_t pwrite(int file, const void *data, size_t size, off_t at), at, size,
       real_pwrite(file, data, size, at))
WRITER(ssize_t pwrite64(int file, const void *data, size_t size, off_t at), at, size,
       real_pwrite(file, data, size, at))
WRITER(ssize_t pwritev(int file, const struct iovec *parts, int count, off_t at), at,
       total(parts, count), real_pwritev(file, parts, count, at))
WRITER(ssize_t pwritev64(int file, const struct iovec *parts, int count, off_t at), at,
       total(parts, count), real_pwritev(file, parts, count, at))
WRITER(ssize_t pwritev2(int file, const struct iovec *parts, int count, off_t at, int flags), at,
       total(parts, count), real_pwritev2(file, parts, count, at, flags))
WRITER(ssize_t pwritev64v2(int file, const struct iovec *parts, int count, off_t at, int flags), at,
       total(parts, count), real_pwritev2(file, parts, count, at, flags))

ssize_t pread(int file, void *data, size_t size, off_t at)
{
    char path[PATH_MAX];
    ready();
    if (control && (control->armed & OP_READ) && path_of(file, path)) {
        int error = strike(path, OP_READ, at, at + (int64_t)size, 0);
        if (error) {
            errno = error;
            return -1;
        }
    }
    return real_pread(file, data, size, at);
}

ssize_t pread64(int file, void *data, size_t size, off_t at)
{
    return pread(file, data, size, at);
}

/* Whether a path is the folder in which the root itself stands. */
static int is_parent_of_root(const char *path)
{
    size_t length = strlen(path);
    return root_length > length && !strncmp(root, path, length) && root[length] == '/' &&
           !strchr(root + length + 1, '/');
}

static int sync_with(int (*real)(int), int file)
{
    char path[PATH_MAX];
    if (!is_watched(OP_SYNC))
        return real(file);
    if (!path_of(file, path)) {
        int result = real(file);
        if (!result && journal[0] && is_parent_of_root(path)) {
            pthread_mutex_lock(&lock);
            note_name("synced", 0, path, "");
            after(1);
        }
        return result;
    }
    int error = strike(path, OP_SYNC, 0, 0, 0);
    if (error) {
        errno = error;
        return -1;
    }
    if (!is_journaled(path))
        return real(file);
    pthread_mutex_lock(&lock);
    int result = real(file);
    if (!result)
        forget_synced(file, path);
    after(1);
    return result;
}

int fsync(int file)
{
    ready();
    return sync_with(real_fsync, file);
}

int fdatasync(int file)
{
    ready();
    return sync_with(real_fdatasync, file);
}

int ftruncate(int file, off_t size)
{
    char path[PATH_MAX];
    ready();
    if (!is_watched(OP_CUT) || !path_of(file, path))
        return real_ftruncate(file, size);
    int error = strike(path, OP_CUT, size, size, 0);
    if (error) {
        errno = error;
        return -1;
    }
    if (!is_journaled(path))
        return real_ftruncate(file, size);
    pthread_mutex_lock(&lock);
    note_bytes(file, 2, size, INT64_MAX);
    int result = real_ftruncate(file, size);
    after(1);
    return result;
}

int ftruncate64(int file, off_t size)
{
    return ftruncate(file, size);
}

/* The error of a reservation, 0 when it goes on. */
static int before_reserve(int file, off_t at, off_t size, int *held)
{
    char path[PATH_MAX];
    *held = 0;
    if (!is_watched(OP_RESERVE) || !path_of(file, path))
        return 0;
    int error = strike(path, OP_RESERVE, at, at + size, at + size > size_of(file));
    if (error)
        return error;
    if (is_journaled(path)) {
        pthread_mutex_lock(&lock);
        *held = 1;
        note_bytes(file, 2, INT64_MAX, 0);
    }
    return 0;
}

int posix_fallocate(int file, off_t at, off_t size)
{
    int held;
    ready();
    int error = before_reserve(file, at, size, &held);
    if (error)
        return error;
    int result = real_posix_fallocate(file, at, size);
    after(held);
    return result;
}

int posix_fallocate64(int file, off_t at, off_t size)
{
    return posix_fallocate(file, at, size);
}

int fallocate(int file, int mode, off_t at, off_t size)
{
    int held;
    ready();
    int error = before_reserve(file, at, size, &held);
    if (error) {
        errno = error;
        return -1;
    }
    int result = real_fallocate(file, mode, at, size);
    after(held);
    return result;
}

int fallocate64(int file, int mode, off_t at, off_t size)
{
    return fallocate(file, mode, at, size);
}

/* --- calls on names --- */

static int before_open(int folder, const char *name, int flags)
{
    char path[PATH_MAX];
    if (!(flags & (O_CREAT | O_TRUNC | O_WRONLY | O_RDWR)) || !is_watched(OP_CREATE | OP_CUT | OP_OPEN) ||
        !path_at(folder, name, path))
        return 0;
    int is_new = (flags & O_CREAT) && access(path, F_OK);
    int error = 0;
    if (is_new)
        error = strike(path, OP_CREATE, 0, 0, 1);
    else if (flags & O_TRUNC)
        error = strike(path, OP_CUT, 0, 0, 0);
    else if (flags & (O_WRONLY | O_RDWR))
        error = strike(path, OP_OPEN, 0, 0, 0);
    if (error) {
        errno = error;
        return -1;
    }
    if (!is_journaled(path))
        return 0;
    pthread_mutex_lock(&lock);
    if (is_new)
        note_name("made", 0, path, "");
    else if (flags & O_TRUNC) {
        int file = real_open(path, O_RDONLY | O_CLOEXEC);
        if (file >= 0) {
            note_bytes(file, 2, 0, INT64_MAX);
            close(file);
        }
    }
    pthread_mutex_unlock(&lock);
    return 0;
}

#define OPENER(signature, folder, call) \
    signature \
    { \
        mode_t mode = 0; \
        ready(); \
        if (flags & (O_CREAT | __O_TMPFILE)) { \
            va_list rest; \
            va_start(rest, flags); \
            mode = va_arg(rest, mode_t); \
            va_end(rest); \
        } \
        if (before_open(folder, name, flags)) \
            return -1; \
        return call; \
    }

OPENER(int open(const char *name, int flags, ...), AT_FDCWD, real_open(name, flags, mode))
OPENER(int open64(const char *name, int flags, ...), AT_FDCWD, real_open(name, flags, mode))
OPENER(int openat(int folder, const char *name, int flags, ...), folder,
       real_openat(folder, name, flags, mode))
OPENER(int openat64(int folder, const char *name, int flags, ...), folder,
       real_openat(folder, name, flags, mode))

static int move(int one_folder, const char *one, int two_folder, const char *two)
{
    char source[PATH_MAX], target[PATH_MAX];
    if (!is_watched(OP_NAME) || !path_at(one_folder, one, source) ||
        !path_at(two_folder, two, target))
        return real_renameat(one_folder, one, two_folder, two);
    int error = strike(target, OP_NAME, 0, 0, 0);
    if (error) {
        errno = error;
        return -1;
    }
    if (!is_journaled(target))
        return real_renameat(one_folder, one, two_folder, two);
    pthread_mutex_lock(&lock);
    note_name("moved", keep(target), source, target);
    int result = real_renameat(one_folder, one, two_folder, two);
    after(1);
    return result;
}

int rename(const char *one, const char *two)
{
    ready();
    return move(AT_FDCWD, one, AT_FDCWD, two);
}

int renameat(int one_folder, const char *one, int two_folder, const char *two)
{
    ready();
    return move(one_folder, one, two_folder, two);
}

static int take_away(int folder, const char *name, int flags)
{
    char path[PATH_MAX];
    if (!is_watched(OP_NAME) || !path_at(folder, name, path))
        return real_unlinkat(folder, name, flags);
    int error = strike(path, OP_NAME, 0, 0, 0);
    if (error) {
        errno = error;
        return -1;
    }
    if (!is_journaled(path))
        return real_unlinkat(folder, name, flags);
    pthread_mutex_lock(&lock);
    if (flags & AT_REMOVEDIR)
        note_name("removed-folder", 0, path, "");
    else
        note_name("removed", keep(path), path, "");
    int result = real_unlinkat(folder, name, flags);
    after(1);
    return result;
}

int unlink(const char *name)
{
    ready();
    return take_away(AT_FDCWD, name, 0);
}

int unlinkat(int folder, const char *name, int flags)
{
    ready();
    return take_away(folder, name, flags);
}

int rmdir(const char *name)
{
    ready();
    return take_away(AT_FDCWD, name, AT_REMOVEDIR);
}

int mkdirat(int folder, const char *name, mode_t mode)
{
    char path[PATH_MAX];
    ready();
    if (!is_watched(OP_CREATE) || !path_at(folder, name, path))
        return real_mkdirat(folder, name, mode);
    int error = strike(path, OP_CREATE, 0, 0, 1);
    if (error) {
        errno = error;
        return -1;
    }
    if (!is_journaled(path) || !access(path, F_OK))
        return real_mkdirat(folder, name, mode);
    pthread_mutex_lock(&lock);
    note_name("made-folder", 0, path, "");
    int result = real_mkdirat(folder, name, mode);
    after(1);
    return result;
}

int mkdir(const char *name, mode_t mode)
{
    return mkdirat(AT_FDCWD, name, mode);
}
