/* Facts that are made up, and what is found in them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "doctor/judge.h"

static const char *const known_names[] = {"PET_NNODES", "PET_RDZV_ENDPOINT"};
static const struct doctor_known_variables known = {known_names, 2};

#define GIB (UINT64_C(1) << 30)

/* A node without fault. */
static struct doctor_facts *sound(void) {
    struct doctor_facts *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->answered = DOCTOR_CHECKS_ALL;
    f->node_count = 1;
    f->name_count = 1;
    f->names[0] = (struct doctor_name){.host = "node7",
                                       .is_own = true,
                                       .forward = DOCTOR_ANSWERED,
                                       .reverse = DOCTOR_ANSWERED,
                                       .addresses = {"10.0.0.7"},
                                       .address_count = 1,
                                       .local_count = 1,
                                       .reverse_of = "10.0.0.7",
                                       .reverse_name = "node7.cluster"};
    f->interfaces.list[0] =
        (struct doctor_interface){.name = "lo", .address = "127.0.0.1", .is_loopback = true, .has_carrier = true};
    f->interfaces.list[1] = (struct doctor_interface){
        .name = "eth0", .address = "10.0.0.7", .has_carrier = true, .mtu = 1500, .speed_mbps = 100000};
    f->interfaces.count = 2;
    (void)str_copy(f->interfaces.default_v4, sizeof f->interfaces.default_v4, "eth0");
    (void)str_copy(f->interfaces.own_address, sizeof f->interfaces.own_address, "10.0.0.7");
    f->ports.ephemeral_first = 32768;
    f->ports.ephemeral_last = 60999;
    f->clock = (struct doctor_clock){
        .has_state = true, .is_synchronised = true, .realtime_us = INT64_C(1795254431473999), .source = "tsc"};
    struct doctor_limit none = {DOCTOR_UNLIMITED, DOCTOR_UNLIMITED};
    f->limits = (struct doctor_limits){
        .files = {65536, 1048576}, .processes = none, .locked_bytes = none, .container_processes = DOCTOR_UNLIMITED};
    f->memory = (struct doctor_memory){.has_shm = true,
                                       .shm_is_tmpfs = true,
                                       .shm_bytes = 32 * GIB,
                                       .shm_free_bytes = 32 * GIB,
                                       .total_bytes = 64 * GIB,
                                       .available_bytes = 60 * GIB,
                                       .huge_pages = "madvise"};
    f->temporary =
        (struct doctor_temporary){.path = "/tmp", .takes_files = true, .free_bytes = 50 * GIB, .free_files = 1000000};
    f->kernel = (struct doctor_kernel){.release = "6.1.0",
                                       .has_pidfd = true,
                                       .has_memfd = true,
                                       .has_subreaper = true,
                                       .reads_memory = true,
                                       .ptrace_scope = -1};
    f->processors = (struct doctor_processors){.online_count = 16, .allowed_count = 16, .numa_count = 1};
    return f;
}

static void set(struct doctor_facts *f, const char *name, const char *value) {
    struct doctor_variable *variable = &f->environment.list[f->environment.count++];
    assert_true(str_copy(variable->name, sizeof variable->name, name));
    assert_true(str_copy(variable->value, sizeof variable->value, value));
}

/* Judges, frees the facts, and expects `level` as the worst of `check`, with a finding of that level that holds `what`
 * and says what to do (an ok one does not). */
static void expect(struct doctor_facts *f, enum doctor_check check, enum doctor_level level, const char *what) {
    struct doctor_findings *out = calloc(1, sizeof *out);
    assert_non_null(out);
    doctor_judge(f, DOCTOR_CHECK_BIT(check), &known, out);
    assert_true(out->count > 0);
    const struct doctor_finding *found = NULL;
    for (size_t i = 0; i < out->count; i++) {
        assert_int_equal(out->list[i].check, check);
        if (out->list[i].level >= DOCTOR_WARNING && out->list[i].advice[0] == '\0') {
            fail_msg("nothing to do: %s", out->list[i].what);
        }
        if (out->list[i].level == level && strstr(out->list[i].what, what)) {
            found = &out->list[i];
        }
    }
    if (!found || doctor_worst(out, check) != level) {
        fail_msg("expected %s '%s', not %s '%s'", doctor_level_names[level], what,
                 doctor_level_names[doctor_worst(out, check)], out->list[0].what);
    }
    if (level == DOCTOR_OK) {
        assert_int_equal(out->count, 1);
        assert_string_equal(found->advice, "");
    }
    free(out);
    free(f);
}

