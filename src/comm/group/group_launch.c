/* Making the root group from the environment, whoever has started the ranks. See muster/group.h. */
#include <muster/group.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "comm/group/group_impl.h"
#include "comm/host/interface.h"
#include "comm/launch/launch.h"
#include "comm/launch/pmi1.h"
#include "comm/launch/pmix.h"
#include "comm/mpi/mpi_world.h"
#include "net/endpoint.h"

enum { MEETING_BYTES = NET_ADDRESS_TEXT_MAX };
_Static_assert((int)MEETING_BYTES <= (int)PMI1_VALUE_MAX && (int)MEETING_BYTES <= (int)PMIX_SHARE_VALUE_MAX, "room");

static const char *variable(void *context, const char *name) {
    (void)context;
    return getenv(name);
}

/* The launcher's variables have been checked by muster_store_open_env(). */
static uint32_t number_of_env(const char *name) {
    int64_t value = 0;
    const char *text = getenv(name);
    return text && str_parse_i64(text, &value) ? (uint32_t)value : 0;
}

static int create_alone(const struct launch *launch, const struct muster_group_options *options, int64_t deadline_ns,
                        struct muster_group **out) {
    int code = group_create_root(NULL, 0, 1, options, deadline_ns, out);
    if (code == 0 && launch->starter) {
        log_info("%s has started one process: a world of one rank", launch->starter);
    } else if (code == 0) {
        log_info("no launcher (MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK are not set): this process is a world of "
                 "one rank");
    }
    return code;
}

static int create_by_launcher(const struct muster_group_options *options, int64_t deadline_ns,
                              struct muster_group **out) {
    struct muster_store *store = NULL;
    int code = muster_store_open_env(options->timeout_ms, &store);
    return code ? code
                : group_create_root(store, number_of_env("RANK"), number_of_env("WORLD_SIZE"), options, deadline_ns,
                                    out);
}

/* ---- rank 0's store ---- */

/* "[fd00::2]:29400": this machine's best address, with the store's port. */
static int name_meeting(const struct muster_store *store, char out[MEETING_BYTES]) {
    struct interface_wish wish;
    struct interface_address all[INTERFACES_MAX], chosen[INTERFACE_CHOSEN_MAX];
    size_t count = 0;
    int code = interface_wish_from_env(&wish);
    code = code ? code : interface_list(all, &count);
    if (code == 0 && interface_choose(&wish, all, count, chosen) == 0) {
        code = status_fail(MUSTER_EINVAL, "no network interface is left for the ranks to meet: see "
                                          "MUSTER_SOCKET_IFNAME, or set MASTER_ADDR");
    }
    if (code == 0) {
        struct sockaddr *address = (struct sockaddr *)&chosen[0].address.sockaddr;
        net_address_set_port(address, muster_store_port(store));
        (void)net_address_format(address, out);
    }
    return code;
}

static int join_meeting(const char *meeting, uint32_t rank, uint32_t size, const struct muster_group_options *options,
                        struct muster_store **out) {
    struct net_endpoint endpoint;
    int code = net_endpoint_parse(meeting, &endpoint);
    if (code || endpoint.port <= 0) {
        return code ? code : status_fail(MUSTER_EPROTOCOL, "rank 0 is said to be at '%s'", meeting);
    }
    return group_open_store(endpoint.host, (uint16_t)endpoint.port, rank, size, options, out);
}

/* ---- through a starter ---- */

typedef int share_meeting(void *context, const char *own, int64_t deadline_ns, char *out);

static int share_by_pmi1(void *context, const char *own, int64_t deadline_ns, char *out) {
    const struct launch *launch = context;
    return pmi1_share(launch->pmi_fd, launch->rank, own, deadline_ns, out);
}

static int share_by_pmix(void *context, const char *own, int64_t deadline_ns, char *out) {
    return pmix_share(context, own, deadline_ns, out);
}

/* Rank 0 serves a store on a port of the kernel's choice and says where; the others hear it. */
static int meet(uint32_t rank, uint32_t size, share_meeting *share, void *context,
                const struct muster_group_options *options, int64_t deadline_ns, struct muster_group **out) {
    char own[MEETING_BYTES] = "",
         meeting[PMI1_VALUE_MAX > PMIX_SHARE_VALUE_MAX ? PMI1_VALUE_MAX : PMIX_SHARE_VALUE_MAX];
    struct muster_store *store = NULL;
    int code = rank == 0 ? group_open_store(NULL, 0, 0, size, options, &store) : 0;
    code = code || rank != 0 ? code : name_meeting(store, own);
    code = code ? code : share(context, own, deadline_ns, meeting);
    code = code || rank == 0 ? code : join_meeting(meeting, rank, size, options, &store);
    if (code) {
        muster_store_close(store);
        return code;
    }
    return group_create_root(store, rank, size, options, deadline_ns, out);
}

