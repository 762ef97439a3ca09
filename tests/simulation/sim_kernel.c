/* Virtual time, the queue of events, and the hosts; see sim_kernel.h. */
#include "sim_kernel.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim_memory.h"

enum { EVENTS_FIRST = 4096, INSTANT_EVENTS_A_HOST = 10000, PORT_FIRST = 32768, PORT_LAST = 60999, HEAP_WIDTH = 4 };

struct sim_kernel sim_kernel;

/* ---- events ---- */

static bool is_before(const struct sim_event *a, const struct sim_event *b) {
    return a->at_us < b->at_us || (a->at_us == b->at_us && a->order < b->order);
}

void sim_post(int64_t at_us, sim_event_fn *fn, void *subject, uint64_t token) {
    struct sim_kernel *k = &sim_kernel;
    if (k->event_count == k->event_capacity) {
        k->event_capacity = k->event_capacity ? 2 * k->event_capacity : EVENTS_FIRST;
        k->events = sim_memory_resize(k->events, k->event_capacity * sizeof *k->events);
    }
    const struct sim_event event = {.at_us = at_us > k->now_us ? at_us : k->now_us,
                                    .order = k->event_order++,
                                    .fn = fn,
                                    .subject = subject,
                                    .token = token};
    size_t at = k->event_count++;
    while (at > 0 && is_before(&event, &k->events[(at - 1) / HEAP_WIDTH])) {
        k->events[at] = k->events[(at - 1) / HEAP_WIDTH];
        at = (at - 1) / HEAP_WIDTH;
    }
    k->events[at] = event;
}

static size_t first_child(size_t parent) {
    const struct sim_kernel *k = &sim_kernel;
    size_t first = parent * HEAP_WIDTH + 1, best = first;
    for (size_t i = first + 1; i < first + HEAP_WIDTH && i < k->event_count; i++) {
        best = is_before(&k->events[i], &k->events[best]) ? i : best;
    }
    return best;
}

static struct sim_event take_first(void) {
    struct sim_kernel *k = &sim_kernel;
    struct sim_event first = k->events[0], last = k->events[--k->event_count];
    size_t at = 0;
    for (size_t child = first_child(at); child < k->event_count && is_before(&k->events[child], &last);
         child = first_child(at)) {
        k->events[at] = k->events[child];
        at = child;
    }
    k->events[at] = last;
    return first;
}

bool sim_step(int64_t until_us) {
    struct sim_kernel *k = &sim_kernel;
    if (k->event_count == 0 || k->events[0].at_us > until_us) {
        return false;
    }
    struct sim_event event = take_first();
    k->instant_count = event.at_us == k->now_us ? k->instant_count + 1 : 0;
    if (k->instant_count > INSTANT_EVENTS_A_HOST * (k->host_count + 1)) {
        sim_violated("time stands still: somebody is busy for ever");
    }
    k->now_us = event.at_us;
    k->counts.events++;
    event.fn(event.subject, event.token);
    return true;
}

/* ---- the world ---- */

void sim_kernel_begin(uint64_t seed, size_t host_count, const struct sim_network *network) {
    struct sim_kernel *k = &sim_kernel;
    *k = (struct sim_kernel){.host_count = host_count,
                             .network = *network,
                             .random = sim_random_of(seed, 'n'),
                             .events = k->events,
                             .event_capacity = k->event_capacity,
                             .file_chunks = k->file_chunks,
                             .chunk_count = k->chunk_count,
                             .traces = k->traces};
    k->hosts = sim_memory_take(host_count * sizeof *k->hosts);
    if (host_count <= SIM_LINKED_HOSTS_MAX) {
        k->blocked_until_us = sim_memory_take(host_count * host_count * sizeof *k->blocked_until_us);
    }
    for (size_t i = 0; i < host_count; i++) {
        struct sim_host *host = &k->hosts[i];
        struct sim_random random = sim_random_of(seed, 1000 + i);
        *host = (struct sim_host){.index = (uint32_t)i,
                                  .addr = (10u << 24) + 1 + (uint32_t)i,
                                  .is_up = true,
                                  .wall_offset_us = 1700000000 * SIM_S + sim_random_between(&random, -SIM_S, SIM_S),
                                  .monotonic_offset_us = sim_random_between(&random, SIM_S, 1000000 * SIM_S),
                                  .next_port = PORT_FIRST,
                                  .pid = (int)sim_random_between(&random, 100, 30000),
                                  .random = random};
    }
}

void sim_kernel_end(void) {
    struct sim_kernel *k = &sim_kernel;
    for (size_t i = 0; i < k->file_count; i++) {
        sim_memory_give(k->file_chunks[i / SIM_FILES_A_CHUNK][i % SIM_FILES_A_CHUNK].in);
    }
    sim_memory_give(k->hosts);
    sim_memory_give(k->blocked_until_us);
    k->hosts = NULL;
    k->blocked_until_us = NULL;
    k->file_count = k->event_count = 0;
}

void sim_violated(const char *what) {
    if (!sim_kernel.violation) {
        sim_kernel.violation = what;
    }
}

void sim_trace(const char *format, ...) {
    if (!sim_kernel.traces) {
        return;
    }
    va_list args;
    va_start(args, format);
    (void)printf("%12.6f %8llu ", (double)sim_kernel.now_us / (double)SIM_S,
                 (unsigned long long)sim_kernel.counts.events);
    (void)vprintf(format, args);
    (void)putchar('\n');
    va_end(args);
}

/* ---- hosts ---- */

int64_t sim_time_of(const struct sim_host *host, int64_t at_us) {
    int64_t shown_us = at_us - host->monotonic_offset_us, time_us = shown_us;
    if (host->fast_ppm != 0) {
        time_us -= shown_us * host->fast_ppm / (SIM_S + host->fast_ppm);
        while (time_us + time_us * host->fast_ppm / SIM_S < shown_us) {
            time_us++;
        }
    }
    return time_us;
}

struct sim_host *sim_host_at(uint32_t addr) {
    if (addr >> 24 == 127) {
        return sim_kernel.current;
    }
    uint32_t index = addr - (10u << 24) - 1;
    return addr > 10u << 24 && index < sim_kernel.host_count ? &sim_kernel.hosts[index] : NULL;
}

void sim_host_boot(struct sim_host *host) {
    assert(!host->loop && !host->files);
    host->pid++;
    host->rdzv_count = 0;
    host->left.port = 0;
    host->loop = sim_loop_new(host);
}
