/* Reading this process's identity, and its form in the store; see identity.h. */
#include "comm/host/identity.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/fnv.h"
#include "base/formats/protocol.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "comm/host/monitor.h"
#include "comm/host/segment.h"

/* The first byte of the encoding, and where the number of the protocol stands in it: these never change, nor the length
 * of what is between. What reads a record looks at the number first. */
enum { FORM = 5, PROTOCOL_AT = 76, PROTOCOL_BYTES = 2, BOOT_ID_TEXT_BYTES = 36 };

bool identity_boot(uint8_t out[16]) {
    char text[BOOT_ID_TEXT_BYTES + 1] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) {
        (void)close(fd);
    }
    size_t digits = 0;
    for (ssize_t i = 0; i < n && digits < 32; i++) {
        const char *at = strchr("0123456789abcdef", text[i]);
        if (at && text[i] != '\0') {
            unsigned value = (unsigned)(at - "0123456789abcdef");
            out[digits / 2] = (uint8_t)(digits % 2 ? out[digits / 2] | value : value << 4);
            digits++;
        }
    }
    return digits == 32;
}

static bool read_namespace(const char *path, uint64_t *out) {
    struct stat info;
    if (stat(path, &info) != 0) {
        return false;
    }
    *out = info.st_ino;
    return true;
}

/* In a PID namespace that sees another one's /proc, the entry of this process's number there is somebody else's, or
 * nobody's. */
static int check_proc(void) {
    char text[32] = "";
    ssize_t n = readlink("/proc/self", text, sizeof text - 1);
    int64_t pid = -1;
    if (n < 0) {
        return status_fail_errno(errno, "/proc cannot be read");
    }
    text[n] = '\0';
    if (!str_parse_i64(text, &pid) || pid != getpid()) {
        return status_fail(MUSTER_ESYSTEM,
                           "/proc belongs to another PID namespace (this process is %d, there it is %s)", (int)getpid(),
                           text);
    }
    return 0;
}

/* Makes a piece of shared memory and opens it as a neighbour would, so that what this kernel or this container refuses
 * is known before anybody counts on it. */
static int try_sharing(void) {
    struct segment made, opened;
    struct segment_name name;
    int code = check_proc();
    code = code ? code : segment_create(SEGMENT_HEADER_BYTES, "muster-trial", 1, &made, &name);
    if (code) {
        return code;
    }
    code = segment_open(&name, &opened);
    if (code == 0) {
        segment_close(&opened);
    }
    segment_close(&made);
    return code;
}

static bool can_share(void) {
    if (try_sharing() == 0) {
        return true;
    }
    log_warning(
        "no shared memory with other ranks of this host, TCP takes its place, which is slower: %s (MUSTER_SHM=0 asks "
        "for this, without a warning)",
        muster_detail());
    return false;
}

/* Tells names apart, not adversaries. Never 0. */
static uint64_t hash_bytes(const void *bytes, size_t len) {
    uint64_t hash = fnv_bytes(FNV_BEGIN, bytes, len);
    return hash ? hash : 1;
}

uint64_t identity_network(void) {
    struct {
        uint8_t boot[16];
        uint64_t namespace;
    } of = {{0}, 0};
    bool is_known = identity_boot(of.boot) && read_namespace("/proc/self/ns/net", &of.namespace);
    return is_known ? hash_bytes(&of, sizeof of) : 0;
}

/* More processors than CPU_SETSIZE: enough cores for anybody. */
static void read_cores(struct identity *out) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        out->core_count = CPU_SETSIZE;
        return;
    }
    out->core_count = (uint16_t)CPU_COUNT(&set);
    uint32_t hash = UINT32_C(0x811c9dc5); /* FNV-1a */
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        hash = (hash ^ (uint32_t)(CPU_ISSET(cpu, &set) ? cpu + 1 : 0)) * UINT32_C(0x01000193);
    }
    out->core_hash = hash;
}

void identity_of_this_process(struct identity *out) {
    const char *shared = getenv("MUSTER_SHM"), *host = getenv("MUSTER_HOST_ID");
    memset(out, 0, sizeof *out);
    out->protocol = (uint16_t)protocol_ranks();
    /* Also where no memory is shared: who competes for cores, and which address is another machine's, is asked of it.
     */
    bool is_known = identity_boot(out->host.boot_id);
    is_known &= read_namespace("/proc/self/ns/pid", &out->host.pid_namespace);
    is_known &= read_namespace("/proc/self/ns/mnt", &out->host.mount_namespace);
    is_known &= read_namespace("/proc/self/ns/user", &out->host.user_namespace);
    out->may_share = !(shared && strcmp(shared, "0") == 0) && is_known && can_share();
    out->host.tag = host && *host ? hash_bytes(host, strlen(host)) : 0;
    out->host.user = (uint32_t)geteuid();
    out->network = identity_network();
    read_cores(out);
    out->pid = (int32_t)getpid();
    out->start_time = monitor_start_time(out->pid);
    if (gethostname(out->host_name, sizeof out->host_name - 1) != 0) {
        (void)str_copy(out->host_name, sizeof out->host_name, "unknown host");
    }
}

static int compare_numbers(uint64_t a, uint64_t b) {
    return (a > b) - (a < b);
}

int identity_compare_hosts(const struct identity *a, const struct identity *b) {
    int order = memcmp(a->host.boot_id, b->host.boot_id, sizeof a->host.boot_id);
    order = order ? order : compare_numbers(a->host.pid_namespace, b->host.pid_namespace);
    order = order ? order : compare_numbers(a->host.mount_namespace, b->host.mount_namespace);
    order = order ? order : compare_numbers(a->host.user_namespace, b->host.user_namespace);
    order = order ? order : compare_numbers(a->host.tag, b->host.tag);
    order = order ? order : compare_numbers(a->host.user, b->host.user);
    return order ? order : compare_numbers(a->may_share, b->may_share);
}

