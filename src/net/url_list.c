/* See url_list.h. */
#include "net/url_list.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/status.h"
#include "base/str.h"
#include "net/endpoint.h"

/* "https://" is taken off *text, and is the scheme of those that follow without one. */
static int take_scheme(char **text, const char **scheme) {
    char *colon = strstr(*text, "://");
    if (!colon) {
        return MUSTER_OK;
    }
    *colon = '\0';
    *scheme = strcasecmp(*text, "http") == 0 ? "http" : strcasecmp(*text, "https") == 0 ? "https" : NULL;
    if (!*scheme) {
        return status_fail(MUSTER_EINVAL, "an endpoint is reached by http:// or https://, not by %s://", *text);
    }
    *text = colon + 3;
    return MUSTER_OK;
}

static int read_one(char *text, const char **scheme, struct net_endpoint *out) {
    bool is_given = *text != '\0';
    int rc = take_scheme(&text, scheme);
    text[strcspn(text, "/")] = '\0';
    if (rc == MUSTER_OK && is_given && *text == '\0') {
        rc = status_fail(MUSTER_EINVAL, "there is no host in it; HOST[:PORT] is expected, or http[s]://HOST[:PORT]");
    }
    rc = rc ? rc : net_endpoint_parse(text, out);
    if (rc == MUSTER_OK && out->port == 0) {
        rc = status_fail(MUSTER_EINVAL, "nobody can be reached at port 0");
    }
    return rc;
}

static int add(struct net_url_list *list, const struct net_endpoint *endpoint, const char *scheme, int port) {
    if (list->turn.count == NET_URLS_MAX) {
        return status_fail(MUSTER_EINVAL, "more than %d endpoints", NET_URLS_MAX);
    }
    bool is_v6 = strchr(endpoint->host, ':') != NULL;
    bool fits = str_format(list->urls[list->turn.count++], NET_URL_MAX, "%s://%s%s%s:%d", scheme, is_v6 ? "[" : "",
                           endpoint->host, is_v6 ? "]" : "", endpoint->port < 0 ? port : (int)endpoint->port);
    assert(fits);
    return MUSTER_OK;
}

int net_url_list_read(struct net_url_list *list, const char *text, const char *scheme, int port) {
    char *copy = strdup(text);
    int rc = copy ? MUSTER_OK : status_fail(MUSTER_ENOMEM, "no memory for a list of endpoints");
    char *rest = copy;
    *list = (struct net_url_list){.turn = {0}};
    while (rc == MUSTER_OK && rest) {
        struct net_endpoint endpoint;
        char *one = strsep(&rest, ",");
        one += strspn(one, " \t\r\n\v\f");
        if (*one == '\0' && (rest || list->turn.count > 0)) {
            rc = status_fail(MUSTER_EINVAL, "an endpoint is empty");
        }
        rc = rc ? rc : read_one(one, &scheme, &endpoint);
        rc = rc ? rc : add(list, &endpoint, scheme, port);
    }
    free(copy);
    return rc;
}
