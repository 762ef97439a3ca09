/* The simulated machines: virtual time, hosts with clocks of their own, files (TCP sockets, epoll), and the network
 * between them. The real code reaches it through libc's names (sim_libc.c) and libuv's (sim_loop.c).
 *
 * One process simulates one world at a time: libc's calls have no context argument, so this is a global. A host runs at
 * most one process. Everything is decided by the queue of events and by two streams of random numbers. */
#ifndef SIMULATION_SIM_KERNEL_H
#define SIMULATION_SIM_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <uv.h>

#include "sim_random.h"

#define SIM_MS ((int64_t)1000) /* virtual time is counted in microseconds */
#define SIM_S ((int64_t)1000000)
#define SIM_FD_FIRST (1 << 20) /* no real descriptor is as high; none is used twice in a world */

enum { SIM_LINKED_HOSTS_MAX = 1024 }; /* worlds of more hosts have no partitions */

struct sim_list {
    struct sim_list *next, *previous; /* itself: not in a list, or an empty one */
};

struct sim_file;
struct sim_loop;

struct sim_host {
    uint32_t index;
    uint32_t addr; /* 10.0.0.1 and so on, in host order */
    bool is_up;    /* has power; its kernel answers */
    int64_t wall_offset_us, monotonic_offset_us;
    int64_t fast_ppm; /* its monotonic clock runs faster than time by so many millionths; negative: slower */
    int64_t stalled_since_us, stalled_until_us; /* its process gets no time in between */
    uint16_t next_port;
    int pid;                    /* of the process that runs, or ran last */
    uint32_t rdzv_count;        /* made by it */
    struct sim_loop *loop;      /* its; NULL: none runs */
    struct sim_file *files;     /* that it has open */
    struct sim_file *listeners; /* of these */
    struct {
        uint16_t port; /* 0: none yet */
        int process;
    } left; /* where the last connection led to that it made, had an answer on, and has closed */
    struct sim_random random;
};

struct sim_network {
    int64_t delay_us, jitter_us; /* one way */
    uint32_t late_one_in;        /* of so many deliveries one is lost and sent again, which takes its time; 0: none */
    bool splits;                 /* what is sent at once arrives in pieces */
    bool backs_off;              /* what a blocked path holds back is sent again after longer and longer pauses */
    uint32_t ghost_one_in;       /* of so many connections one is opened twice, the second time for nobody; 0: none */
    int64_t slow_us;             /* what is on its way for so long is noted */
    size_t window_bytes;         /* that a connection holds in one direction */
};

struct sim_counts {
    uint64_t events, sends, bytes, connections;
};

typedef void sim_event_fn(void *subject, uint64_t token);

struct sim_event {
    int64_t at_us;
    uint64_t order; /* of its making: decides between equal times */
    sim_event_fn *fn;
    void *subject;
    uint64_t token;
};

struct sim_kernel {
    int64_t now_us;
    struct sim_host *hosts;
    size_t host_count;
    struct sim_host *current; /* whose code runs */
    struct sim_network network;
    struct sim_counts counts;
    struct sim_random random;  /* the network's */
    int64_t slow_until_us;     /* the last thing that was slow_us on its way has arrived, or does, then; 0: none yet */
    int64_t *blocked_until_us; /* [from * host_count + to]; NULL: never */
    struct sim_event *events;  /* a heap */
    size_t event_count, event_capacity;
    uint64_t event_order;
    uint64_t instant_count; /* of events at the same time as the last one */
    struct sim_file **file_chunks;
    size_t file_count, chunk_count;
    const char *violation; /* the first thing that went wrong; static */
    bool buries;           /* what runs belongs to a process that has died: it can do nothing any more */
    bool traces;
};

extern struct sim_kernel sim_kernel;

/* ---- time ---- */

void sim_kernel_begin(uint64_t seed, size_t host_count, const struct sim_network *network);
void sim_kernel_end(void); /* frees; every process must have ended */
void sim_post(int64_t at_us, sim_event_fn *fn, void *subject, uint64_t token);
bool sim_step(int64_t until_us); /* the next event; false: there is none until then */
void sim_violated(const char *what);
void sim_trace(const char *format, ...) __attribute__((format(printf, 1, 2)));

static inline int64_t sim_wall_us(const struct sim_host *host) {
    return sim_kernel.now_us + host->wall_offset_us;
}
static inline int64_t sim_monotonic_us(const struct sim_host *host) {
    return sim_kernel.now_us + host->monotonic_offset_us + sim_kernel.now_us * host->fast_ppm / SIM_S;
}
/* When that clock shows `at_us`, or a moment later. */
int64_t sim_time_of(const struct sim_host *host, int64_t at_us);

/* ---- lists ---- */

static inline void sim_list_init(struct sim_list *list) {
    list->next = list->previous = list;
}
static inline bool sim_list_is_empty(const struct sim_list *list) {
    return list->next == list;
}
static inline void sim_list_remove(struct sim_list *item) {
    item->next->previous = item->previous;
    item->previous->next = item->next;
    sim_list_init(item);
}
static inline void sim_list_append(struct sim_list *list, struct sim_list *item) {
    item->previous = list->previous;
    item->next = list;
    list->previous->next = item;
    list->previous = item;
}

