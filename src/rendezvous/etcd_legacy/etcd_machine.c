/* The legacy etcd rendezvous; see etcd_machine.h. The phases are named after the methods of PyTorch's EtcdRendezvous.
 */
#include "rendezvous/etcd_legacy/etcd_machine.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"

/* PyTorch's, in seconds. */
enum { SETUP_TTL_S = 5, FROZEN_TTL_S = 10, JOINABLE_TTL_S = 10 };
enum {
    REFRESH_MS = JOINABLE_TTL_S * 1000 / 2,
    KEEP_ALIVE_MS = 10000, /* a killed node's key lasts so long */
    GRACE_MS = 5000,       /* an etcd that was away lets keep-alives expire of nodes that are well: they come back */
};

enum { STAGE_NONE, STAGE_COUNTER, STAGE_BUMP, STAGE_FOLDER, STAGE_PUBLISH };

void etcd_machine_init(struct etcd_machine *machine, const struct etcd_machine_settings *settings) {
    *machine = (struct etcd_machine){.settings = *settings, .check_ms = INT64_MAX};
}

void etcd_machine_done(struct etcd_machine *machine) {
    free(machine->text);
    machine->text = NULL;
}

int etcd_machine_adopt(struct etcd_machine *machine, const char *text) {
    struct etcd_world world = {.status = ETCD_WORLD_ABSENT};
    char *copy = NULL;
    int rc = text ? etcd_world_read(text, strlen(text), &world) : MUSTER_OK;
    if (rc == MUSTER_OK && text) {
        copy = strdup(text);
        rc = copy ? MUSTER_OK : status_fail(MUSTER_ENOMEM, "no memory for a rendezvous");
    }
    if (rc != MUSTER_OK) {
        return rc;
    }
    free(machine->text);
    machine->text = copy;
    machine->world = world;
    machine->known = true;
    return MUSTER_OK;
}

void etcd_machine_path(const struct etcd_machine *machine, char out[ETCD_MACHINE_PATH_MAX]) {
    (void)str_format(out, ETCD_MACHINE_PATH_MAX, "%s%s/rank_%" PRIu32, machine->settings.versions, machine->version,
                     machine->rank);
}

void etcd_machine_excuse(struct etcd_machine *machine, int64_t now_ms) {
    machine->judges_from_ms = now_ms + GRACE_MS;
}

/* ---- calls ---- */

static void call(struct etcd_machine *m, enum etcd_call which, struct etcd_actions *out) {
    out->call = m->busy = which;
}

static int write_world(struct etcd_machine *m, enum etcd_call which, char *value, uint32_t ttl_s,
                       struct etcd_actions *out) {
    if (!value) {
        return status_fail(MUSTER_ENOMEM, "no memory for a rendezvous");
    }
    out->value = value;
    out->ttl_s = ttl_s;
    call(m, which, out);
    return MUSTER_OK;
}

static void wake(struct etcd_actions *out, int64_t when_ms) {
    if (when_ms < out->wake_ms) {
        out->wake_ms = when_ms;
    }
}

/* ---- who is missing ---- */

static struct job_end_view view_of(const struct etcd_machine *m) {
    struct job_end_view view = m->members.view;
    view.reserve = m->world.waiting < UINT32_MAX ? (uint32_t)m->world.waiting : UINT32_MAX;
    view.min_nodes = m->settings.min_nodes;
    view.closed = m->world.status == ETCD_WORLD_CLOSED;
    return view;
}

/* A member is not there, and had not succeeded before it went. */
static bool is_lost(const struct etcd_machine *m) {
    const struct job_end_view view = view_of(m);
    return view.missing > 0 && job_end_judge(&view) != JOB_END_GO_ON;
}

bool etcd_machine_can_reform(const struct etcd_machine *m) {
    const struct job_end_view view = view_of(m);
    return job_end_can_reform(&view);
}

