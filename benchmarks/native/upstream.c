/* A model server that costs next to nothing, so that what stands in front of it can be measured.
 *
 * POST any path: a plain answer, or with "stream": true a stream of "chunks" events, "interval_ms" apart (0: as fast as
 * they are read), each with the time at which it was sent. GET: 200. One thread, epoll, keep-alive.
 * Usage: upstream PORT */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define HEAD_MAX 16384
#define MOST 65536

typedef struct {
    int used;           /* bytes of the head in buf */
    long body_left;     /* of the request, still to be read */
    int in_body, stream_wanted, chunks, interval_ms;
    int left;           /* events still to be sent */
    long long due_ns;
    char *pending;      /* what the socket did not take */
    int pending_len;
    char buf[HEAD_MAX];
} conn_t;

static conn_t *conns[MOST];
static int heap[MOST], heap_len;
static int epoll_fd;
static char plain[1024];
static int plain_len;

static long long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void heap_push(int fd) {
    int i = heap_len++;
    while (i && conns[heap[(i - 1) / 2]]->due_ns > conns[fd]->due_ns) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = fd;
}

static int heap_pop(void) {
    int top = heap[0], last = heap[--heap_len], i = 0;
    for (;;) {
        int child = 2 * i + 1;
        if (child >= heap_len) break;
        if (child + 1 < heap_len && conns[heap[child + 1]]->due_ns < conns[heap[child]]->due_ns) child++;
        if (conns[heap[child]]->due_ns >= conns[last]->due_ns) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

static void heap_remove(int fd) {
    for (int i = 0; i < heap_len; i++)
        if (heap[i] == fd) {
            heap[i] = heap[--heap_len];
            /* rebuilt from scratch: connections that end early are rare here */
            int n = heap_len;
            heap_len = 0;
            for (int k = 0; k < n; k++) heap_push(heap[k]);
            return;
        }
}

static void drop(int fd) {
    conn_t *c = conns[fd];
    if (c->left && c->interval_ms) heap_remove(fd);
    free(c->pending);
    free(c);
    conns[fd] = NULL;
    close(fd);
}

/* Return 0 when everything was taken, 1 when the rest waits, -1 when the connection was dropped. */
static int put(int fd, const char *data, int len) {
    conn_t *c = conns[fd];
    if (!c->pending_len) {
        int n = write(fd, data, len);
        if (n == len) return 0;
        if (n < 0 && errno != EAGAIN) { drop(fd); return -1; }
        if (n < 0) n = 0;
        data += n;
        len -= n;
        struct epoll_event e = {EPOLLIN | EPOLLOUT, {.fd = fd}};
        epoll_ctl(epoll_fd, EPOLL_CTL_MOD, fd, &e);
    }
    c->pending = realloc(c->pending, c->pending_len + len);
    memcpy(c->pending + c->pending_len, data, len);
    c->pending_len += len;
    return 1;
}

static int event_text(char *out, int last) {
    char data[256];
    int n = last ? sprintf(data, "data: [DONE]\n\n")
                 : sprintf(data,
                           "data: {\"id\":\"b\",\"t\":%020lld,\"object\":\"chat.completion.chunk\","
                           "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"word\"}}]}\n\n",
                           now_ns());
    int len = sprintf(out, "%x\r\n", n);
    memcpy(out + len, data, n);
    len += n;
    len += sprintf(out + len, last ? "\r\n0\r\n\r\n" : "\r\n");
    return len;
}

/* Send the next event, or with interval 0 all that the socket takes. */
static void next_events(int fd) {
    char text[512];
    conn_t *c = conns[fd];
    while (c->left) {
        c->left--;
        int taken = put(fd, text, event_text(text, 0));
        if (taken < 0) return;
        if (c->left == 0 && put(fd, text, event_text(text, 1)) < 0) return;
        if (c->left && c->interval_ms) {
            c->due_ns += c->interval_ms * 1000000LL;
            heap_push(fd);
            return;
        }
        if (taken > 0) return;
    }
}

static long field(const char *text, int len, const char *name, long missing) {
    const char *at = memmem(text, len, name, strlen(name));
    return at ? strtol(at + strlen(name), NULL, 10) : missing;
}

static void answer(int fd) {
    static const char head[] = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    conn_t *c = conns[fd];
    if (!c->stream_wanted) {
        put(fd, plain, plain_len);
        return;
    }
    c->left = c->chunks;
    c->due_ns = now_ns();
    if (put(fd, head, sizeof head - 1) >= 0) next_events(fd);
}

/* Take what has come; bodies are read over but for their first bytes. */
static void take(int fd, char *data, int len) {
    conn_t *c = conns[fd];
    while (len > 0 && conns[fd] == c) {
        if (!c->in_body) {
            int n = len < HEAD_MAX - c->used ? len : HEAD_MAX - c->used;
            memcpy(c->buf + c->used, data, n);
            int before = c->used;
            c->used += n;
            char *end = memmem(c->buf, c->used, "\r\n\r\n", 4);
            if (!end) return;
            int head_len = end + 4 - c->buf;
            data += head_len - before;
            len -= head_len - before;
            for (char *p = c->buf; p < end; p++) if (*p >= 'A' && *p <= 'Z') *p += 32;
            c->body_left = field(c->buf, head_len, "content-length: ", 0);
            c->in_body = 1;
            c->used = 0;
            c->stream_wanted = len && memmem(data, len < 4096 ? len : 4096, "\"stream\": true", 14) != NULL;
            c->chunks = field(data, len < 4096 ? len : 4096, "\"chunks\": ", 1);
            c->interval_ms = field(data, len < 4096 ? len : 4096, "\"interval_ms\": ", 0);
        }
        long n = len < c->body_left ? len : c->body_left;
        data += n;
        len -= n;
        c->body_left -= n;
        if (c->body_left) return;
        c->in_body = 0;
        answer(fd);
    }
}

static void writable(int fd) {
    conn_t *c = conns[fd];
    int n = write(fd, c->pending, c->pending_len);
    if (n < 0) { if (errno != EAGAIN) drop(fd); return; }
    memmove(c->pending, c->pending + n, c->pending_len - n);
    c->pending_len -= n;
    if (c->pending_len) return;
    struct epoll_event e = {EPOLLIN, {.fd = fd}};
    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, fd, &e);
    if (!c->interval_ms) next_events(fd);
}

int main(int argc, char **argv) {
    static char data[1 << 20];
    struct epoll_event events[512];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[argc - 1]))};
    int yes = 1, server = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(server, (struct sockaddr *)&address, sizeof address) || listen(server, 4096)) { perror("upstream"); return 1; }
    char text[512];
    int n = sprintf(text, "{\"id\": \"b\", \"object\": \"chat.completion\", \"choices\": [{\"message\": "
                          "{\"role\": \"assistant\", \"content\": \"word word word word word word word word word word\"}}]}");
    plain_len = sprintf(plain, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s", n, text);
    epoll_fd = epoll_create1(0);
    struct epoll_event e = {EPOLLIN, {.fd = server}};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, server, &e);
    for (;;) {
        int timeout = -1;
        if (heap_len) {
            long long wait = conns[heap[0]]->due_ns - now_ns();
            timeout = wait <= 0 ? 0 : (int)((wait + 999999) / 1000000);
        }
        int ready = epoll_wait(epoll_fd, events, 512, timeout);
        for (int i = 0; i < ready; i++) {
            int fd = events[i].data.fd;
            if (fd == server) {
                int client;
                while ((client = accept4(server, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
                    conns[client] = calloc(1, sizeof(conn_t));
                    struct epoll_event c = {EPOLLIN, {.fd = client}};
                    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, client, &c);
                }
                continue;
            }
            if (conns[fd] && (events[i].events & EPOLLOUT)) writable(fd);
            if (conns[fd] && (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))) {
                int got = read(fd, data, sizeof data);
                if (got > 0) take(fd, data, got);
                else if (got == 0 || errno != EAGAIN) drop(fd);
            }
        }
        long long now = now_ns();
        while (heap_len && conns[heap[0]]->due_ns <= now) next_events(heap_pop());
    }
}
