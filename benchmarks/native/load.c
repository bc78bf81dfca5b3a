/* Generates HTTP load on keep-alive connections and prints one line of JSON with what it saw.
 *
 * Each connection sends the request in FILE, reads the whole answer, and sends it again, until REQUESTS are done.
 * Events of streams that carry the time at which they were sent ("t":NANOSECONDS) give delays.
 * Usage: load PORT CONNECTIONS REQUESTS FILE */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MOST 65536
#define HEAD_MAX 8192

enum { HEAD, LENGTH, SIZE, CHUNK, END };

typedef struct {
    int state, used, ok, last;
    long left;          /* bytes of the body, or of the chunk with its line end */
    long sent;
    long long began_ns;
    char buf[HEAD_MAX]; /* a head, a size line, or the beginning of a chunk */
} conn_t;

static conn_t *conns[MOST];
static int epoll_fd;
static char *message;
static long message_len, todo, done, events_seen, failures;
static double *latencies, *delays;
static long n_latencies, n_delays, max_delays;

static long long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void die(const char *why) { fprintf(stderr, "load: %s\n", why); exit(1); }

static void send_on(int fd) {
    conn_t *c = conns[fd];
    while (c->sent < message_len) {
        long n = write(fd, message + c->sent, message_len - c->sent);
        if (n < 0) {
            if (errno != EAGAIN) die("a connection was closed while a request was sent");
            break;
        }
        c->sent += n;
    }
    struct epoll_event e = {c->sent < message_len ? EPOLLIN | EPOLLOUT : EPOLLIN, {.fd = fd}};
    if (message_len > 65536) epoll_ctl(epoll_fd, EPOLL_CTL_MOD, fd, &e);
}

static int begin(int fd) {
    conn_t *c = conns[fd];
    if (todo <= 0) return 0;
    todo--;
    c->state = HEAD;
    c->used = 0;
    c->sent = 0;
    c->began_ns = now_ns();
    send_on(fd);
    return 1;
}

static void finish(int fd) {
    conn_t *c = conns[fd];
    latencies[n_latencies++] = (now_ns() - c->began_ns) / 1e6;
    done++;
    failures += !c->ok;
    c->state = END;
    begin(fd);
}

static void event(const char *text, int len, long long now) {
    const char *at = memmem(text, len, "\"t\":", 4);
    if (memmem(text, len, "data: ", 6)) events_seen++;
    if (at && n_delays < max_delays) delays[n_delays++] = (now - atoll(at + 4)) / 1e6;
}

static void take(int fd, char *data, long len) {
    conn_t *c = conns[fd];
    long long now = now_ns();
    while (len > 0) {
        switch (c->state) {
        case HEAD: {
            long n = len < HEAD_MAX - c->used ? len : HEAD_MAX - c->used;
            memcpy(c->buf + c->used, data, n);
            char *end = memmem(c->buf, c->used + n, "\r\n\r\n", 4);
            if (!end) { c->used += n; if (c->used == HEAD_MAX) die("a head is too long"); return; }
            long head = end + 4 - c->buf;
            data += head - c->used;
            len -= head - c->used;
            c->buf[head - 1] = 0;
            c->ok = strncmp(c->buf, "HTTP/1.1 200", 12) == 0;
            c->used = 0;
            char *at = strcasestr(c->buf, "content-length:");
            if (at) { c->state = LENGTH; c->left = atol(at + 15); if (!c->left) { finish(fd); return; } }
            else if (strcasestr(c->buf, "transfer-encoding: chunked")) c->state = SIZE;
            else die("an answer without a length");
            break;
        }
        case LENGTH: {
            long n = len < c->left ? len : c->left;
            c->left -= n; data += n; len -= n;
            if (!c->left) finish(fd);
            break;
        }
        case SIZE: {
            char *nl = memchr(data, '\n', len);
            long n = nl ? nl + 1 - data : len;
            if (c->used + n >= HEAD_MAX) die("a size line is too long");
            memcpy(c->buf + c->used, data, n);
            c->used += n; data += n; len -= n;
            if (!nl) return;
            c->buf[c->used] = 0;
            long size = strtol(c->buf, NULL, 16);
            c->used = 0;
            c->last = size == 0;
            c->left = size + 2;
            c->state = CHUNK;
            break;
        }
        case CHUNK: {
            long n = len < c->left ? len : c->left;
            if (c->used + n < HEAD_MAX) { memcpy(c->buf + c->used, data, n); c->used += n; }
            c->left -= n; data += n; len -= n;
            if (c->left) return;
            if (c->last) { c->used = 0; finish(fd); }
            else { event(c->buf, c->used, now); c->used = 0; c->state = SIZE; }
            break;
        }
        default: die("bytes that nobody has asked for");
        }
    }
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double part(double *values, long n, double share) { return n ? values[(long)((n - 1) * share)] : 0; }

int main(int argc, char **argv) {
    static char data[1 << 18];
    struct epoll_event events[512];
    if (argc != 5) die("usage: load PORT CONNECTIONS REQUESTS FILE");
    int connections = atoi(argv[2]), yes = 1;
    long requests = todo = atol(argv[3]);
    int file = open(argv[4], O_RDONLY);
    struct stat info;
    if (file < 0 || fstat(file, &info)) die("the request cannot be read");
    message = malloc(info.st_size);
    message_len = read(file, message, info.st_size);
    latencies = malloc(sizeof(double) * (requests + 1));
    max_delays = 4000000;
    delays = malloc(sizeof(double) * max_delays);
    epoll_fd = epoll_create1(0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    int fds[MOST];
    for (int i = 0; i < connections; i++) {
        int fd = fds[i] = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)&address, sizeof address)) die("cannot connect");
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        fcntl(fd, F_SETFL, O_NONBLOCK);
        conns[fd] = calloc(1, sizeof(conn_t));
        struct epoll_event e = {EPOLLIN, {.fd = fd}};
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &e);
    }
    long long began = now_ns();
    for (int i = 0; i < connections; i++) begin(fds[i]);
    while (done < requests) {
        int ready = epoll_wait(epoll_fd, events, 512, 30000);
        if (!ready) die("nothing has come for 30 s");
        for (int i = 0; i < ready; i++) {
            int fd = events[i].data.fd;
            if (events[i].events & EPOLLOUT) send_on(fd);
            long n = read(fd, data, sizeof data);
            if (n > 0) take(fd, data, n);
            else if (n == 0 || errno != EAGAIN) die("a connection was closed in the middle of an answer");
        }
    }
    double seconds = (now_ns() - began) / 1e9;
    qsort(latencies, n_latencies, sizeof(double), by_value);
    qsort(delays, n_delays, sizeof(double), by_value);
    printf("{\"requests\": %ld, \"events\": %ld, \"failures\": %ld, \"seconds\": %.6f, \"p50_ms\": %.4f, \"p99_ms\": %.4f, "
           "\"delay_p50_ms\": %.4f, \"delay_p99_ms\": %.4f}\n",
           done, events_seen, failures, seconds, part(latencies, n_latencies, 0.5), part(latencies, n_latencies, 0.99),
           part(delays, n_delays, 0.5), part(delays, n_delays, 0.99));
    return 0;
}