static bool is_ours(const struct etcd_machine *m) {
    return m->entered && strcmp(m->version, m->world.version) == 0;
}

/* ---- joining ---- */

/* try_create_rendezvous(): the one who made the value counts the version up, makes its folder, and opens it. */
static int set_up(struct etcd_machine *m, struct etcd_actions *out) {
    char version[ETCD_WORLD_VERSION_MAX];
    switch (m->setup_stage) {
    case STAGE_COUNTER:
        call(m, ETCD_CALL_READ_COUNTER, out);
        break;
    case STAGE_BUMP:
        call(m, ETCD_CALL_WRITE_COUNTER, out);
        break;
    case STAGE_FOLDER:
        call(m, ETCD_CALL_MAKE_VERSION, out);
        break;
    case STAGE_PUBLISH:
        (void)str_format(version, sizeof version, "%" PRIu64, m->counter);
        return write_world(m, ETCD_CALL_WRITE_WORLD, etcd_world_joinable(version), 0, out);
    default: /* another's: it opens it, or it expires */
        break;
    }
    return MUSTER_OK;
}

/* handle_join_last_call(): who makes the minimum complete keeps the value alive and closes the round in time. */
static int last_call(struct etcd_machine *m, int64_t now_ms, struct etcd_actions *out) {
    if (m->rank + 1 != m->settings.min_nodes) {
        return MUSTER_OK;
    }
    if (now_ms >= m->last_call_ms) {
        return write_world(m, ETCD_CALL_WRITE_WORLD, etcd_world_freeze(m->text), FROZEN_TTL_S, out);
    }
    if (now_ms >= m->refresh_ms) {
        return write_world(m, ETCD_CALL_WRITE_WORLD, strdup(m->text), JOINABLE_TTL_S, out);
    }
    wake(out, m->last_call_ms);
    wake(out, m->refresh_ms);
    return MUSTER_OK;
}

/* join_rendezvous() */
static int enter(struct etcd_machine *m, struct etcd_actions *out) {
    uint32_t count = m->world.participants + 1;
    if (count > m->settings.max_nodes) {
        return MUSTER_OK; /* made by agents with another --nnodes */
    }
    bool freeze = count == m->settings.max_nodes;
    uint32_t ttl_s = freeze ? FROZEN_TTL_S : count >= m->settings.min_nodes ? JOINABLE_TTL_S : 0;
    return write_world(m, ETCD_CALL_WRITE_WORLD, etcd_world_join(m->text, freeze), ttl_s, out);
}

/* confirm_membership() */
static int confirm(struct etcd_machine *m, struct etcd_actions *out) {
    char path[ETCD_MACHINE_PATH_MAX];
    etcd_machine_path(m, path);
    if (etcd_world_has_keep_alive(m->text, path)) {
        return MUSTER_OK; /* wait_for_final() */
    }
    if (!m->touched) {
        call(m, ETCD_CALL_TOUCH, out);
        return MUSTER_OK;
    }
    bool is_last = m->world.confirmed + 1 == m->world.participants;
    return write_world(m, ETCD_CALL_WRITE_WORLD, etcd_world_confirm(m->text, path), is_last ? 0 : FROZEN_TTL_S, out);
}

/* It was counted as waiting for a round that is full. */
static bool waits_for_full_round(const struct etcd_machine *m) {
    return m->world.version[0] != '\0' && strcmp(m->announced, m->world.version) == 0 &&
           m->world.participants >= m->settings.max_nodes;
}

bool etcd_machine_is_spare(const struct etcd_machine *m) {
    return m->phase == ETCD_PHASE_JOINING && m->world.status == ETCD_WORLD_FINAL && !is_ours(m) &&
           waits_for_full_round(m);
}

