/* Open files of simulated processes: numbers, owners, readiness. What sockets do is sim_tcp.c. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/epoll.h>

#include "sim_kernel.h"
#include "sim_memory.h"

static struct sim_file *file_at(size_t index) {
    return &sim_kernel.file_chunks[index / SIM_FILES_A_CHUNK][index % SIM_FILES_A_CHUNK];
}

struct sim_file *sim_file_new(enum sim_file_kind kind) {
    struct sim_kernel *k = &sim_kernel;
    if (k->file_count == k->chunk_count * SIM_FILES_A_CHUNK) {
        k->file_chunks = sim_memory_resize(k->file_chunks, (k->chunk_count + 1) * sizeof *k->file_chunks);
        k->file_chunks[k->chunk_count++] = sim_memory_take(SIM_FILES_A_CHUNK * sizeof(struct sim_file));
    }
    size_t index = k->file_count++;
    struct sim_file *file = file_at(index);
    *file = (struct sim_file){.kind = kind,
                              .fd = SIM_FD_FIRST + (int)index,
                              .is_open = true,
                              .host = k->current,
                              .pid = k->current->pid,
                              .next = k->current->files,
                              .keep_alive_us = INT64_MAX};
    if (file->next) {
        file->next->previous = file;
    }
    k->current->files = file;
    sim_list_init(&file->in_epoll);
    sim_list_init(&file->in_loop);
    sim_list_init(&file->ready);
    return file;
}

struct sim_file *sim_file_of(int fd) {
    size_t index = (size_t)fd - SIM_FD_FIRST;
    if (fd < SIM_FD_FIRST || index >= sim_kernel.file_count) {
        return NULL;
    }
    struct sim_file *file = file_at(index);
    if (!file->is_open && sim_kernel.buries) {
        return NULL;
    }
    if (!file->is_open) {
        sim_violated("a descriptor is used after it was closed");
        return NULL;
    }
    if (file->host != sim_kernel.current) {
        sim_violated("a descriptor of another host is used");
        return NULL;
    }
    return file;
}

int sim_file_process(const struct sim_file *file) {
    return (int)(file->host->index << 16) | file->pid;
}

void sim_file_close(struct sim_file *file) {
    file->is_open = false;
    if (file->kind == SIM_STREAM && file->peer && file->heard_us > 0) {
        file->host->left.port = file->remote.port;
        file->host->left.process = sim_file_process(file->peer);
    }
    *(file->previous ? &file->previous->next : &file->host->files) = file->next;
    if (file->next) {
        file->next->previous = file->previous;
    }
    sim_list_remove(&file->in_epoll);
    file->epoll = NULL;
    sim_list_remove(&file->in_loop);
    file->handle = NULL;
    if (file->kind == SIM_STREAM || file->kind == SIM_LISTENER) {
        sim_tcp_close(file);
    }
}

/* ---- readiness ---- */

static uint32_t stream_state(const struct sim_file *file) {
    uint32_t state = 0;
    if (file->state == SIM_FRESH) {
        return EPOLLOUT | EPOLLHUP;
    }
    if (file->state == SIM_CONNECTING) {
        return 0;
    }
    if (file->in_arrived > 0 || file->in_end) {
        state |= EPOLLIN;
    }
    if (file->state == SIM_BROKEN) {
        return EPOLLIN | EPOLLOUT | EPOLLHUP | (file->error ? (uint32_t)EPOLLERR : 0);
    }
    bool has_room = !file->peer || file->peer->in_len < sim_kernel.network.window_bytes;
    if (has_room || file->out_end) {
        state |= EPOLLOUT;
    }
    return file->in_end && file->out_end ? state | EPOLLHUP : state;
}

uint32_t sim_file_state(const struct sim_file *file) {
    switch (file->kind) {
    case SIM_STREAM:
        return stream_state(file);
    case SIM_LISTENER:
        return file->queue_first ? EPOLLIN : 0;
    case SIM_EPOLL:
        return sim_list_is_empty(&file->ready) ? 0 : EPOLLIN;
    case SIM_NOTHING:
        break;
    }
    return 0;
}

void sim_file_changed(struct sim_file *file) {
    if (!file->is_open) {
        return;
    }
    if (file->epoll && sim_list_is_empty(&file->in_epoll) &&
        (sim_file_state(file) & (file->epoll_events | EPOLLERR | EPOLLHUP))) {
        sim_list_append(&file->epoll->ready, &file->in_epoll);
        sim_file_changed(file->epoll);
    }
    if (file->handle) {
        sim_loop_feed(file);
    }
}

/* ---- addresses ---- */

struct sim_address sim_address_of(const struct sockaddr *address) {
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    if (address->sa_family == AF_INET) {
        memcpy(&v4, address, sizeof v4);
        return (struct sim_address){.addr = ntohl(v4.sin_addr.s_addr), .port = ntohs(v4.sin_port)};
    }
    memcpy(&v6, address, sizeof v6);
    struct sim_address out = {.port = ntohs(v6.sin6_port)};
    if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
        uint32_t inner;
        memcpy(&inner, &v6.sin6_addr.s6_addr[12], sizeof inner);
        out.addr = ntohl(inner);
    } else if (IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr)) {
        out.addr = INADDR_LOOPBACK;
    } else if (!IN6_IS_ADDR_UNSPECIFIED(&v6.sin6_addr)) {
        out.addr = UINT32_MAX; /* nobody's */
    }
    return out;
}

/* As the kernel tells it on a socket of that family: IPv4 inside IPv6 is mapped. */
void sim_address_put(const struct sim_file *file, struct sim_address address, struct sockaddr *out, socklen_t *len) {
    struct sockaddr_in v4 = {
        .sin_family = AF_INET, .sin_port = htons(address.port), .sin_addr.s_addr = htonl(address.addr)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(address.port)};
    const void *from = &v4;
    socklen_t size = sizeof v4;
    if (file->family == AF_INET6) {
        if (address.addr != INADDR_ANY) {
            v6.sin6_addr.s6_addr[10] = v6.sin6_addr.s6_addr[11] = 0xff;
            memcpy(&v6.sin6_addr.s6_addr[12], &v4.sin_addr.s_addr, sizeof v4.sin_addr.s_addr);
        }
        from = &v6;
        size = sizeof v6;
    }
    memcpy(out, from, size < *len ? size : *len);
    *len = size;
}
