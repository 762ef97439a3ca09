/* What the MPI server says to its agent. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "agent/mpi/mpi_server_impl.h"
#include "base/status.h"

static void on_agent(uv_poll_t *poll, int status, int events);

void mpi_server_listen(struct mpi_server *s) {
    int events = UV_READABLE | (guardian_channel_waits(&s->channel) ? UV_WRITABLE : 0);
    (void)uv_poll_start(&s->agent, events, on_agent);
}

/* Its end is the end: the guardian, or the parent-death signal, comes too. */
static void on_agent(uv_poll_t *poll, int status, int events) {
    struct mpi_server *s = poll->data;
    struct guardian_frame frame;
    const uint8_t *body;
    bool is_open = status == 0 && guardian_channel_flush(&s->channel) == MUSTER_OK;
    if (is_open && (events & UV_READABLE)) {
        is_open = guardian_channel_receive(&s->channel) == MUSTER_OK;
        while (guardian_channel_next(&s->channel, &frame, &body)) {
        }
    }
    if (!is_open) {
        uv_stop(&s->loop);
        return;
    }
    mpi_server_listen(s);
}

void mpi_server_say(struct mpi_server *s, enum mpi_frame kind, uint32_t local_rank, int number, const char *text) {
    struct mpi_said said;
    memset(&said, 0, sizeof said); /* padding travels too */
    said.local_rank = local_rank;
    said.number = number;
    (void)snprintf(said.text, sizeof said.text, "%s", text);
    if (guardian_channel_send(&s->channel, kind, &said, sizeof said, NULL, 0) != MUSTER_OK) {
        uv_stop(&s->loop);
        return;
    }
    mpi_server_listen(s);
}

void mpi_server_log(struct mpi_server *s, enum log_level level, const char *format, ...) {
    char text[MPI_WIRE_TEXT_MAX];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    mpi_server_say(s, MPI_FRAME_LOG, 0, (int)level, text);
}

void mpi_server_fail(struct mpi_server *s, const char *why, bool is_final) {
    char text[MPI_WIRE_TEXT_MAX];
    (void)snprintf(text, sizeof text, "%s", why);
    mpi_server_say(s, MPI_FRAME_FAILED, 0, is_final, text);
}