/* A job of one node has no use for another one. But its node may have been killed, and this one be its successor. */
static void wait_for_the_one(struct etcd_machine *m, int64_t now_ms, struct etcd_actions *out) {
    if (strcmp(m->taken, m->world.version) != 0) {
        memcpy(m->taken, m->world.version, sizeof m->taken);
        m->taken_from_ms = now_ms + KEEP_ALIVE_MS + GRACE_MS;
    }
    if (now_ms >= m->taken_from_ms) {
        m->phase = ETCD_PHASE_OVER;
        out->verdict = ETCD_VERDICT_TAKEN;
        out->wake_ms = INT64_MAX;
    } else {
        m->members_known = false; /* looked at then */
        wake(out, m->taken_from_ms);
    }
}

/* The job is over: for whoever was its spare, as it ended for the members. */
static int end_joining(struct etcd_machine *m, struct etcd_actions *out) {
    const struct job_end_view *view = &m->members.view;
    bool was_spare = waits_for_full_round(m);
    if (was_spare && !m->members_known) {
        call(m, ETCD_CALL_READ_MEMBERS, out);
        return MUSTER_OK;
    }
    m->phase = ETCD_PHASE_OVER;
    out->wake_ms = INT64_MAX;
    out->verdict = was_spare && (view->arrived >= view->world_size || view->recorded_done >= view->world_size)
                       ? ETCD_VERDICT_SPARE_RELEASED
                       : ETCD_VERDICT_CLOSED;
    return MUSTER_OK;
}

/* handle_existing_rendezvous(): waits for the round of others to end, and ends it when one of them is missing. One of
 * which all members were ours is ended at once by whoever leaves it: everybody sees that. */
static int wait_for_end(struct etcd_machine *m, int64_t now_ms, struct etcd_actions *out) {
    if (m->ends_round && strcmp(m->version, m->world.version) == 0) {
        call(m, ETCD_CALL_DELETE_WORLD, out);
        return MUSTER_OK;
    }
    bool is_one_too_many = m->settings.max_nodes == 1; /* members of PyTorch's restart for whoever waits */
    if (!is_one_too_many && strcmp(m->announced, m->world.version) != 0) {
        return write_world(m, ETCD_CALL_WRITE_WORLD, etcd_world_wait(m->text), 0, out);
    }
    if (!m->members_known) {
        call(m, ETCD_CALL_READ_MEMBERS, out);
    } else if (is_lost(m) && now_ms < m->judges_from_ms) {
        m->members_known = false; /* looked at then */
        wake(out, m->judges_from_ms);
    } else if (is_lost(m)) {
        call(m, ETCD_CALL_DELETE_WORLD, out);
    } else if (is_one_too_many) {
        wait_for_the_one(m, now_ms, out);
    }
    return MUSTER_OK;
}

/* This node leaves its round to form the next one: without those that are done, is that possible? If the round is over
 * already, whoever has ended it has asked. */
static bool asks_who_is_left(struct etcd_machine *m, struct etcd_actions *out) {
    bool stands = m->world.status == ETCD_WORLD_FINAL && strcmp(m->version, m->world.version) == 0;
    if (!m->asks_who_is_left || !stands) {
        m->asks_who_is_left = false;
        return false;
    }
    if (!m->members_known) {
        call(m, ETCD_CALL_READ_MEMBERS, out);
        return true;
    }
    m->asks_who_is_left = false;
    if (etcd_machine_can_reform(m)) {
        return false;
    }
    m->phase = ETCD_PHASE_OVER;
    out->verdict = ETCD_VERDICT_TOO_FEW;
    out->wake_ms = INT64_MAX;
    return true;
}

/* The round is complete: whose it is decides how it will be left. */
static int become_member(struct etcd_machine *m, int64_t now_ms, struct etcd_actions *out) {
    if (!m->members_known) {
        call(m, ETCD_CALL_READ_MEMBERS, out);
        return MUSTER_OK;
    }
    m->phase = ETCD_PHASE_MEMBER;
    out->wake_ms = INT64_MAX;
    m->all_muster = m->members.all_muster;
    m->told = ETCD_VERDICT_NONE;
    m->is_done = false;
    m->check_ms = m->members.view.missing > 0 ? now_ms + GRACE_MS : INT64_MAX;
    wake(out, m->check_ms);
    out->verdict = ETCD_VERDICT_JOINED;
    return MUSTER_OK;
}

