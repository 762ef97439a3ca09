/* Messages: their status, probing and matched receives, what is canceled, what is too long; see mpi_check.h. */
#include <sched.h>
#include <string.h>

#include "base/status.h"
#include "mpi_check.h"

enum { COUNT = 17, TAG = 4711 };

static void check_status(const struct check *check, const struct mpi_status *status, int source, int tag, size_t bytes,
                         const char *what) {
    check_that(check,
               status->source == source && status->tag == tag && status->count_bytes == (int64_t)bytes &&
                   !status->is_canceled && status->error == 0,
               "%s: status source %d, tag %d, %lld bytes, error %d%s; not %d, %d, %zu", what, status->source,
               status->tag, (long long)status->count_bytes, status->error, status->is_canceled ? ", canceled" : "",
               source, tag, bytes);
}

/* Every rank sends to the next one; receives with the source and tag given. The buffer is larger than the message. */
static void check_ring(const struct check *check, enum muster_type type, bool is_any) {
    size_t bytes = COUNT * muster_type_bytes(type);
    int next = (check->rank + 1) % check->size, last = (check->rank + check->size - 1) % check->size;
    char *send = check_allocate(check, bytes), *receive = check_allocate(check, 2 * bytes),
         *want = check_allocate(check, 2 * bytes);
    mpi_handle requests[2] = {0, 0};
    struct mpi_status status = {.source = -99, .is_canceled = true, .count_bytes = -1};
    check_fill(type, send, 0, COUNT, check->rank);
    check_fill(type, want, 0, COUNT, last);
    check_works(check,
                CALL(irecv, receive, 2 * COUNT, check->mpi->types[type], is_any ? check->mpi->any_source : last,
                     is_any ? check->mpi->any_tag : TAG, check->comm, &requests[0]),
                "irecv");
    check_works(check, CALL(isend, send, COUNT, check->mpi->types[type], next, TAG, check->comm, &requests[1]),
                "isend");
    check_wait(check, &requests[0], "irecv", &status);
    check_wait(check, &requests[1], "isend", NULL);
    check_status(check, &status, last, TAG, bytes, muster_type_name(type));
    check_that(check, memcmp(receive, want, 2 * bytes) == 0, "message of %s: wrong", muster_type_name(type));
    check_free(check, send, "isend");
    check_free(check, receive, "irecv");
    check_free(check, want, "want");
}

static void check_matched(const struct check *check) {
    uint32_t number = (uint32_t)check->rank, got = 0;
    int next = (check->rank + 1) % check->size, last = (check->rank + check->size - 1) % check->size;
    int any_source = check->mpi->any_source, any_tag = check->mpi->any_tag;
    mpi_handle type = check->mpi->types[MUSTER_UINT32], message = 0, requests[2] = {0, 0};
    struct mpi_status status = {.source = -99}, received = {.source = -99};
    bool is_found = true;
    check_works(check, CALL(improbe, any_source, any_tag, check->comm, &is_found, &message, &status), "improbe");
    check_that(check, !is_found, "improbe found a message that nobody sent");
    check_works(check, CALL(barrier, check->comm), "barrier");
    check_works(check, CALL(isend, &number, 1, type, next, TAG + 1, check->comm, &requests[0]), "isend");
    while (!is_found) {
        check_works(check, CALL(improbe, any_source, any_tag, check->comm, &is_found, &message, &status), "improbe");
        sched_yield();
    }
    check_status(check, &status, last, TAG + 1, sizeof number, "improbe");
    check_works(check, CALL(imrecv, &got, 1, type, &message, &requests[1]), "imrecv");
    check_that(check, message == check->mpi->message_null, "imrecv left the message");
    check_wait(check, &requests[1], "imrecv", &received);
    check_wait(check, &requests[0], "isend", NULL);
    check_status(check, &received, last, TAG + 1, sizeof number, "imrecv");
    check_that(check, got == (uint32_t)last, "imrecv got %u", (unsigned)got);
}