static void a_sound_node_is_ok(void **state) {
    (void)state;
    static const char *const texts[] = {"node7 is 10.0.0.7",
                                        "others are told 10.0.0.7 (eth0, MTU 1500, 100 Gbit/s)",
                                        "the kernel gives 32768 to 60999 to connections; none was tried",
                                        "synchronised, read from tsc",
                                        "65536 open files",
                                        "60 GiB available, /dev/shm 32 GiB",
                                        "/tmp, 50 GiB free",
                                        "Linux 6.1.0",
                                        "16",
                                        "none found",
                                        "none found",
                                        "none set",
                                        "nothing that a launcher would misread"};
    for (unsigned i = 0; i < sizeof texts / sizeof *texts; i++) {
        expect(sound(), (enum doctor_check)i, DOCTOR_OK, texts[i]);
    }
}

static void what_does_not_answer_is_said(void **state) {
    (void)state;
    struct doctor_facts *f = sound();
    f->answered &= ~DOCTOR_CHECK_BIT(DOCTOR_GPUS);
    expect(f, DOCTOR_GPUS, DOCTOR_WARNING, "no answer");
}

static void names(void **state) {
    (void)state;
    struct doctor_facts *f = sound();
    f->names[0].forward = DOCTOR_SILENT;
    expect(f, DOCTOR_NAMES, DOCTOR_WARNING, "has not ended");
    f = sound();
    f->names[0].loopback_count = 1;
    (void)str_copy(f->names[0].addresses[0], NET_ADDRESS_TEXT_MAX, "127.0.1.1");
    expect(f, DOCTOR_NAMES, DOCTOR_WARNING, "127.0.1.1, which is loopback");
    f = sound();
    f->names[0].local_count = 0;
    expect(f, DOCTOR_NAMES, DOCTOR_WARNING, "not an address of this machine");
    f = sound();
    f->names[0].reverse = DOCTOR_SILENT;
    expect(f, DOCTOR_NAMES, DOCTOR_WARNING, "has not been found");
    f = sound();
    (void)str_copy(f->names[0].reverse_name, NET_HOST_MAX, "other.cluster");
    expect(f, DOCTOR_NAMES, DOCTOR_NOTE, "other.cluster");
    f = sound();
    f->names[0].forward_ms = 2500;
    expect(f, DOCTOR_NAMES, DOCTOR_NOTE, "took 2.5 s");
}

static void names_of_the_endpoint(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct doctor_facts *f = sound();
        f->node_count = 2;
        f->name_count = 2;
        f->names[1] = f->names[0];
        f->names[1].is_own = false;
        (void)str_copy(f->names[1].host, NET_HOST_MAX, "node0");
        if (i == 0) {
            f->names[1].forward = DOCTOR_FAILED;
            (void)str_copy(f->names[1].reason, DOCTOR_REASON_MAX, "Name or service not known");
            expect(f, DOCTOR_NAMES, DOCTOR_ERROR, "Name or service not known");
        } else if (i == 1) {
            f->names[1].loopback_count = 1;
            expect(f, DOCTOR_NAMES, DOCTOR_WARNING, "which leads each host to itself");
        } else {
            f->names[1].reverse = DOCTOR_UNASKED;
            f->names[0] = f->names[1];
            f->name_count = 1;
            expect(f, DOCTOR_NAMES, DOCTOR_OK, "node0 is 10.0.0.7");
        }
    }
}

static struct doctor_facts *two_nodes(void) {
    struct doctor_facts *f = sound();
    f->node_count = 2;
    return f;
}