static int decide_joining(struct etcd_machine *m, int64_t now_ms, struct etcd_actions *out) {
    if (now_ms >= m->deadline_ms) {
        m->phase = ETCD_PHASE_OVER;
        out->verdict = ETCD_VERDICT_TIMEOUT;
        return MUSTER_OK;
    }
    wake(out, m->deadline_ms);
    if (asks_who_is_left(m, out)) {
        return MUSTER_OK;
    }
    switch (m->world.status) {
    case ETCD_WORLD_ABSENT:
        m->setup_stage = STAGE_NONE;
        return write_world(m, ETCD_CALL_CREATE_WORLD, etcd_world_setup(), SETUP_TTL_S, out);
    case ETCD_WORLD_SETUP:
        return set_up(m, out);
    case ETCD_WORLD_JOINABLE:
        return is_ours(m) ? last_call(m, now_ms, out) : enter(m, out);
    case ETCD_WORLD_FROZEN:
        return is_ours(m) ? confirm(m, out) : MUSTER_OK;
    case ETCD_WORLD_FINAL:
        return is_ours(m) ? become_member(m, now_ms, out) : wait_for_end(m, now_ms, out);
    case ETCD_WORLD_CLOSED:
        return end_joining(m, out);
    }
    return MUSTER_OK;
}

/* ---- a member ---- */

/* Somebody waits. Once a member is done, a newcomer would break up a world that is about to end well. */
static void judge_arrival(struct etcd_machine *m, struct etcd_actions *out) {
    if (!m->members_known) {
        call(m, ETCD_CALL_READ_MEMBERS, out);
        return;
    }
    bool is_ending = m->members.view.arrived > 0 || m->members.view.recorded_done > 0;
    m->told = ETCD_VERDICT_NODE_ARRIVED;
    out->verdict = is_ending ? ETCD_VERDICT_NODE_STAYS_OUT : ETCD_VERDICT_NODE_ARRIVED;
}

/* A keep-alive has gone, and there was time to put it there again. */
static void judge_departure(struct etcd_machine *m, struct etcd_actions *out) {
    if (!m->members_known) {
        call(m, ETCD_CALL_READ_MEMBERS, out);
        return;
    }
    m->check_ms = INT64_MAX;
    if (is_lost(m)) {
        m->told = ETCD_VERDICT_NODE_LEFT;
        out->verdict = m->world.status == ETCD_WORLD_CLOSED ? ETCD_VERDICT_FAILED : ETCD_VERDICT_NODE_LEFT;
    } else if (m->members.view.missing > 0) {
        out->verdict = ETCD_VERDICT_DONE_NODE_LEFT;
    }
}

static int decide_member(struct etcd_machine *m, int64_t now_ms, struct etcd_actions *out) {
    bool closed = m->world.status == ETCD_WORLD_CLOSED;
    bool same = (closed || m->world.status == ETCD_WORLD_FINAL) && is_ours(m);
    /* Members of ours that restart end the round; then somebody who waits is new, and there may be no place. A member
     * of PyTorch's that restarts is first seen waiting. */
    bool place = !m->all_muster || m->world.participants < m->settings.max_nodes;
    if (m->told == ETCD_VERDICT_NODE_LEFT || (closed && !same)) {
        return MUSTER_OK;
    }
    if (m->check_ms < m->judges_from_ms) {
        m->check_ms = m->judges_from_ms;
    }
    if (!same) {
        m->told = out->verdict = ETCD_VERDICT_NODE_LEFT;
    } else if (m->told == ETCD_VERDICT_NONE && m->world.waiting > 0 && place && !closed) {
        judge_arrival(m, out);
    } else if (now_ms >= m->check_ms) {
        judge_departure(m, out);
    } else if (m->check_ms != INT64_MAX) {
        m->members_known = false; /* looked at then */
        wake(out, m->check_ms);
    }
    return MUSTER_OK;
}

