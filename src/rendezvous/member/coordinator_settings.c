/* Options to settings; see coordinator_settings.h. */
#include "rendezvous/member/coordinator_settings.h"

#include "base/status.h"
#include "rendezvous/wire/coordinator_wire.h"

static int read_limits(const struct rdzv_options *o, struct coordinator_limits *out) {
    const uint32_t allowed[COORDINATOR_CHARGE_COUNT] = {
        [COORDINATOR_CHARGE_FAILURE] = o->max_restarts,
        [COORDINATOR_CHARGE_CHANGE] = o->conf.max_membership_changes,
        [COORDINATOR_CHARGE_PREEMPTION] = o->conf.max_preemptions,
    };
    *out = (struct coordinator_limits){.window_ms = (int64_t)o->conf.restart_window_ms};
    for (size_t i = 0; i < COORDINATOR_CHARGE_COUNT; i++) {
        out->allowed[i] = allowed[i];
        out->is_limited[i] = allowed[i] != RDZV_UNLIMITED;
        if (out->window_ms > 0 && out->is_limited[i] && allowed[i] > COORDINATOR_WINDOW_CHARGES_MAX) {
            return status_fail(MUSTER_EINVAL,
                               "with --rdzv-conf restart_window, --max-restarts, max_membership_changes and "
                               "max_preemptions can be %u at most, not %u",
                               COORDINATOR_WINDOW_CHARGES_MAX, allowed[i]);
        }
    }
    return MUSTER_OK;
}

/* What the others would refuse, told with the option that it comes from. */
static int check_texts(const struct rdzv_options *o) {
    const struct {
        const char *option, *text;
    } names[] = {{"--rdzv-id", o->run_id}, {"--role", o->role}, {"--rdzv-conf topology", o->conf.topology}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (names[i].text && !coordinator_wire_is_name(kv_slice_text(names[i].text))) {
            return status_fail(MUSTER_EINVAL,
                               "%s is longer than %zu bytes, or has control characters or bytes that are "
                               "no UTF-8",
                               names[i].option, COORDINATOR_NAME_BYTES_MAX);
        }
    }
    if (o->local_addr && !coordinator_wire_is_address(kv_slice_text(o->local_addr))) {
        return status_fail(MUSTER_EINVAL, "--local-addr is neither a host name nor an address");
    }
    return MUSTER_OK;
}

int coordinator_settings_read(const struct rdzv_options *o, struct coordinator_settings *out) {
    *out = (struct coordinator_settings){
        .run_id = o->run_id,
        .min_nodes = o->min_nodes,
        .max_nodes = o->max_nodes,
        .last_call_timeout_ms = (int64_t)o->conf.last_call_timeout_ms,
        .last_call_given = o->conf.last_call_given,
        .places = {.spare_nodes = o->limits_spares ? o->max_spares : 0, .stop_ms = (int64_t)o->stop_timeout_ms},
        .silence_ms = (int64_t)rdzv_conf_silence_ms(&o->conf),
        .hold_ms = (int64_t)rdzv_conf_hold_ms(&o->conf),
        .survivors_continue = o->survivors_continue,
        .limits_spares = o->limits_spares,
        .max_spares = o->max_spares};
    int rc = check_texts(o);
    return rc ? rc : read_limits(o, &out->limits);
}
