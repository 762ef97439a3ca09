/* What a node is like, as plain data: gathered by gather.h, judged by judge.h. No pointers, so that it can be handed
 * from process to process. A part of which nothing is known is zero, and its check's bit in `answered` is not set. */
#ifndef DOCTOR_FACTS_H
#define DOCTOR_FACTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/host/interface.h"
#include "doctor/finding.h"
#include "net/endpoint.h"

#define DOCTOR_HOSTS_MAX NET_ENDPOINTS_MAX /* of --rdzv-endpoint */
#define DOCTOR_NAMES_MAX (DOCTOR_HOSTS_MAX + 1)
#define DOCTOR_NAME_ADDRESSES_MAX 8
#define DOCTOR_VARIABLES_MAX 192
#define DOCTOR_REASON_MAX 160
#define DOCTOR_PATH_MAX 256
#define DOCTOR_FABRIC_PORTS_MAX 32
#define DOCTOR_TIMEOUT_MS INT64_C(4000) /* for everything that is asked of this machine and of name servers */

enum doctor_answer { DOCTOR_UNASKED, DOCTOR_SILENT, DOCTOR_FAILED, DOCTOR_ANSWERED };

struct doctor_name {
    char host[NET_HOST_MAX];
    bool is_own;
    bool is_numeric;
    enum doctor_answer forward, reverse;
    uint32_t forward_ms;
    char reason[DOCTOR_REASON_MAX]; /* of the failure */
    char addresses[DOCTOR_NAME_ADDRESSES_MAX][NET_ADDRESS_TEXT_MAX];
    uint32_t address_count;
    uint32_t loopback_count, local_count;  /* of the addresses: 127.x and ::1; of this machine */
    char reverse_of[NET_ADDRESS_TEXT_MAX]; /* the address that was asked for: the first that is not loopback */
    char reverse_name[NET_HOST_MAX];
};

struct doctor_interface {
    char name[INTERFACE_NAME_MAX];
    char address[NET_ADDRESS_TEXT_MAX]; /* one entry an address */
    bool is_loopback, is_bridge;        /* of containers */
    bool has_carrier;
    uint32_t mtu;       /* 0: not known */
    int32_t speed_mbps; /* <= 0: not known */
};

/* How this node reaches a host of the endpoint, and which address it would tell the others. */
struct doctor_told {
    char host[NET_HOST_MAX];
    bool is_known; /* the host's address is */
    bool has_route;
    char address[NET_ADDRESS_TEXT_MAX];
};

struct doctor_interfaces {
    struct doctor_interface list[INTERFACES_MAX];
    uint32_t count;
    char default_v4[INTERFACE_NAME_MAX], default_v6[INTERFACE_NAME_MAX]; /* of the default route; "" without one */
    char own_address[NET_ADDRESS_TEXT_MAX];                              /* told when the store is on this machine */
    struct doctor_told told[DOCTOR_HOSTS_MAX];
    uint32_t told_count;
};

enum doctor_port_state {
    DOCTOR_PORT_UNKNOWN,     /* the host's name does not resolve */
    DOCTOR_PORT_FREE,        /* here, and can be bound */
    DOCTOR_PORT_FORBIDDEN,   /* here: privileges are needed, or the address cannot be bound */
    DOCTOR_PORT_SERVED,      /* somebody listens: `peer` */
    DOCTOR_PORT_REFUSED,     /* elsewhere: reachable, nobody listens */
    DOCTOR_PORT_SILENT,      /* elsewhere: no answer in time */
    DOCTOR_PORT_UNREACHABLE, /* elsewhere: the network says no */
};
enum doctor_peer { DOCTOR_PEER_OTHER, DOCTOR_PEER_STORE, DOCTOR_PEER_MUSTER_STORE, DOCTOR_PEER_COORDINATOR };

struct doctor_port {
    char host[NET_HOST_MAX];
    char address[NET_ADDRESS_TEXT_MAX]; /* with the port */
    uint16_t port;
    bool is_here;
    enum doctor_port_state state;
    enum doctor_peer peer;
    char reason[DOCTOR_REASON_MAX];
};

struct doctor_ports {
    struct doctor_port list[DOCTOR_HOSTS_MAX];
    uint32_t count;
    uint32_t ephemeral_first, ephemeral_last; /* what the kernel chooses from; 0: not known */
};

