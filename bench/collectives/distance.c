/* How far two processors are from each other: prints the nanoseconds that a word takes from one to the other through
 * shared memory (half a round trip, spinning), the median of several series. On a virtual machine it changes with
 * where the host puts the processors, and with it every figure of ranks that talk through shared memory. */
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../quantile.h"

enum { SERIES = 101, ROUND_TRIPS = 2000, CACHE_LINE = 64 }; /* short series: others seldom get into one */

struct shared {
    _Alignas(CACHE_LINE) _Atomic unsigned ping;
    _Alignas(CACHE_LINE) _Atomic unsigned pong;
};

static double now_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e9 * (double)now.tv_sec + (double)now.tv_nsec;
}

/* Onto the n-th of the processors this program may use. */
static int bind_to(int n) {
    cpu_set_t allowed, one;
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
        return -1;
    }
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &allowed) && n-- == 0) {
            CPU_SET(cpu, &one);
            return sched_setaffinity(0, sizeof one, &one);
        }
    }
    return -1;
}

static void answer(struct shared *shared) {
    for (unsigned i = 1; i <= (unsigned)SERIES * ROUND_TRIPS; i++) {
        while (atomic_load_explicit(&shared->ping, memory_order_acquire) != i) {
        }
        atomic_store_explicit(&shared->pong, i, memory_order_release);
    }
}

static double ask(struct shared *shared) {
    static double series[SERIES];
    unsigned i = 0;
    for (size_t s = 0; s < SERIES; s++) {
        double from_ns = now_ns();
        for (unsigned last = i + ROUND_TRIPS; i < last;) {
            atomic_store_explicit(&shared->ping, ++i, memory_order_release);
            while (atomic_load_explicit(&shared->pong, memory_order_acquire) != i) {
            }
        }
        series[s] = (now_ns() - from_ns) / (2.0 * ROUND_TRIPS);
    }
    return quantile(series, SERIES, 0.5);
}

int main(void) {
    struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        perror("distance: mmap");
        return 1;
    }
    pid_t parent = getpid(), child = fork();
    /* Who spins must not outlive whom it spins for. */
    if (child == 0 && (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)) {
        _exit(1);
    }
    if (child < 0 || bind_to(child == 0) != 0) {
        perror("distance: two processors are needed");
        return 1;
    }
    if (child == 0) {
        answer(shared);
        _exit(0);
    }
    (void)printf("%.1f\n", ask(shared));
    (void)waitpid(child, NULL, 0);
    return 0;
}
