/* The agent's asynchronous store client (store/client/kv_client.h) as a program: one call a line from stdin, one answer
 * a line on stdout. The libuv loop runs until the answer has come.
 *
 *     agent_store_peer ADDRESS PORT TIMEOUT_MS */
#include <stdlib.h>
#include <string.h>

#include "net/endpoint.h"
#include "store/client/kv_client.h"
#include "store_words.h"

#include <muster/status.h>

struct peer {
    uv_loop_t loop;
    struct kv_client *client;
    bool is_answered;
    bool has_values; /* the answer at hand is one of values, not of a number */
    bool has_number;
};

static void on_state(void *ctx, int status) {
    struct peer *peer = ctx;
    if (!peer->is_answered) {
        words_print_status(status);
        if (status == 0) {
            (void)printf("\t%d", kv_client_server_is_muster(peer->client));
        }
        peer->is_answered = true;
    }
}

static void on_reply(void *ctx, const struct kv_reply *reply) {
    struct peer *peer = ctx;
    words_print_status(reply->status);
    if (reply->status == 0 && peer->has_number) {
        (void)printf("\t%lld", (long long)reply->number);
    }
    for (size_t i = 0; reply->status == 0 && peer->has_values && i < reply->value_count; i++) {
        words_print_value(reply->values[i]);
    }
    peer->is_answered = true;
}

static int start_values(struct peer *peer, const char *name, char **words, size_t count) {
    struct kv_client *client = peer->client;
    peer->has_values = true;
    if (strcmp(name, "get") == 0) {
        int64_t timeout_ms = words_number(words[1]);
        return kv_client_get(client, words[0], timeout_ms > 0, (uint64_t)timeout_ms, on_reply, peer);
    }
    if (strcmp(name, "find") == 0) {
        return kv_client_find(client, words[0], on_reply, peer);
    }
    if (strcmp(name, "compare_set") == 0) {
        return kv_client_compare_set(client, words[0], words_value(words[1]), words_value(words[2]), on_reply, peer);
    }
    if (strcmp(name, "multi_get") == 0) {
        return kv_client_multi_get(client, (const char *const *)(words + 1), count - 1,
                                   (uint64_t)words_number(words[0]), on_reply, peer);
    }
    if (strcmp(name, "watch") == 0) {
        return kv_client_watch(client, words[0], words_value(words[1]), on_reply, peer);
    }
    (void)fprintf(stderr, "'%s' is not understood\n", name);
    exit(2);
}

static int start_multi_set(struct peer *peer, char **words, size_t count) {
    static const char *keys[WORDS_MAX];
    static struct kv_slice values[WORDS_MAX];
    for (size_t i = 0; i < count / 2; i++) {
        keys[i] = words[2 * i];
        values[i] = words_value(words[2 * i + 1]);
    }
    peer->is_answered = true;
    return kv_client_multi_set(peer->client, keys, values, count / 2, NULL, NULL);
}

static int start_call(struct peer *peer, struct words *line) {
    const char *name = line->list[0];
    char **words = line->list + 1;
    size_t count = line->count - 1;
    peer->is_answered = false;
    peer->has_values = false;
    peer->has_number = false;
    if (strcmp(name, "set") == 0) {
        peer->is_answered = true; /* the protocol has no reply */
        return kv_client_set(peer->client, words[0], words_value(words[1]), NULL, NULL);
    }
    if (strcmp(name, "multi_set") == 0) {
        return start_multi_set(peer, words, count);
    }
    if (strcmp(name, "wait") == 0) {
        return kv_client_wait(peer->client, (const char *const *)(words + 1), count - 1,
                              (uint64_t)words_number(words[0]), on_reply, peer);
    }
    peer->has_number = true;
    if (strcmp(name, "add") == 0) {
        return kv_client_add(peer->client, words[0], words_number(words[1]), on_reply, peer);
    }
    if (strcmp(name, "check") == 0) {
        return kv_client_check(peer->client, (const char *const *)words, count, on_reply, peer);
    }
    if (strcmp(name, "delete_key") == 0) {
        return kv_client_delete(peer->client, words[0], on_reply, peer);
    }
    if (strcmp(name, "add_init") == 0) {
        return kv_client_add_init(peer->client, on_reply, peer);
    }
    peer->has_number = false;
    if (strcmp(name, "get_init") == 0) {
        peer->has_values = true;
        return kv_client_get_init(peer->client, on_reply, peer);
    }
    return start_values(peer, name, words, count);
}

static void finish_call(struct peer *peer, int code) {
    if (code) {
        words_print_status(code);
    } else if (peer->is_answered) {
        words_print_status(0);
    }
    while (code == 0 && !peer->is_answered) {
        (void)uv_run(&peer->loop, UV_RUN_ONCE);
    }
    (void)uv_run(&peer->loop, UV_RUN_NOWAIT);
    (void)printf("\n");
    (void)fflush(stdout);
}

int main(int argc, char **argv) {
    static struct words words;
    static struct peer peer;
    struct net_addresses addresses;
    char *line = NULL;
    size_t capacity = 0;
    if (argc != 4 || net_resolve_numeric(argv[1], (uint16_t)words_number(argv[2]), &addresses)) {
        (void)fprintf(stderr, "usage: agent_store_peer ADDRESS PORT TIMEOUT_MS\n");
        return 2;
    }
    (void)uv_loop_init(&peer.loop);
    int code = kv_client_create(&peer.loop, (const struct sockaddr *)&addresses.list[0].sockaddr,
                                (uint64_t)words_number(argv[3]), on_state, &peer, &peer.client);
    finish_call(&peer, code);
    while (code == 0 && getline(&line, &capacity, stdin) > 0 && words_split(line, &words)) {
        finish_call(&peer, start_call(&peer, &words));
    }
    kv_client_close(peer.client);
    (void)uv_run(&peer.loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&peer.loop);
    free(line);
    return code ? 1 : 0;
}
