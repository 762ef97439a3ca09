/* Lists of packets; see mpi_packets.h. */
#include "comm/mpi/mpi_packets.h"

#include <stdlib.h>

#include "base/status.h"

void mpi_packets_init(struct mpi_packets *packets) {
    packets->first = NULL;
    packets->end = &packets->first;
}

void mpi_packets_add(struct mpi_packets *packets, struct mpi_packet *packet) {
    packet->next = NULL;
    *packets->end = packet;
    packets->end = &packet->next;
}

struct mpi_packet *mpi_packets_take(struct mpi_packets *packets, struct mpi_packet **at) {
    struct mpi_packet *packet = *at;
    *at = packet->next;
    if (packets->end == &packet->next) {
        packets->end = at;
    }
    return packet;
}

void mpi_packets_free(struct mpi_packets *packets) {
    while (packets->first) {
        free(mpi_packets_take(packets, &packets->first));
    }
}

struct mpi_packet *mpi_packet_create(size_t bytes) {
    struct mpi_packet *packet = malloc(sizeof *packet + bytes);
    if (!packet) {
        (void)status_fail(MUSTER_ENOMEM, "no memory for a message of %zu bytes", bytes);
        return NULL;
    }
    *packet = (struct mpi_packet){.bytes = bytes};
    return packet;
}

struct mpi_packet *mpi_packets_last(const struct mpi_packets *packets) {
    struct mpi_packet *last = packets->first;
    while (last && last->next) {
        last = last->next;
    }
    return last;
}