static void interfaces(void **state) {
    (void)state;
    struct doctor_facts *f = two_nodes();
    set(f, "GLOO_SOCKET_IFNAME", "eth1");
    expect(f, DOCTOR_INTERFACES, DOCTOR_ERROR, "GLOO_SOCKET_IFNAME=eth1: there is no interface eth1");
    f = two_nodes();
    set(f, "GLOO_SOCKET_IFNAME", "lo");
    expect(f, DOCTOR_INTERFACES, DOCTOR_ERROR, "is loopback");
    f = two_nodes();
    set(f, "NCCL_SOCKET_IFNAME", "=eth");
    expect(f, DOCTOR_INTERFACES, DOCTOR_ERROR, "no interface here is meant");
    f = two_nodes();
    set(f, "NCCL_SOCKET_IFNAME", "^eth");
    expect(f, DOCTOR_INTERFACES, DOCTOR_ERROR, "leaves loopback alone");
    f = two_nodes();
    set(f, "NCCL_SOCKET_IFNAME", "eth");
    expect(f, DOCTOR_INTERFACES, DOCTOR_OK, "others are told 10.0.0.7");
    f = two_nodes();
    (void)str_copy(f->interfaces.own_address, NET_ADDRESS_TEXT_MAX, "127.0.0.1");
    expect(f, DOCTOR_INTERFACES, DOCTOR_ERROR, "would be told 127.0.0.1");
    f = two_nodes();
    f->interfaces.list[0].is_loopback = false;
    expect(f, DOCTOR_INTERFACES, DOCTOR_ERROR, "loopback is down");
    f = two_nodes();
    f->interfaces.list[1].is_bridge = true;
    expect(f, DOCTOR_INTERFACES, DOCTOR_WARNING, "belongs to containers");
    f = two_nodes();
    f->interfaces.list[1].has_carrier = false;
    expect(f, DOCTOR_INTERFACES, DOCTOR_WARNING, "has no link");
    f = two_nodes();
    f->interfaces.list[1].speed_mbps = 100;
    expect(f, DOCTOR_INTERFACES, DOCTOR_WARNING, "0.1 Gbit/s");
    f = two_nodes();
    f->interfaces.told_count = 1;
    f->interfaces.told[0] = (struct doctor_told){.host = "node0", .is_known = true};
    expect(f, DOCTOR_INTERFACES, DOCTOR_ERROR, "no route to node0");
    f = two_nodes();
    f->interfaces.default_v4[0] = '\0';
    expect(f, DOCTOR_INTERFACES, DOCTOR_NOTE, "no default route");
}

static void several_interfaces(void **state) {
    (void)state;
    for (int chosen = 0; chosen < 2; chosen++) {
        struct doctor_facts *f = two_nodes();
        f->interfaces.list[f->interfaces.count++] = (struct doctor_interface){
            .name = "ib0", .address = "10.1.0.7", .has_carrier = true, .mtu = chosen ? 1500 : 2044};
        if (chosen) {
            set(f, "NCCL_SOCKET_IFNAME", "ib");
            expect(f, DOCTOR_INTERFACES, DOCTOR_OK, "others are told");
        } else {
            expect(f, DOCTOR_INTERFACES, DOCTOR_NOTE, "different MTUs: eth0 1500, ib0 2044");
        }
    }
    struct doctor_facts *f = two_nodes();
    f->interfaces.list[1].mtu = 576;
    expect(f, DOCTOR_INTERFACES, DOCTOR_WARNING, "below 1280");
}