/* ---- the end ---- */

static void over(struct etcd_machine *m, enum etcd_verdict verdict, struct etcd_actions *out) {
    m->phase = ETCD_PHASE_OVER;
    m->entered = false;
    out->verdict = verdict;
    out->wake_ms = INT64_MAX;
}

static int decide_closing(struct etcd_machine *m, struct etcd_actions *out) {
    if (m->world.status == ETCD_WORLD_ABSENT || m->world.status == ETCD_WORLD_CLOSED) {
        over(m, ETCD_VERDICT_DONE, out);
        return MUSTER_OK;
    }
    return write_world(m, ETCD_CALL_WRITE_WORLD, etcd_world_close(m->text), 0, out);
}

/* Members of PyTorch's look at nothing but who waits: one that will never come makes them form a new round, whose
 * members find out that this node's keep-alive expires. */
static int decide_leaving(struct etcd_machine *m, struct etcd_actions *out) {
    bool member = m->world.status == ETCD_WORLD_FINAL && is_ours(m);
    if (!member || m->is_done || strcmp(m->announced, m->version) == 0) {
        over(m, ETCD_VERDICT_DONE, out);
        return MUSTER_OK;
    }
    if (m->all_muster) {
        call(m, ETCD_CALL_DELETE_WORLD, out);
        return MUSTER_OK;
    }
    return write_world(m, ETCD_CALL_WRITE_WORLD, etcd_world_wait(m->text), 0, out);
}

static int decide_ending(struct etcd_machine *m, int64_t now_ms, struct etcd_actions *out) {
    if (now_ms >= m->deadline_ms) {
        over(m, ETCD_VERDICT_GIVEN_UP, out);
        return MUSTER_OK;
    }
    wake(out, m->deadline_ms);
    return m->phase == ETCD_PHASE_CLOSING ? decide_closing(m, out) : decide_leaving(m, out);
}

/* ---- outcomes ---- */

/* A write of the world has been carried out; what it was about follows from what the world is now. */
static void note_written(struct etcd_machine *m, int64_t now_ms) {
    bool entered_now = m->phase == ETCD_PHASE_JOINING && !is_ours(m) && m->setup_stage == STAGE_NONE &&
                       (m->world.status == ETCD_WORLD_JOINABLE || m->world.status == ETCD_WORLD_FROZEN);
    if (entered_now) {
        m->entered = true;
        m->touched = m->members_known = m->ends_round = m->all_muster = false;
        m->rank = m->world.participants - 1;
        memcpy(m->version, m->world.version, sizeof m->version);
        m->last_call_ms = now_ms + m->settings.last_call_timeout_ms;
    } else if (m->world.status == ETCD_WORLD_FINAL && m->world.waiting > 0) {
        memcpy(m->announced, m->world.version, sizeof m->announced);
        m->members_known = false;
    }
    m->refresh_ms = now_ms + REFRESH_MS;
    m->setup_stage = STAGE_NONE;
}

static void note_done(struct etcd_machine *m, enum etcd_call done, int64_t now_ms) {
    switch (done) {
    case ETCD_CALL_CREATE_WORLD:
        m->setup_stage = STAGE_COUNTER;
        break;
    case ETCD_CALL_WRITE_COUNTER:
        m->setup_stage = STAGE_FOLDER;
        break;
    case ETCD_CALL_MAKE_VERSION:
        m->setup_stage = STAGE_PUBLISH;
        break;
    case ETCD_CALL_WRITE_WORLD:
        note_written(m, now_ms);
        break;
    case ETCD_CALL_TOUCH:
        m->touched = true;
        break;
    case ETCD_CALL_READ_WORLD:
        m->members_known = false;
        break;
    case ETCD_CALL_NONE:
    case ETCD_CALL_DELETE_WORLD:
    case ETCD_CALL_READ_COUNTER:
    case ETCD_CALL_READ_MEMBERS:
        break;
    }
}