struct doctor_clock {
    bool has_state; /* adjtimex() answered */
    bool is_synchronised;
    int64_t max_error_us;
    double frequency_ppm; /* the correction that is being applied */
    int64_t realtime_us;
    int64_t stepped_us; /* by how much the wall clock jumped while the doctor looked, against the monotonic one */
    char source[32];    /* tsc, kvm-clock ... */
};

#define DOCTOR_UNLIMITED UINT64_MAX
struct doctor_limit {
    uint64_t soft, hard;
};
struct doctor_limits {
    struct doctor_limit files, processes, locked_bytes, core_bytes;
    uint64_t container_processes, container_processes_used; /* pids.max of the cgroup; DOCTOR_UNLIMITED */
};

struct doctor_memory {
    bool has_shm, shm_is_tmpfs, shm_is_read_only;
    uint64_t shm_bytes, shm_free_bytes;
    bool has_container_limit;
    uint64_t container_bytes, container_left_bytes;
    uint64_t total_bytes, available_bytes;
    int32_t overcommit;  /* 0, 1, 2; -1: not known */
    char huge_pages[16]; /* always, madvise, never; "": not known */
};

struct doctor_temporary {
    char path[DOCTOR_PATH_MAX];
    char variable[16]; /* that names it; "" */
    bool takes_files, forbids_execution;
    uint64_t free_bytes, free_files;
    char reason[DOCTOR_REASON_MAX];
};

struct doctor_kernel {
    char release[64];
    bool has_pidfd, has_memfd, has_subreaper;
    bool reads_memory;    /* process_vm_readv() of a process of our own */
    int32_t ptrace_scope; /* Yama's; -1: none */
};

struct doctor_processors {
    uint32_t online_count, allowed_count;
    double quota; /* processors' worth of time; 0: no limit */
    uint32_t numa_count;
    bool balances_numa;
};

struct doctor_library {
    bool is_found, is_loaded;
    int32_t code; /* of its initialisation; 0: fine */
    int32_t device_count;
    char reason[DOCTOR_REASON_MAX];
};
struct doctor_gpus {
    uint32_t pci_count;    /* NVIDIA's on the bus */
    uint32_t device_count; /* /dev/nvidia0 ... */
    bool has_control, has_uvm, has_smi, has_amd;
    char driver_version[32];                   /* of the kernel module; "": not loaded */
    struct doctor_library management, compute; /* libnvidia-ml, libcuda */
    char library_version[32];                  /* what libnvidia-ml says it belongs to */
};

struct doctor_fabric_port {
    char device[32];
    uint32_t port;
    char state[24]; /* "4: ACTIVE" */
    char layer[24]; /* InfiniBand, Ethernet */
    char rate[48];
};
struct doctor_fabric {
    struct doctor_fabric_port ports[DOCTOR_FABRIC_PORTS_MAX];
    uint32_t count;
    uint32_t verbs_count; /* /dev/infiniband/uverbs0 ... */
    bool has_peer_memory; /* nvidia_peermem */
};

struct doctor_variable {
    char name[64];
    char value[192]; /* a longer one is cut */
};
struct doctor_environment {
    struct doctor_variable list[DOCTOR_VARIABLES_MAX]; /* those that the checks read */
    uint32_t count;
};

/* Whom a job that calls torchrun gets: the first program of that name in PATH. */
struct doctor_torchrun {
    char path[256];  /* "": none */
    char other[256]; /* Muster's link of that name further behind, which the first one hides; "" */
    bool is_muster;  /* the first one is */
};

struct doctor_facts {
    struct doctor_torchrun torchrun;
    doctor_checks answered;
    uint32_t node_count; /* of the job; 1 without --nnodes */
    bool is_meeting;     /* --nnodes: other nodes are being checked as well, and meet at the endpoint */
    struct doctor_name names[DOCTOR_NAMES_MAX]; /* the first is this node's own */
    uint32_t name_count;
    struct doctor_interfaces interfaces;
    struct doctor_ports ports;
    struct doctor_clock clock;
    struct doctor_limits limits;
    struct doctor_memory memory;
    struct doctor_temporary temporary;
    struct doctor_kernel kernel;
    struct doctor_processors processors;
    struct doctor_gpus gpus;
    struct doctor_fabric fabric;
    struct doctor_environment environment;
};

/* The value, or NULL when it is not set. */
const char *doctor_variable(const struct doctor_environment *environment, const char *name);

#endif