static void ports(void **state) {
    (void)state;
    static const struct {
        enum doctor_port_state state;
        enum doctor_peer peer;
        enum doctor_level level;
        const char *what;
    } cases[] = {
        {DOCTOR_PORT_FREE, DOCTOR_PEER_OTHER, DOCTOR_OK, "is free here"},
        {DOCTOR_PORT_REFUSED, DOCTOR_PEER_OTHER, DOCTOR_OK, "nobody serves it yet"},
        {DOCTOR_PORT_FORBIDDEN, DOCTOR_PEER_OTHER, DOCTOR_ERROR, "cannot be served here"},
        {DOCTOR_PORT_SILENT, DOCTOR_PEER_OTHER, DOCTOR_ERROR, "does not answer"},
        {DOCTOR_PORT_UNREACHABLE, DOCTOR_PEER_OTHER, DOCTOR_ERROR, "cannot be reached"},
        {DOCTOR_PORT_SERVED, DOCTOR_PEER_OTHER, DOCTOR_ERROR, "no store"},
        {DOCTOR_PORT_SERVED, DOCTOR_PEER_STORE, DOCTOR_NOTE, "PyTorch's TCPStore"},
        {DOCTOR_PORT_SERVED, DOCTOR_PEER_MUSTER_STORE, DOCTOR_NOTE, "Muster's TCPStore"},
        {DOCTOR_PORT_SERVED, DOCTOR_PEER_COORDINATOR, DOCTOR_WARNING, "--rdzv-backend=muster"},
        {DOCTOR_PORT_UNKNOWN, DOCTOR_PEER_OTHER, DOCTOR_NOTE, "was not tried"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct doctor_facts *f = sound();
        f->ports.count = 1;
        f->ports.list[0] = (struct doctor_port){.host = "node0",
                                                .address = "10.0.0.1:29400",
                                                .port = 29400,
                                                .state = cases[i].state,
                                                .peer = cases[i].peer};
        expect(f, DOCTOR_PORTS, cases[i].level, cases[i].what);
    }
    struct doctor_facts *f = sound();
    f->ports.count = 1;
    f->ports.list[0] = (struct doctor_port){.port = 40000, .state = DOCTOR_PORT_FREE, .is_here = true};
    expect(f, DOCTOR_PORTS, DOCTOR_NOTE, "gives to connections");
    f = sound();
    f->ports.ephemeral_last = 32868;
    expect(f, DOCTOR_PORTS, DOCTOR_WARNING, "only 101 ports");
}

static void clocks(void **state) {
    (void)state;
    struct doctor_facts *f = sound();
    f->clock.is_synchronised = false;
    expect(f, DOCTOR_CLOCK, DOCTOR_WARNING, "not synchronised");
    f = sound();
    f->clock.realtime_us = 1;
    expect(f, DOCTOR_CLOCK, DOCTOR_ERROR, "before 2025");
    f = sound();
    f->clock.stepped_us = -3000000;
    expect(f, DOCTOR_CLOCK, DOCTOR_WARNING, "set, by -3.000 s");
    f = sound();
    f->clock.max_error_us = 16000000;
    expect(f, DOCTOR_CLOCK, DOCTOR_NOTE, "wrong by 16.0 s");
    f = sound();
    f->clock.frequency_ppm = -500;
    expect(f, DOCTOR_CLOCK, DOCTOR_WARNING, "-500 millionths");
    f = sound();
    (void)str_copy(f->clock.source, sizeof f->clock.source, "hpet");
    expect(f, DOCTOR_CLOCK, DOCTOR_NOTE, "hpet");
}

static void limits(void **state) {
    (void)state;
    struct doctor_facts *f = sound();
    f->limits.files = (struct doctor_limit){1024, 4096};
    f->node_count = 10000;
    expect(f, DOCTOR_LIMITS, DOCTOR_WARNING, "at most 4096 open files");
    f = sound();
    f->limits.files = (struct doctor_limit){1024, 1048576};
    expect(f, DOCTOR_LIMITS, DOCTOR_NOTE, "workers start with 1024 open files");
    f = sound();
    f->limits.processes.soft = 1024;
    expect(f, DOCTOR_LIMITS, DOCTOR_WARNING, "at most 1024 processes");
    f = sound();
    f->limits.container_processes = 100;
    f->limits.container_processes_used = 40;
    expect(f, DOCTOR_LIMITS, DOCTOR_WARNING, "60 more processes");
    f = sound();
    f->limits.locked_bytes.soft = 65536;
    expect(f, DOCTOR_LIMITS, DOCTOR_OK, "open files"); /* nothing locks memory here */
    f = sound();
    f->limits.locked_bytes.soft = 65536;
    f->fabric.count = 1;
    expect(f, DOCTOR_LIMITS, DOCTOR_ERROR, "only 64 KiB may be locked");
}

static void memory(void **state) {
    (void)state;
    struct doctor_facts *f = sound();
    f->memory.shm_bytes = f->memory.shm_free_bytes = UINT64_C(64) << 20;
    expect(f, DOCTOR_MEMORY, DOCTOR_WARNING, "/dev/shm has 64 MiB");
    f = sound();
    f->memory.shm_free_bytes = GIB;
    expect(f, DOCTOR_MEMORY, DOCTOR_WARNING, "/dev/shm is full: 1.0 GiB of 32 GiB");
    f = sound();
    f->memory.has_shm = false;
    expect(f, DOCTOR_MEMORY, DOCTOR_ERROR, "/dev/shm is missing");
    f = sound();
    f->memory.shm_is_tmpfs = false;
    expect(f, DOCTOR_MEMORY, DOCTOR_WARNING, "on a disk");
    f = sound();
    f->memory.has_container_limit = true;
    f->memory.container_bytes = 8 * GIB;
    f->memory.container_left_bytes = GIB / 2;
    expect(f, DOCTOR_MEMORY, DOCTOR_WARNING, "512 MiB left of 8.0 GiB");
    f = sound();
    f->memory.available_bytes = GIB;
    expect(f, DOCTOR_MEMORY, DOCTOR_WARNING, "1.0 GiB of 64 GiB");
    f = sound();
    f->memory.total_bytes = f->memory.available_bytes = 0; /* no /proc */
    expect(f, DOCTOR_MEMORY, DOCTOR_NOTE, "how much memory there is cannot be read");
    f = sound();
    f->memory.overcommit = 2;
    expect(f, DOCTOR_MEMORY, DOCTOR_WARNING, "overcommit");
    f = sound();
    (void)str_copy(f->memory.huge_pages, sizeof f->memory.huge_pages, "never");
    expect(f, DOCTOR_MEMORY, DOCTOR_NOTE, "huge pages are off");
}

static void temporary(void **state) {
    (void)state;
    struct doctor_facts *f = sound();
    f->temporary.takes_files = false;
    (void)str_copy(f->temporary.reason, DOCTOR_REASON_MAX, "Read-only file system");
    expect(f, DOCTOR_TEMPORARY, DOCTOR_ERROR, "/tmp: Read-only file system");
    f = sound();
    f->temporary.free_bytes = 4096;
    expect(f, DOCTOR_TEMPORARY, DOCTOR_WARNING, "4.0 KiB left");
    f = sound();
    f->temporary.forbids_execution = true;
    expect(f, DOCTOR_TEMPORARY, DOCTOR_NOTE, "noexec");
}

static void kernels(void **state) {
    (void)state;
    struct doctor_facts *f = sound();
    f->kernel.has_subreaper = false;
    expect(f, DOCTOR_KERNEL, DOCTOR_ERROR, "orphans");
    f = sound();
    f->kernel.has_memfd = false;
    expect(f, DOCTOR_KERNEL, DOCTOR_WARNING, "memfd_create");
    f = sound();
    f->kernel.has_pidfd = false;
    expect(f, DOCTOR_KERNEL, DOCTOR_NOTE, "pidfd_open");
    f = sound();
    f->kernel.ptrace_scope = 2;
    expect(f, DOCTOR_KERNEL, DOCTOR_NOTE, "ptrace_scope is 2");
    f = sound();
    f->kernel.reads_memory = false;
    expect(f, DOCTOR_KERNEL, DOCTOR_NOTE, "cannot read each other's memory");
}

static void processors(void **state) {
    (void)state;
    struct doctor_facts *f = sound();
    f->processors.quota = 1.5;
    expect(f, DOCTOR_PROCESSORS, DOCTOR_WARNING, "16 processors, but time for 1.5");
    f = sound();
    f->processors.allowed_count = 4;
    expect(f, DOCTOR_PROCESSORS, DOCTOR_NOTE, "4 of the 16");
    f = sound();
    f->processors.numa_count = 2;
    f->processors.balances_numa = true;
    expect(f, DOCTOR_PROCESSORS, DOCTOR_NOTE, "2 NUMA nodes");
    f = sound();
    set(f, "OMP_NUM_THREADS", "many");
    expect(f, DOCTOR_PROCESSORS, DOCTOR_WARNING, "OMP_NUM_THREADS=many");
    f = sound();
    set(f, "OMP_NUM_THREADS", "32");
    expect(f, DOCTOR_PROCESSORS, DOCTOR_WARNING, "16 processors may be used");
    f = sound();
    set(f, "OMP_NUM_THREADS", "4,2");
    expect(f, DOCTOR_PROCESSORS, DOCTOR_OK, "16");
}

static struct doctor_facts *with_gpus(void) {
    struct doctor_facts *f = sound();
    f->gpus = (struct doctor_gpus){.pci_count = 8,
                                   .device_count = 8,
                                   .has_control = true,
                                   .has_uvm = true,
                                   .has_smi = true,
                                   .driver_version = "535.104.05",
                                   .library_version = "535.104.05",
                                   .management = {.is_found = true, .is_loaded = true, .device_count = 8},
                                   .compute = {.is_found = true, .is_loaded = true, .device_count = 8}};
    return f;
}

static void gpus(void **state) {
    (void)state;
    expect(with_gpus(), DOCTOR_GPUS, DOCTOR_OK, "8 of NVIDIA, driver 535.104.05");
    struct doctor_facts *f = with_gpus();
    f->gpus.driver_version[0] = '\0';
    f->gpus.device_count = 0;
    expect(f, DOCTOR_GPUS, DOCTOR_ERROR, "no driver is loaded");
    f = with_gpus();
    f->gpus.device_count = 0;
    expect(f, DOCTOR_GPUS, DOCTOR_WARNING, "/dev/nvidia* are missing");
    f = with_gpus();
    f->gpus.management.code = 18;
    (void)str_copy(f->gpus.management.reason, DOCTOR_REASON_MAX, "Driver/library version mismatch");
    expect(f, DOCTOR_GPUS, DOCTOR_ERROR, "version mismatch");
    f = with_gpus();
    f->gpus.compute.code = 802;
    expect(f, DOCTOR_GPUS, DOCTOR_ERROR, "error 802");
    f = with_gpus();
    f->gpus.compute.is_loaded = false;
    expect(f, DOCTOR_GPUS, DOCTOR_ERROR, "libcuda.so.1 cannot be loaded");
    f = with_gpus();
    (void)str_copy(f->gpus.library_version, sizeof f->gpus.library_version, "550.1");
    expect(f, DOCTOR_GPUS, DOCTOR_ERROR, "its libraries are 550.1");
    f = with_gpus();
    f->gpus.has_uvm = false;
    expect(f, DOCTOR_GPUS, DOCTOR_WARNING, "nvidia-uvm");
    f = with_gpus();
    set(f, "CUDA_VISIBLE_DEVICES", "0");
    expect(f, DOCTOR_GPUS, DOCTOR_NOTE, "CUDA_VISIBLE_DEVICES=0");
}

static void infiniband(void **state) {
    (void)state;
    static const struct doctor_fabric_port active = {
        .device = "mlx5_0", .port = 1, .state = "4: ACTIVE", .layer = "InfiniBand", .rate = "200 Gb/sec (4X HDR)"};
    struct doctor_facts *f = sound();
    f->fabric = (struct doctor_fabric){.ports = {active}, .count = 1, .verbs_count = 1};
    expect(f, DOCTOR_INFINIBAND, DOCTOR_OK, "1 port active, the first 200 Gb/sec (4X HDR) (InfiniBand)");
    f = sound();
    f->fabric = (struct doctor_fabric){.ports = {active}, .count = 1};
    expect(f, DOCTOR_INFINIBAND, DOCTOR_ERROR, "uverbs");
    f = sound();
    f->fabric = (struct doctor_fabric){.ports = {active, active}, .count = 2, .verbs_count = 2};
    (void)str_copy(f->fabric.ports[1].state, sizeof f->fabric.ports[1].state, "1: DOWN");
    expect(f, DOCTOR_INFINIBAND, DOCTOR_WARNING, "is not active: 1: DOWN");
    f = with_gpus();
    f->fabric = (struct doctor_fabric){.ports = {active}, .count = 1, .verbs_count = 1};
    expect(f, DOCTOR_INFINIBAND, DOCTOR_NOTE, "nvidia_peermem");
}

static void nccl_values(void **state) {
    (void)state;
    static const struct {
        const char *name, *value;
        enum doctor_level level;
        const char *what;
    } cases[] = {
        {"NCCL_IB_DISABLE", "1", DOCTOR_OK, "1 set, none of them odd"},
        {"NCCL_IB_DISABLE", "yes", DOCTOR_WARNING, "NCCL_IB_DISABLE=yes has no meaning"},
        {"NCCL_IB_TIMEOUT", "22", DOCTOR_OK, "1 set"},
        {"NCCL_IB_TIMEOUT", "99", DOCTOR_WARNING, "NCCL_IB_TIMEOUT=99"},
        {"NCCL_BUFFSIZE", "4M", DOCTOR_WARNING, "NCCL_BUFFSIZE=4M"},
        {"NCCL_DEBUG", "warn", DOCTOR_OK, "1 set"},
        {"NCCL_DEBUG", "INFO", DOCTOR_NOTE, "NCCL_DEBUG=INFO"},
        {"NCCL_DEBUG", "LOUD", DOCTOR_WARNING, "NCCL_DEBUG=LOUD"},
        {"NCCL_DEBUG_SUBSYS", "^INIT,NET", DOCTOR_OK, "1 set"},
        {"NCCL_DEBUG_SUBSYS", "INIT,NETS", DOCTOR_WARNING, "NCCL_DEBUG_SUBSYS"},
        {"NCCL_SOCKET_IFNAMES", "eth0", DOCTOR_WARNING, "NCCL_SOCKET_IFNAMES is no variable"},
        {"NCCL_FROM_SOME_PLUGIN", "1", DOCTOR_NOTE, "NCCL_FROM_SOME_PLUGIN"},
        {"NCCL_P2P_DISABLE", "1", DOCTOR_NOTE, "NCCL_P2P_DISABLE=1"},
        {"NCCL_ALGO", "", DOCTOR_NOTE, "NCCL_ALGO is empty"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct doctor_facts *f = sound();
        set(f, cases[i].name, cases[i].value);
        expect(f, DOCTOR_NCCL, cases[i].level, cases[i].what);
    }
}

static void nccl_contradictions(void **state) {
    (void)state;
    struct doctor_facts *f = sound();
    set(f, "NCCL_IB_DISABLE", "1");
    set(f, "NCCL_IB_HCA", "mlx5_0");
    expect(f, DOCTOR_NCCL, DOCTOR_WARNING, "NCCL_IB_HCA names a device");
    f = sound();
    set(f, "NCCL_IB_DISABLE", "1");
    set(f, "NCCL_NET", "IB");
    expect(f, DOCTOR_NCCL, DOCTOR_ERROR, "NCCL_NET=IB with NCCL_IB_DISABLE=1");
    f = sound();
    set(f, "NCCL_P2P_DISABLE", "1");
    set(f, "NCCL_SHM_DISABLE", "1");
    expect(f, DOCTOR_NCCL, DOCTOR_WARNING, "and NCCL_SHM_DISABLE=1");
    f = sound();
    set(f, "NCCL_MIN_NCHANNELS", "16");
    set(f, "NCCL_MAX_NCHANNELS", "4");
    expect(f, DOCTOR_NCCL, DOCTOR_WARNING, "is above");
}

static void expect_torchrun(const char *other, bool is_muster, enum doctor_level level, const char *what) {
    struct doctor_facts *f = sound();
    (void)str_copy(f->torchrun.path, sizeof f->torchrun.path, "/venv/bin/torchrun");
    (void)str_copy(f->torchrun.other, sizeof f->torchrun.other, other);
    f->torchrun.is_muster = is_muster;
    expect(f, DOCTOR_ENVIRONMENT, level, what);
}

static void which_torchrun_is_found(void **state) {
    (void)state;
    expect_torchrun("", false, DOCTOR_OK, "gets PyTorch's: /venv/bin/torchrun");
    expect_torchrun("/usr/local/bin/torchrun", false, DOCTOR_WARNING, "before Muster's, /usr/local/bin/torchrun");
    expect_torchrun("", true, DOCTOR_OK, "torchrun is Muster: /venv/bin/torchrun");
}

static void environments(void **state) {
    (void)state;
    struct doctor_facts *f = sound();
    set(f, "PET_NNODES", "4");
    expect(f, DOCTOR_ENVIRONMENT, DOCTOR_NOTE, "PET_NNODES=4");
    f = sound();
    set(f, "PET_NODES", "4");
    expect(f, DOCTOR_ENVIRONMENT, DOCTOR_WARNING, "PET_NODES is read by nobody");
    f = sound();
    set(f, "RANK", "3");
    set(f, "WORLD_SIZE", "8");
    expect(f, DOCTOR_ENVIRONMENT, DOCTOR_NOTE, "RANK=3 WORLD_SIZE=8");
    f = sound();
    set(f, "TORCHELASTIC_RUN_ID", "job");
    expect(f, DOCTOR_ENVIRONMENT, DOCTOR_WARNING, "of a job's worker");
    f = sound();
    set(f, "CUDA_LAUNCH_BLOCKING", "1");
    expect(f, DOCTOR_ENVIRONMENT, DOCTOR_WARNING, "CUDA_LAUNCH_BLOCKING");
}

static void findings_are_bounded(void **state) {
    (void)state;
    struct doctor_findings *out = calloc(1, sizeof *out);
    assert_non_null(out);
    for (int i = 0; i < DOCTOR_FINDINGS_MAX + 10; i++) {
        doctor_advise(doctor_find(out, DOCTOR_NCCL, DOCTOR_NOTE, "number %d", i), "nothing");
    }
    assert_int_equal(out->count, DOCTOR_FINDINGS_MAX);
    assert_int_equal(out->omitted_count, 10);
    assert_int_equal(doctor_count(out, DOCTOR_NOTE), DOCTOR_FINDINGS_MAX);
    free(out);
}

static void checks_are_parsed(void **state) {
    (void)state;
    doctor_checks set_of = 0;
    assert_int_equal(doctor_checks_parse("names,gpus", &set_of), 0);
    assert_int_equal(set_of, DOCTOR_CHECK_BIT(DOCTOR_NAMES) | DOCTOR_CHECK_BIT(DOCTOR_GPUS));
    assert_true(doctor_checks_parse("", &set_of) < 0);
    assert_true(doctor_checks_parse("names,", &set_of) < 0);
    assert_true(doctor_checks_parse("name", &set_of) < 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sound_node_is_ok),
        cmocka_unit_test(what_does_not_answer_is_said),
        cmocka_unit_test(names),
        cmocka_unit_test(names_of_the_endpoint),
        cmocka_unit_test(interfaces),
        cmocka_unit_test(several_interfaces),
        cmocka_unit_test(ports),
        cmocka_unit_test(clocks),
        cmocka_unit_test(limits),
        cmocka_unit_test(memory),
        cmocka_unit_test(temporary),
        cmocka_unit_test(kernels),
        cmocka_unit_test(processors),
        cmocka_unit_test(gpus),
        cmocka_unit_test(infiniband),
        cmocka_unit_test(nccl_values),
        cmocka_unit_test(nccl_contradictions),
        cmocka_unit_test(which_torchrun_is_found),
        cmocka_unit_test(environments),
        cmocka_unit_test(findings_are_bounded),
        cmocka_unit_test(checks_are_parsed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