/* ---- hosts (sim_kernel.c) ---- */

struct sim_host *sim_host_at(uint32_t addr); /* NULL: nobody's */
/* A process begins on it; sockets and loops that are made from now on are its. */
void sim_host_boot(struct sim_host *host);

/* ---- files (sim_file.c, sim_tcp.c) ---- */

enum sim_file_kind { SIM_STREAM, SIM_LISTENER, SIM_EPOLL, SIM_NOTHING };
enum sim_stream_state { SIM_FRESH, SIM_CONNECTING, SIM_CONNECTED, SIM_BROKEN };

struct sim_address {
    uint32_t addr; /* host order; 0: any */
    uint16_t port;
};

struct sim_file {
    enum sim_file_kind kind;
    int fd;
    bool is_open; /* its process has not closed it */
    struct sim_host *host;
    int pid;                          /* of the process that has, or had, it open */
    struct sim_file *next, *previous; /* of its host, while it is open */
    /* who watches it */
    struct sim_file *epoll;
    uint32_t epoll_events;
    uint64_t epoll_data;
    struct sim_list in_epoll; /* in the list `ready` of its epoll */
    uv_handle_t *handle;
    struct sim_list in_loop; /* in the list `ready` of its loop */
    struct sim_list ready;   /* SIM_EPOLL: files that may be ready */
    /* a socket */
    int family;
    struct sim_address local, remote;
    enum sim_stream_state state;
    int error; /* to be told once */
    struct sim_file *peer;
    uint8_t *in; /* what was sent to it: arrived and unread first, then what is on its way */
    size_t in_at, in_arrived, in_len, in_capacity;
    bool in_end, out_end;  /* the other side, this side sends no more */
    bool gives_up;         /* its end is to be a reset */
    bool wants_room;       /* a send found none */
    bool has_unheard;      /* has sent since the other side vanished */
    bool is_forgotten;     /* by something between the hosts: nothing more gets through */
    bool is_refused;       /* by it as well: who sends is told that there is no such connection */
    int64_t heard_us;      /* when bytes have arrived last */
    int64_t arrival_us;    /* of the last thing sent to it */
    int64_t keep_alive_us; /* silence after which the kernel gives up */
    int64_t connect_us;
    unsigned connect_tries;
    struct sim_file *next_listener;
    struct sim_file *listener;                              /* that it waits at, to be accepted */
    struct sim_file *queue_first, *queue_last, *queue_next; /* SIM_LISTENER: to be accepted */
};

struct sim_file *sim_file_new(enum sim_file_kind kind);
struct sim_file *sim_file_of(int fd); /* NULL: not open */
void sim_file_close(struct sim_file *file);
int sim_file_process(const struct sim_file *file); /* whose it is; unique, > 0 */
/* What epoll would say: EPOLLIN and so on. */
uint32_t sim_file_state(const struct sim_file *file);
/* Tells those who watch it that its state may have changed. */
void sim_file_changed(struct sim_file *file);

int sim_tcp_bind(struct sim_file *file, struct sim_address address); /* these: 0 or errno */
int sim_tcp_listen(struct sim_file *file);
int sim_tcp_connect(struct sim_file *file, struct sim_address address);
struct sim_file *sim_tcp_accept(struct sim_file *listener);                 /* NULL: nobody waits */
ssize_t sim_tcp_send(struct sim_file *file, const void *bytes, size_t len); /* these: count or -errno */
ssize_t sim_tcp_recv(struct sim_file *file, void *bytes, size_t len);
void sim_tcp_shutdown(struct sim_file *file);
void sim_tcp_close(struct sim_file *file);
void sim_tcp_break(struct sim_file *file, int error); /* it ends with this error, at once */

struct sim_address sim_address_of(const struct sockaddr *address);
void sim_address_put(const struct sim_file *file, struct sim_address address, struct sockaddr *out, socklen_t *len);

/* ---- troubles (sim_trouble.c) ---- */

void sim_trouble_kill(struct sim_host *host);   /* the process's files are closed by its kernel */
void sim_trouble_vanish(struct sim_host *host); /* no power: nobody is told */
void sim_trouble_return(struct sim_host *host); /* power again: what still comes in is refused */
void sim_trouble_block(const struct sim_host *from, const struct sim_host *to, int64_t until_us);
void sim_trouble_reset(const struct sim_host *host, uint64_t choice); /* one of its connections */
/* Something between the two hosts forgets their connections: nothing more gets through on them, new ones work.
 * `refuses`: who sends on one is told so, by a reset. */
void sim_trouble_forget(const struct sim_host *one, const struct sim_host *other, bool refuses);

/* ---- loops (sim_loop.c) ---- */

struct sim_loop *sim_loop_new(struct sim_host *host);
uv_loop_t *sim_loop_uv(struct sim_loop *loop);
void sim_loop_feed(struct sim_file *file); /* its handle is looked at in the next turn */
void sim_loop_unready(struct sim_file *file);
size_t sim_loop_handle_count(const struct sim_loop *loop);
/* Its process is no more: closing handles are closed, whatever else would happen does not. Frees. */
void sim_loop_end(struct sim_loop *loop);

#endif