static int create_by_pmix(const struct muster_group_options *options, int64_t deadline_ns, struct muster_group **out) {
    struct pmix_client *client = NULL;
    struct pmix_place place = {0, 0};
    int code = pmix_open(&client, &place);
    if (code == 0 && (place.size == 0 || place.size > MUSTER_GROUP_SIZE_MAX || place.rank >= place.size)) {
        code = status_fail(MUSTER_EPROTOCOL, "PMIx: this is rank %u of %u", place.rank, place.size);
    }
    code = code ? code : meet(place.rank, place.size, share_by_pmix, client, options, deadline_ns, out);
    pmix_close(client);
    return code;
}

/* The engine MPI needs what the starter serves: it is begun first, and passes the text on itself. */
static int share_by_mpi(void *context, const char *own, int64_t deadline_ns, char *out) {
    struct comm_bell bell = {0};
    struct comm_waiter waiter = {.bell = &bell};
    (void)str_format(out, PMI1_VALUE_MAX, "%s", own);
    int code = mpi_world_share(context, out, PMI1_VALUE_MAX, &waiter, deadline_ns);
    return code == MUSTER_ETIMEOUT ? status_fail(code, "some ranks have not come to MPI in time") : code;
}

static int create_by_mpi(const struct muster_group_options *options, int64_t deadline_ns, struct muster_group **out) {
    struct comm_bell bell = {0};
    struct comm_waiter waiter = {.bell = &bell};
    const struct mpi_world *world = NULL;
    int code = mpi_world_begin(&waiter, deadline_ns, &world);
    if (code) {
        return code == MUSTER_ETIMEOUT ? status_fail(code, "MPI has not begun in time: are all ranks there?") : code;
    }
    return meet((uint32_t)world->rank, (uint32_t)world->size, share_by_mpi, (void *)(uintptr_t)world, options,
                deadline_ns, out);
}

static int create_by_starter(struct launch *launch, const struct muster_group_options *options, int64_t deadline_ns,
                             struct muster_group **out) {
    struct muster_store *store = NULL;
    enum engine_kind wish = ENGINE_AUTO;
    int wrong = group_engine_wish(options, &wish);
    if (wrong) {
        return wrong;
    }
    if (launch->kind != LAUNCH_MASTER && group_engine_may_be_mpi(wish)) {
        return create_by_mpi(options, deadline_ns, out);
    }
    if (launch->kind == LAUNCH_PMIX) {
        return create_by_pmix(options, deadline_ns, out);
    }
    if (launch->size == 0 || launch->size > MUSTER_GROUP_SIZE_MAX) {
        return status_fail(MUSTER_EINVAL, "%u ranks; a group has 1 to %u", launch->size, MUSTER_GROUP_SIZE_MAX);
    }
    if (launch->kind == LAUNCH_PMI1) {
        return meet(launch->rank, launch->size, share_by_pmi1, launch, options, deadline_ns, out);
    }
    int code = group_open_store(launch->master_host, launch->master_port, launch->rank, launch->size, options, &store);
    return code ? code : group_create_root(store, launch->rank, launch->size, options, deadline_ns, out);
}

int muster_group_create_env(const struct muster_group_options *options, struct muster_group **out) {
    struct muster_group_options own;
    struct launch launch = {.kind = LAUNCH_ALONE};
    int code = out ? group_options_read(options, &own) : status_fail_null("muster_group_create_env", "out");
    code = code ? code : launch_find(variable, NULL, &launch);
    if (code) {
        return code;
    }
    int64_t deadline_ns = clock_deadline_ns(clock_monotonic_ns(), own.timeout_ms);
    if (launch.kind == LAUNCH_ALONE) {
        return create_alone(&launch, &own, deadline_ns, out);
    }
    if (launch.kind == LAUNCH_ENV) {
        return create_by_launcher(&own, deadline_ns, out);
    }
    code = create_by_starter(&launch, &own, deadline_ns, out);
    if (code) {
        return status_prefix(code, "%s", launch.starter);
    }
    log_info("%s has started rank %u of %u", launch.starter, muster_group_rank(*out), muster_group_size(*out));
    return 0;
}