bool identity_share_host(const struct identity *a, const struct identity *b) {
    return a->may_share && identity_compare_hosts(a, b) == 0;
}

size_t identity_encode(const struct identity *identity, uint8_t out[IDENTITY_ENCODED_BYTES_MAX]) {
    struct bytes_writer w = {out, IDENTITY_ENCODED_BYTES_MAX, 0, false};
    size_t name_len = strnlen(identity->host_name, IDENTITY_HOST_NAME_BYTES - 1);
    bytes_put_number(&w, FORM, 1);
    bytes_put_number(&w, identity->may_share, 1);
    bytes_put(&w, identity->host.boot_id, sizeof identity->host.boot_id);
    bytes_put_number(&w, identity->host.pid_namespace, 8);
    bytes_put_number(&w, identity->host.mount_namespace, 8);
    bytes_put_number(&w, identity->host.user_namespace, 8);
    bytes_put_number(&w, identity->host.tag, 8);
    bytes_put_number(&w, identity->host.user, 4);
    bytes_put_number(&w, identity->network, 8);
    bytes_put_number(&w, (uint32_t)identity->pid, 4);
    bytes_put_number(&w, identity->start_time, 8);
    bytes_put_number(&w, identity->core_count, 2);
    assert(w.used == PROTOCOL_AT);
    bytes_put_number(&w, identity->protocol, PROTOCOL_BYTES); /* the upper half of the count, 0, in records without */
    bytes_put_number(&w, identity->core_hash, 4);
    bytes_put_number(&w, identity->token, 4);
    bytes_put_number(&w, identity->choice_hash, 8);
    bytes_put_number(&w, identity->engine_wish, 1);
    bytes_put_number(&w, identity->engine_facts, 1);
    bytes_put_number(&w, identity->beacon_port, 2);
    bytes_put_number(&w, identity->beacon_address_count, 1);
    bytes_put(&w, identity->beacon_addresses, (size_t)identity->beacon_address_count * IDENTITY_ADDRESS_BYTES);
    bytes_put_number(&w, name_len, 1);
    bytes_put(&w, identity->host_name, name_len);
    return w.used;
}

uint32_t identity_protocol(const uint8_t *data, size_t len) {
    bool is_record = len >= PROTOCOL_AT + PROTOCOL_BYTES && data[0] == FORM;
    return is_record ? (uint32_t)(data[PROTOCOL_AT] | data[PROTOCOL_AT + 1] << 8) : 0;
}

int identity_decode(const uint8_t *data, size_t len, struct identity *out) {
    struct bytes_reader r = {data, len, 0, false};
    struct identity identity = {0};
    uint64_t form = bytes_get_number(&r, 1), may_share = bytes_get_number(&r, 1);
    const uint8_t *boot_id = bytes_get(&r, sizeof identity.host.boot_id);
    identity.may_share = may_share == 1;
    identity.host.pid_namespace = bytes_get_number(&r, 8);
    identity.host.mount_namespace = bytes_get_number(&r, 8);
    identity.host.user_namespace = bytes_get_number(&r, 8);
    identity.host.tag = bytes_get_number(&r, 8);
    identity.host.user = (uint32_t)bytes_get_number(&r, 4);
    identity.network = bytes_get_number(&r, 8);
    identity.pid = (int32_t)(uint32_t)bytes_get_number(&r, 4);
    identity.start_time = bytes_get_number(&r, 8);
    identity.core_count = (uint16_t)bytes_get_number(&r, 2);
    identity.protocol = (uint16_t)bytes_get_number(&r, PROTOCOL_BYTES);
    identity.core_hash = (uint32_t)bytes_get_number(&r, 4);
    identity.token = (uint32_t)bytes_get_number(&r, 4);
    identity.choice_hash = bytes_get_number(&r, 8);
    identity.engine_wish = (uint8_t)bytes_get_number(&r, 1);
    identity.engine_facts = (uint8_t)bytes_get_number(&r, 1);
    identity.beacon_port = (uint16_t)bytes_get_number(&r, 2);
    size_t address_count = bytes_get_number(&r, 1);
    const uint8_t *addresses = bytes_get(&r, address_count * IDENTITY_ADDRESS_BYTES);
    size_t name_len = bytes_get_number(&r, 1);
    const uint8_t *name = bytes_get(&r, name_len);
    if (r.overrun || r.used != len || form != FORM || may_share > 1 || identity.pid <= 0 ||
        name_len >= IDENTITY_HOST_NAME_BYTES || address_count > IDENTITY_ADDRESSES_MAX) {
        return status_fail(MUSTER_EPROTOCOL, "a rank's record in the store (%zu bytes) is not understood", len);
    }
    memcpy(identity.host.boot_id, boot_id, sizeof identity.host.boot_id);
    memcpy(identity.host_name, name, name_len);
    memcpy(identity.beacon_addresses, addresses, address_count * IDENTITY_ADDRESS_BYTES);
    identity.beacon_address_count = (uint8_t)address_count;
    *out = identity;
    return 0;
}

struct muster_failure identity_blame(uint32_t rank, const struct identity *identity) {
    struct muster_failure failure = status_no_failure();
    failure.rank = failure.root_rank = rank;
    if (identity) {
        failure.pid = identity->pid;
        (void)str_format(failure.host, sizeof failure.host, "%s", identity->host_name);
    }
    return failure;
}
