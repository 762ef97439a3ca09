/* For tests: an engine and raw clients of it over real loopback sockets, all in one thread. Nobody sleeps; everybody is
 * served when the kernel says so, and who waits in vain for 20 s fails the test. */
#ifndef STORE_KV_ENGINE_TEST_SUPPORT_H
#define STORE_KV_ENGINE_TEST_SUPPORT_H

#include <netinet/in.h>
#include <stddef.h>

#include "store/server/kv_engine_impl.h"

enum { STORE_HANDSHAKE_BYTES = 5 };
extern const char store_handshake[];

struct scene {
    struct kv_engine *engine;
    struct sockaddr_in address;
    unsigned ended; /* connections, for the test to count */
    uint64_t last_ended;
    enum kv_end last_end;
    uint64_t last_returned;
};

/* Starts the engine on a port of loopback; `wanted` without addresses. */
void scene_open(struct scene *scene, const struct kv_server_options *wanted);

/* A connection on which nothing has been said. Sockets are non-blocking, closed by the caller. */
int connect_raw(const struct scene *scene);
/* One of the store's protocol, that has been served. */
int open_client(const struct scene *scene);

/* Lets the engine serve until the client's socket has `events`; until there is nothing more to do. */
void serve_until(const struct scene *scene, int fd, short events);
void serve_all(const struct scene *scene);

void send_all(const struct scene *scene, int fd, const void *bytes, size_t len);
void receive_all(const struct scene *scene, int fd, uint8_t *out, size_t len);
/* These bytes come next (at most 1 KiB); none is there; the server ends the connection without a byte (closes `fd`). */
void expect(const struct scene *scene, int fd, const void *bytes, size_t len);
void expect_silence(const struct scene *scene, int fd);
void expect_end(const struct scene *scene, int fd);

#endif
