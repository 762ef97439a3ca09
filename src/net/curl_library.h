/* libcurl, opened at run time: a table of its functions under their own names, with the types that its headers give
 * them. Nothing of it is linked: a program that sends no HTTP does not pay for it. */
#ifndef NET_CURL_LIBRARY_H
#define NET_CURL_LIBRARY_H

#define CURL_DISABLE_TYPECHECK   /* macros of the functions' names */
#define CURL_DISABLE_DEPRECATION /* what has a successor that an older library lacks */
#include <curl/curl.h>

#define CURL_LIBRARY_TABLE(X)                                                                                          \
    X(curl_easy_cleanup)                                                                                               \
    X(curl_easy_getinfo)                                                                                               \
    X(curl_easy_init)                                                                                                  \
    X(curl_easy_pause)                                                                                                 \
    X(curl_easy_setopt)                                                                                                \
    X(curl_easy_strerror)                                                                                              \
    X(curl_global_init)                                                                                                \
    X(curl_multi_add_handle)                                                                                           \
    X(curl_multi_assign)                                                                                               \
    X(curl_multi_cleanup)                                                                                              \
    X(curl_multi_info_read)                                                                                            \
    X(curl_multi_init)                                                                                                 \
    X(curl_multi_remove_handle)                                                                                        \
    X(curl_multi_setopt)                                                                                               \
    X(curl_multi_socket_action)                                                                                        \
    X(curl_multi_strerror)                                                                                             \
    X(curl_slist_append)                                                                                               \
    X(curl_slist_free_all)

struct curl_library {
#define CURL_LIBRARY_MEMBER(name) __typeof__(&(name)) name; /* NOLINT(bugprone-macro-parentheses) */
    CURL_LIBRARY_TABLE(CURL_LIBRARY_MEMBER)
#undef CURL_LIBRARY_MEMBER
};

/* Opened by the first call and kept. NULL with MUSTER_EUNSUPPORTED and a sentence that names the package. Any thread.
 */
const struct curl_library *curl_library(void);

#endif