static void begin(struct etcd_machine *m, enum etcd_phase phase, int64_t deadline_ms) {
    m->phase = phase;
    m->deadline_ms = deadline_ms;
}

static void note(struct etcd_machine *m, enum etcd_event event, int64_t now_ms) {
    enum etcd_call was = m->busy;
    switch (event) {
    case ETCD_EVENT_JOIN:
        m->ends_round = m->phase == ETCD_PHASE_MEMBER && m->all_muster;
        m->asks_who_is_left = m->phase == ETCD_PHASE_MEMBER && m->world.participants > 1;
        m->entered = m->members_known = false;
        begin(m, ETCD_PHASE_JOINING, now_ms + m->settings.join_timeout_ms);
        break;
    case ETCD_EVENT_CLOSE:
        begin(m, ETCD_PHASE_CLOSING, now_ms + m->settings.close_timeout_ms);
        break;
    case ETCD_EVENT_LEAVE:
        begin(m, ETCD_PHASE_LEAVING, now_ms + m->settings.close_timeout_ms);
        break;
    case ETCD_EVENT_SEEN:
        m->members_known = false;
        break;
    case ETCD_EVENT_DELETED:
        m->members_known = false;
        m->check_ms = m->phase == ETCD_PHASE_MEMBER ? now_ms : INT64_MAX;
        break;
    case ETCD_EVENT_EXPIRED:
        m->members_known = false;
        m->check_ms = m->phase == ETCD_PHASE_MEMBER ? now_ms + GRACE_MS : INT64_MAX;
        break;
    case ETCD_EVENT_MEMBERS:
        m->busy = ETCD_CALL_NONE;
        m->members_known = true;
        break;
    case ETCD_EVENT_COUNTER:
        m->busy = ETCD_CALL_NONE;
        m->counter++;
        m->setup_stage = STAGE_BUMP;
        break;
    case ETCD_EVENT_DONE:
        m->busy = ETCD_CALL_NONE;
        note_done(m, was, now_ms);
        break;
    case ETCD_EVENT_REFUSED:
        m->busy = ETCD_CALL_NONE;
        m->setup_stage = STAGE_NONE;
        m->known = false;
        break;
    case ETCD_EVENT_TIMER:
        break;
    }
}

int etcd_machine_step(struct etcd_machine *m, enum etcd_event event, int64_t now_ms, struct etcd_actions *out) {
    *out = (struct etcd_actions){.wake_ms = INT64_MAX};
    note(m, event, now_ms);
    bool active = m->phase != ETCD_PHASE_IDLE && m->phase != ETCD_PHASE_OVER;
    bool ends = m->phase == ETCD_PHASE_JOINING || m->phase == ETCD_PHASE_CLOSING || m->phase == ETCD_PHASE_LEAVING;
    if (m->busy != ETCD_CALL_NONE && active && ends && now_ms < m->deadline_ms) {
        wake(out, m->deadline_ms); /* even if the call never comes back */
        return MUSTER_OK;
    }
    if (!active || (m->busy != ETCD_CALL_NONE && !ends)) {
        return MUSTER_OK;
    }
    if (!m->known && (!ends || now_ms < m->deadline_ms)) {
        call(m, ETCD_CALL_READ_WORLD, out);
        if (ends) {
            wake(out, m->deadline_ms);
        }
        return MUSTER_OK;
    }
    if (m->phase == ETCD_PHASE_JOINING) {
        return decide_joining(m, now_ms, out);
    }
    return m->phase == ETCD_PHASE_MEMBER ? decide_member(m, now_ms, out) : decide_ending(m, now_ms, out);
}
