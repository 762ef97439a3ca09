/* HTTP requests on a libuv loop, by libcurl (curl_library.h: opened when the first client is made).
 *
 * Everything is asynchronous on the loop's thread; callbacks come from the loop, never from inside a call, and may call
 * anything here, closing the client included. Connections are kept and used again, up to one a request in flight.
 * HTTP/1.1; redirects are followed with method and body kept (https only to https, and a password goes to no other
 * host); no proxy is used, whatever the environment says; certificates of https servers are always verified. */
#ifndef NET_HTTP_H
#define NET_HTTP_H

#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct http_client;
struct http_request;

enum {
    HTTP_HEADER_VALUE_MAX = 256,           /* bytes kept of header_wanted, terminator included */
    HTTP_RESPONSE_BYTES_DEFAULT = 1 << 20, /* where a call gives no response_bytes_max */
    HTTP_CONNECT_TIMEOUT_DEFAULT_MS = 10000,
};

/* Strings are copied; NULL: not given. */
struct http_client_options {
    const char *ca_file;   /* PEM: whom servers' certificates must be signed by; the system's authorities otherwise */
    const char *cert_file; /* PEM: this client's certificate */
    const char *key_file;  /* PEM: of cert_file; NULL: it stands in the same file */
    const char *user;      /* basic authentication */
    const char *password;
    uint64_t connect_timeout_ms; /* name, connection and TLS handshake; 0: the default above */
};

struct http_call {
    const char *method;         /* "GET", "PUT", ... NULL: GET, with a body POST */
    const char *url;            /* http:// or https:// */
    const char *const *headers; /* "Name: value"; header_count of them */
    size_t header_count;
    const void *body; /* body_len bytes; NULL: none. Sent as a form unless a header says otherwise */
    size_t body_len;
    uint64_t timeout_ms; /* of the whole exchange; 0: none (streams, long polls: a lost host is found by probes) */
    size_t response_bytes_max; /* 0: the default above. With on_data: of what is held between two calls of it */
    const char *header_wanted; /* name of a response header whose value is wanted, or NULL */
};

/* How a request has ended. Borrowed until on_done returns. */
struct http_answer {
    int status;          /* 0: the server has answered, whatever `code` says. Otherwise muster_detail() has a sentence:
                          * MUSTER_ERESOLVE, _ECONNECT (refused, reset, TLS refused), _ETIMEOUT, _ELIMIT (the answer is too
                          * long),          _EPROTOCOL (that is no HTTP), _EINVAL (URL, certificate files), _ENOMEM. Unless the
                          * connection          was          never made the server may have carried the request out. */
    long code;           /* 200, 404 ... the last one's if redirected; 0 without an answer */
    const uint8_t *body; /* without on_data; never NULL, NOT terminated */
    size_t len;
    const char *local_address;          /* the numeric one that was connected from; "" without a connection */
    char header[HTTP_HEADER_VALUE_MAX]; /* the value of header_wanted; "" when there was none or it is too long */
};

struct http_callbacks {
    /* Bytes of the body as they come, of any answer (http_request_code() tells which), redirects excepted; NULL: the
     * body is collected. Borrowed until it returns. */
    void (*on_data)(void *ctx, const uint8_t *bytes, size_t len);
    /* Once, and nothing afterwards; never after http_cancel() or http_client_close(). The request is freed when it
     * returns. */
    void (*on_done)(void *ctx, const struct http_answer *answer);
};

/* MUSTER_EUNSUPPORTED (no libcurl: the sentence names the package), MUSTER_ENOMEM. */
int http_client_create(uv_loop_t *loop, const struct http_client_options *options, struct http_client **out);
/* Cancels what is in flight. Handles close during later turns of the loop. NULL accepted. */
void http_client_close(struct http_client *client);

/* Copies everything of the call. *out is valid until on_done returns or the request is cancelled. MUSTER_EINVAL,
 * MUSTER_ENOMEM; what the network does comes through on_done. */
int http_send(struct http_client *client, const struct http_call *call, const struct http_callbacks *callbacks,
              void *ctx, struct http_request **out);
/* Ends it without a callback; the request is gone. NULL accepted. */
void http_cancel(struct http_request *request);

/* The status code of an answer that is still coming; 0 before it has begun. */
long http_request_code(const struct http_request *request);

#endif
