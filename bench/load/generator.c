/*
 * Keeps requests in flight to a remoting server, and says how long they took. Built by native.py, which describes the
 * command line, the plan that is read and the lines that are printed.
 *
 * It costs little, or it would measure itself: one thread, one epoll, frames that are ready but for the opaque number
 * and the keys. It knows nothing of topics or codes. Of a reply it reads the opaque number, the code, and how many
 * records the body has. One reply in so many is printed whole, so that its acknowledgement can be looked up afterwards.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum {
    OPAQUE_DIGITS = 9,
    FIRST_OPAQUE = 100000000,
    KEY_DIGITS = 16,
    BUCKETS = 64 * 32, /* 32 for each power of two of nanoseconds: a bucket is 3 % wide */
    SAMPLES_MAX = 16,
    ERROR_MAX = 300,
    UNSENT_MAX = 4 << 20, /* bytes that a connection may have waiting for the socket */
    SILENCE_S = 20,
    DRAIN_S = 5,
};

struct template {
    char *bytes;
    size_t size, opaque_at, key_count, *key_at;
};

struct connection {
    int fd, is_waiting_to_write;
    char *out, *in;
    size_t out_size, out_sent, out_room, in_size, in_room;
    uint32_t *free_slots, free_count;
};

struct slot { /* a request in flight; its number is the opaque number */
    double sent_at;
    uint64_t key;
};

struct sample {
    uint64_t key;
    char *header;
    uint32_t size;
};

struct round {
    double begun_at, cpu_begun;
    uint64_t requests, refused, records, bytes, histogram[BUCKETS], next_sample, sample_every;
    struct sample samples[SAMPLES_MAX];
    int sample_count;
    char error[ERROR_MAX];
};

static struct template *templates;
static size_t template_count, next_template;
static struct slot *slots;
static struct round now_measured;
static uint64_t next_key, outstanding, sent_count;
static uint32_t slot_count;
static int is_oneway, is_stopping;

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, errno ? strerror(errno) : "failed");
    exit(1);
}

