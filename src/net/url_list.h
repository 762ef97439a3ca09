/* The endpoints of one service that is reached by HTTP, as a user gives them, and which of them is asked. Pure. */
#ifndef NET_URL_LIST_H
#define NET_URL_LIST_H

#include "net/retry.h"

enum { NET_URLS_MAX = 16, NET_URL_MAX = 320 };

struct net_url_list {
    char urls[NET_URLS_MAX][NET_URL_MAX]; /* "http://host:2379" */
    struct retry_turn turn;
};

/* "https://a:2379,b,[::1]:7": without a scheme the one before it, of the first `scheme`; without a port `port`. What
 * follows a slash is the service's own. An empty text is localhost. MUSTER_EINVAL, MUSTER_ENOMEM. */
int net_url_list_read(struct net_url_list *list, const char *text, const char *scheme, int port);

#endif