/* proc_null takes and gives nothing, at once. */
static void check_nobody(const struct check *check) {
    int nobody = check->mpi->proc_null;
    mpi_handle request = 0;
    char byte = 'x';
    mpi_handle message = 0;
    bool is_found = false;
    struct mpi_status status = {.source = -99, .count_bytes = -1};
    check_works(check, CALL(isend, &byte, 1, check->mpi->byte, nobody, 0, check->comm, &request), "isend to nobody");
    check_wait(check, &request, "isend to nobody", NULL);
    check_works(check, CALL(irecv, &byte, 1, check->mpi->byte, nobody, 0, check->comm, &request), "irecv of nobody");
    check_wait(check, &request, "irecv of nobody", &status); /* source and tag are not filled in by MPICH 4.0 */
    check_that(check, status.count_bytes == 0, "irecv of nobody: %lld bytes", (long long)status.count_bytes);
    check_works(check, CALL(improbe, nobody, 0, check->comm, &is_found, &message, &status), "improbe of nobody");
    check_that(check, is_found, "improbe of nobody: no message");
    check_status(check, &status, nobody, check->mpi->any_tag, 0, "improbe of nobody");
    check_works(check, CALL(imrecv, &byte, 1, check->mpi->byte, &message, &request), "imrecv of nobody");
    check_wait(check, &request, "imrecv of nobody", NULL);
}

static void check_canceled(const struct check *check) {
    mpi_handle request = 0;
    char byte = 'x';
    struct mpi_status status = {.is_canceled = false};
    check_works(check, CALL(irecv, &byte, 1, check->mpi->byte, check->rank, TAG + 2, check->comm, &request), "irecv");
    check_works(check, CALL(cancel, &request), "cancel");
    check_wait(check, &request, "cancel", &status);
    check_that(check, status.is_canceled, "a receive that was canceled does not say so");
    check_works(check, CALL(isend, &byte, 1, check->mpi->byte, check->rank, TAG + 2, check->comm, &request), "isend");
    check_works(check, CALL(request_free, &request), "request_free");
    check_that(check, request == check->mpi->request_null, "request_free left the request");
    check_works(check, CALL(irecv, &byte, 1, check->mpi->byte, check->rank, TAG + 2, check->comm, &request), "irecv");
    check_wait(check, &request, "irecv of what was freed", &status);
    check_status(check, &status, check->rank, TAG + 2, 1, "irecv of what was freed");
}

/* A message that is longer than the buffer of its receiver. */
static void check_truncated(const struct check *check) {
    uint64_t numbers[4] = {1, 2, 3, 4}, got[4] = {0};
    int next = (check->rank + 1) % check->size, last = (check->rank + check->size - 1) % check->size;
    mpi_handle type = check->mpi->types[MUSTER_UINT64], requests[2] = {0, 0};
    char words[512] = "";
    check_works(check, CALL(irecv, got, 2, type, last, TAG + 3, check->comm, &requests[0]), "irecv");
    check_works(check, CALL(isend, numbers, 4, type, next, TAG + 3, check->comm, &requests[1]), "isend");
    int error = check_wait_failure(check, &requests[0], "a message that is too long");
    check_wait(check, &requests[1], "isend", NULL);
    check_that(check, CALL(error_class, error) == MPI_ERROR_TRUNCATED, "a message that is too long: class %d",
               (int)CALL(error_class, error));
    check_works(check, CALL(error_string, error, words, sizeof words), "error_string");
    check_that(check, strcasestr(words, "truncated") != NULL, "a message that is too long: %s", words);
    check_that(check, mpi_fail(check->mpi, error, "MPI_Irecv") == MUSTER_EINVAL, "code of a message that is too long");
    check_that(check, strncmp(muster_detail(), "MPI_Irecv: ", 11) == 0 && strcasestr(muster_detail(), "truncated"),
               "sentence of a message that is too long: %s", muster_detail());
    check_that(check, got[2] == 0 && got[3] == 0, "a message that is too long was written behind the buffer");
}

void check_messages(const struct check *check) {
    for (int type = 0; type < MUSTER_TYPE_COUNT; type++) {
        if (check_has_type(check, (enum muster_type)type)) {
            check_ring(check, (enum muster_type)type, false);
            check_ring(check, (enum muster_type)type, true);
        }
    }
    check_matched(check);
    check_nobody(check);
    check_canceled(check);
    check_truncated(check);
}
