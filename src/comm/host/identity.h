/* Who a process is to the others of its job: whether two can share memory, and how to tell them apart in messages. */
#ifndef COMM_IDENTITY_H
#define COMM_IDENTITY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/failure.h>

enum {
    IDENTITY_HOST_NAME_BYTES = 64, /* terminator included */
    IDENTITY_ADDRESSES_MAX = 4,
    IDENTITY_ADDRESS_BYTES = 16, /* IPv6, or IPv4 in its place there */
    IDENTITY_ENCODED_BYTES_MAX = 170 + IDENTITY_ADDRESSES_MAX * IDENTITY_ADDRESS_BYTES
};

/* Two processes can map each other's memory if all of this is equal: the kernel that runs them (its boot id), their
 * namespaces of pids (in which they find each other), mounts (a /proc) and users, and the user. tag: a hash of
 * MUSTER_HOST_ID, 0 without it. */
struct host_identity {
    uint8_t boot_id[16];
    uint64_t pid_namespace, mount_namespace, user_namespace;
    uint64_t tag;
    uint32_t user;
};

/* What a rank puts into the store about itself. */
struct identity {
    uint16_t protocol; /* PROTOCOL_RANKS of base/formats/protocol.h; its place in the bytes never changes */
    struct host_identity host;
    bool may_share;   /* false with MUSTER_SHM=0, or where sharing does not work: counts as a host of its own */
    uint64_t network; /* identity_network() */
    int32_t pid;
    uint64_t start_time;  /* of the process: monitor_start_time() */
    uint16_t core_count;  /* that it may run on ... */
    uint32_t core_hash;   /* ... and which: equal sets, equal hashes */
    uint32_t token;       /* random: tells this record from all others of the rank (comm/context/generation.h) */
    uint64_t choice_hash; /* of its table of algorithms (comm/schedule/choice.h): must be equal on all ranks */
    uint8_t engine_wish;  /* what it asks for (enum engine_kind of comm/engine/engine_choice.h): equal on all ranks */
    uint8_t engine_facts; /* what it knows for the choice of an engine */
    uint16_t beacon_port; /* of rank 0 while the others wait for it (comm/host/beacon.h) */
    uint8_t beacon_address_count; /* 0: there is none */
    uint8_t beacon_addresses[IDENTITY_ADDRESSES_MAX][IDENTITY_ADDRESS_BYTES];
    char host_name[IDENTITY_HOST_NAME_BYTES];
};

/* Of this process, as the kernel and the environment (MUSTER_SHM, MUSTER_HOST_ID) say. Where the kernel does not tell
 * (no /proc), or sharing does not work (no memfd_create(), another PID namespace's /proc: a warning says which), the
 * process shares with nobody. token, choice_hash and what concerns engines are left 0, and there is no beacon. Cannot
 * fail. */
void identity_of_this_process(struct identity *out);

/* Processes with the same value share a loopback interface (the boot and the network namespace); 0: not known. */
uint64_t identity_network(void);
/* Of the kernel that runs this process. False where it is not told. */
bool identity_boot(uint8_t out[16]);

/* Can these two share memory? */
bool identity_share_host(const struct identity *a, const struct identity *b);
/* An order in which processes that can share memory are beside each other: below 0, 0 or above it. 0: all that
 * identity_share_host() compares is equal. */
int identity_compare_hosts(const struct identity *a, const struct identity *b);

/* The bytes in the store; returns how many. */
size_t identity_encode(const struct identity *identity, uint8_t out[IDENTITY_ENCODED_BYTES_MAX]);
/* The number in bytes that may be of another protocol; 0 in a record from before there were numbers. */
uint32_t identity_protocol(const uint8_t *data, size_t len);
/* Of bytes with this program's number. MUSTER_EPROTOCOL: these are no identity. */
int identity_decode(const uint8_t *data, size_t len, struct identity *out);

/* A record (muster/failure.h) in which a rank is to blame: with where it runs, unless its identity is NULL. */
struct muster_failure identity_blame(uint32_t rank, const struct identity *identity);

#endif
