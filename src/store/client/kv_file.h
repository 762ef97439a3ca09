/* Requests of the asynchronous client carried out on a FileStore (muster/store.h) instead of a server: for
 * --rdzv-conf store_type=file. Each call takes what a few reads and writes of a local file take; a lock that another
 * process holds is not waited for. */
#ifndef STORE_KV_FILE_H
#define STORE_KV_FILE_H

#include "store/client/kv_client_impl.h"

struct kv_file;

/* MUSTER_ETIMEOUT: somebody holds the file's lock, try again. What muster_store_open_file() says. */
int kv_file_open(const char *path, struct kv_file **out);
void kv_file_close(struct kv_file *file); /* NULL accepted */

struct kv_file_answer {
    bool waits; /* keys are missing: nothing was done, ask again */
    struct kv_reply reply;
    struct muster_store_value *values; /* behind reply.values */
    struct kv_slice *slices;
    size_t value_count;
};

/* Carries out all messages of the request, from the beginning each time. MUSTER_ETIMEOUT: the lock is held, ask again;
 * other codes are final, MUSTER_EUNSUPPORTED for what a FileStore lacks. `out` is always to be given to
 * kv_file_answer_done(). */
int kv_file_serve(struct kv_file *file, const struct kv_request *request, struct kv_file_answer *out);
void kv_file_answer_done(struct kv_file_answer *answer);

#endif