static void *room_for(void *before, size_t size) {
    void *found = realloc(before, size);
    if (!found) fail("memory");
    return found;
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double cpu_s(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

static uint32_t number_at(const char *at) {
    uint32_t value;
    memcpy(&value, at, 4);
    return ntohl(value);
}

static int bucket_of(double seconds) {
    uint64_t ns = seconds <= 32e-9 ? 32 : (uint64_t)(seconds * 1e9);
    int power = 63 - __builtin_clzll(ns);
    return power * 32 + (int)((ns >> (power - 5)) & 31);
}

static double middle_us(int bucket) {
    double low = (double)(1ull << (bucket / 32));
    return low * (1 + (bucket % 32 + 0.5) / 32) / 1000;
}

static double percentile_us(double part) {
    uint64_t wanted = (uint64_t)((double)now_measured.requests * part), seen = 0;
    for (int i = 0; i < BUCKETS; i++) {
        seen += now_measured.histogram[i];
        if (seen > wanted) return middle_us(i);
    }
    for (int i = BUCKETS - 1; i >= 0; i--)
        if (now_measured.histogram[i]) return middle_us(i);
    return 0;
}

static void read_plan(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file || fscanf(file, "%zu\n", &template_count) != 1 || !template_count) fail(path);
    templates = room_for(NULL, template_count * sizeof *templates);
    for (size_t i = 0; i < template_count; i++) {
        struct template *t = &templates[i];
        if (fscanf(file, "%zu %zu %zu", &t->size, &t->opaque_at, &t->key_count) != 3) fail(path);
        t->key_at = room_for(NULL, (t->key_count + 1) * sizeof *t->key_at);
        for (size_t k = 0; k < t->key_count; k++)
            if (fscanf(file, "%zu", &t->key_at[k]) != 1) fail(path);
        if (fgetc(file) != '\n') fail(path);
        t->bytes = room_for(NULL, t->size);
        if (fread(t->bytes, 1, t->size, file) != t->size) fail(path);
    }
    fclose(file);
}

static void put_digits(char *at, uint64_t value, int count, int base) {
    for (int i = count - 1; i >= 0; i--, value /= base) at[i] = "0123456789ABCDEF"[value % base];
}

/* Append the next request to what the connection has to send. */
static void put_request(struct connection *c, uint32_t slot, double at) {
    const struct template *t = &templates[next_template++ % template_count];
    if (c->out_size + t->size > c->out_room) {
        c->out_room = (c->out_size + t->size) * 2;
        c->out = room_for(c->out, c->out_room);
    }
    char *frame = c->out + c->out_size;
    memcpy(frame, t->bytes, t->size);
    put_digits(frame + t->opaque_at, FIRST_OPAQUE + (uint64_t)slot, OPAQUE_DIGITS, 10);
    for (size_t k = 0; k < t->key_count; k++) put_digits(frame + t->key_at[k], next_key, KEY_DIGITS, 16);
    slots[slot].key = next_key++;
    slots[slot].sent_at = at;
    c->out_size += t->size;
    sent_count++;
}

static void watch(int epoll, struct connection *c, int operation, int with_writes) {
    struct epoll_event event = {.events = with_writes ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.ptr = c};
    if (epoll_ctl(epoll, operation, c->fd, &event)) fail("epoll_ctl");
    c->is_waiting_to_write = with_writes;
}

/* Use the free slots, and send what the socket takes. */
static void pump(int epoll, struct connection *c) {
    double at = now_s();
    while (!is_stopping && c->free_count && c->out_size - c->out_sent < UNSENT_MAX) {
        put_request(c, c->free_slots[--c->free_count], at);
        if (is_oneway) /* nothing comes back: the slot is free when the bytes are on their way */
            c->free_count++, now_measured.requests++;
        else
            outstanding++;
    }
    while (c->out_sent < c->out_size) {
        ssize_t sent = send(c->fd, c->out + c->out_sent, c->out_size - c->out_sent, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno == EAGAIN) break;
        if (sent < 0) fail("send");
        c->out_sent += (size_t)sent;
    }
    int is_behind = c->out_sent < c->out_size;
    if (!is_behind) c->out_sent = c->out_size = 0;
    /* A one-way load has no replies to wake it. */
    int wants_writes = is_behind || (is_oneway && !is_stopping);
    if (wants_writes != c->is_waiting_to_write) watch(epoll, c, EPOLL_CTL_MOD, wants_writes);
}

static uint64_t records_in(const char *body, size_t size) {
    uint64_t found = 0;
    for (size_t at = 0; size - at >= 4; found++) {
        uint32_t record = number_at(body + at);
        if (record < 4 || record > size - at) break;
        at += record;
    }
    return found;
}

static void keep_sample(const char *header, uint32_t size, uint64_t key) {
    struct round *r = &now_measured;
    if (r->requests < r->next_sample) return;
    if (r->sample_count == SAMPLES_MAX) { /* keep every other one: they stay spread over the round */
        for (int i = 0; i < SAMPLES_MAX; i++)
            if (i % 2) free(r->samples[i].header);
            else r->samples[i / 2] = r->samples[i];
        r->sample_count /= 2;
        r->sample_every *= 2;
    }
    struct sample *s = &r->samples[r->sample_count++];
    s->key = key;
    s->size = size;
    s->header = memcpy(room_for(NULL, size), header, size);
    r->next_sample = r->requests + r->sample_every;
}

static void take_reply(struct connection *c, const char *frame, uint32_t size, double at) {
    uint32_t header_size = number_at(frame + 4) & 0xffffff;
    const char *header = frame + 8;
    if (header_size > size - 4) errno = EPROTO, fail("a reply");
    const char *opaque = memmem(header, header_size, "\"opaque\":", 9);
    const char *code = memmem(header, header_size, "\"code\":", 7);
    if (!opaque || !code) errno = EPROTO, fail("a reply without opaque or code");
    uint32_t slot = (uint32_t)strtoul(opaque + 9, NULL, 10) - FIRST_OPAQUE;
    if (slot >= slot_count || is_oneway) errno = EPROTO, fail("a reply that nobody waits for");
    struct round *r = &now_measured;
    r->requests++;
    r->bytes += size + 4;
    r->histogram[bucket_of(at - slots[slot].sent_at)]++;
    if (strtol(code + 7, NULL, 10) == 0) {
        r->records += records_in(header + header_size, size - 4 - header_size);
        keep_sample(header, header_size, slots[slot].key);
    } else if (!r->refused++) {
        snprintf(r->error, sizeof r->error, "%.*s", (int)header_size, header);
    }
    c->free_slots[c->free_count++] = slot;
    outstanding--;
}

/* Returns whether something came. */
static int read_replies(struct connection *c) {
    if (c->in_room - c->in_size < (256 << 10)) {
        c->in_room = c->in_room ? c->in_room * 2 : 1 << 20;
        c->in = room_for(c->in, c->in_room + 1);
    }
    ssize_t got = recv(c->fd, c->in + c->in_size, c->in_room - c->in_size, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    if (got == 0) errno = ECONNRESET;
    if (got <= 0) fail("the server closed a connection");
    c->in_size += (size_t)got;
    size_t at = 0;
    double now = now_s();
    while (c->in_size - at >= 8) {
        uint32_t size = number_at(c->in + at);
        if (c->in_size - at < (size_t)size + 4) break;
        take_reply(c, c->in + at, size, now);
        at += (size_t)size + 4;
    }
    memmove(c->in, c->in + at, c->in_size - at);
    c->in_size -= at;
    return 1;
}

static void begin_round(double at) {
    for (int i = 0; i < now_measured.sample_count; i++) free(now_measured.samples[i].header);
    memset(&now_measured, 0, sizeof now_measured);
    now_measured.begun_at = at;
    now_measured.cpu_begun = cpu_s();
    now_measured.sample_every = 1;
}

static void print_hex(const char *bytes, size_t size) {
    for (size_t i = 0; i < size; i++) printf("%02x", (unsigned char)bytes[i]);
}

static void print_round(double at) {
    const struct round *r = &now_measured;
    printf("{\"seconds\":%.6f,\"requests\":%llu,\"refused\":%llu,\"records\":%llu,\"reply_bytes\":%llu,",
           at - r->begun_at, (unsigned long long)r->requests, (unsigned long long)r->refused,
           (unsigned long long)r->records, (unsigned long long)r->bytes);
    printf("\"p50_us\":%.1f,\"p99_us\":%.1f,\"max_us\":%.1f,\"generator_cpu_s\":%.6f,", percentile_us(0.5),
           percentile_us(0.99), percentile_us(1), cpu_s() - r->cpu_begun);
    printf("\"error_hex\":\"");
    print_hex(r->error, strlen(r->error));
    printf("\",\"samples\":[");
    for (int i = 0; i < r->sample_count; i++) {
        printf("%s{\"key\":\"%016llX\",\"header_hex\":\"", i ? "," : "", (unsigned long long)r->samples[i].key);
        print_hex(r->samples[i].header, r->samples[i].size);
        printf("\"}");
    }
    printf("]}\n");
    fflush(stdout);
}

static void connect_to(struct connection *c, const char *host, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int one = 1;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0 || inet_pton(AF_INET, host, &address.sin_addr) != 1) fail(host);
    if (connect(c->fd, (struct sockaddr *)&address, sizeof address)) fail("connect");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (fcntl(c->fd, F_SETFL, O_NONBLOCK)) fail("fcntl");
}

int main(int count, char **words) {
    if (count != 11) {
        fprintf(stderr, "usage: generator PLAN HOST PORT CONNECTIONS IN_FLIGHT WARM_UP_S SECONDS ROUNDS KEY ONEWAY\n");
        return 2;
    }
    read_plan(words[1]);
    uint32_t connection_count = (uint32_t)atoi(words[4]), in_flight = (uint32_t)atoi(words[5]);
    double warm_up_s = atof(words[6]), seconds = atof(words[7]);
    int rounds_left = atoi(words[8]);
    next_key = strtoull(words[9], NULL, 10);
    is_oneway = atoi(words[10]);
    slot_count = connection_count * in_flight;
    slots = room_for(NULL, slot_count * sizeof *slots);
    struct connection *connections = calloc(connection_count, sizeof *connections);
    int epoll = epoll_create1(0);
    if (!connections || epoll < 0) fail("epoll");
    for (uint32_t i = 0; i < connection_count; i++) {
        struct connection *c = &connections[i];
        connect_to(c, words[2], atoi(words[3]));
        c->free_slots = room_for(NULL, in_flight * sizeof *c->free_slots);
        for (uint32_t k = 0; k < in_flight; k++) c->free_slots[c->free_count++] = i * in_flight + k;
        watch(epoll, c, EPOLL_CTL_ADD, 0);
    }
    double at = now_s(), next_at = at + warm_up_s, heard_at = at, stopped_at = 0;
    int is_measuring = 0;
    begin_round(at);
    for (uint32_t i = 0; i < connection_count; i++) pump(epoll, &connections[i]);
    while (!is_stopping || (outstanding && at < stopped_at + DRAIN_S)) {
        struct epoll_event events[256];
        int ready = epoll_wait(epoll, events, 256, 10);
        if (ready < 0 && errno != EINTR) fail("epoll_wait");
        for (int i = 0; i < ready; i++) {
            struct connection *c = events[i].data.ptr;
            if (events[i].events & ~(uint32_t)EPOLLOUT && read_replies(c)) heard_at = now_s();
            pump(epoll, c);
        }
        at = now_s();
        if (!is_oneway && at - heard_at > SILENCE_S) errno = ETIMEDOUT, fail("the server");
        if (is_stopping || at < next_at) continue;
        if (is_measuring) print_round(at), rounds_left--;
        else printf("{\"warm\":true}\n"), fflush(stdout);
        is_measuring = 1;
        is_stopping = rounds_left == 0;
        stopped_at = at;
        next_at = at + seconds;
        begin_round(at);
    }
    printf("{\"sent\":%llu,\"unanswered\":%llu}\n", (unsigned long long)sent_count, (unsigned long long)outstanding);
    return 0;
}
