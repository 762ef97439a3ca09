/* The monitor notices the death of processes, reaped or not, and a descriptor that has news. */
#include "comm/host/monitor.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include <muster/status.h>

struct scene {
    struct monitor *monitor;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    uint32_t deaths, peers, bytes, alarms; /* peers: sum of the numbers of those that died */
    int wait_status;
    int pipe[2];
};

static void died(void *context, uint32_t peer, int32_t pid, int wait_status) {
    struct scene *scene = context;
    assert_true(pid > 0);
    pthread_mutex_lock(&scene->mutex);
    scene->deaths++;
    scene->peers += peer;
    scene->wait_status = wait_status;
    pthread_cond_broadcast(&scene->cond);
    pthread_mutex_unlock(&scene->mutex);
}

static void attend(void *context) {
    struct scene *scene = context;
    char byte;
    assert_int_equal(read(scene->pipe[0], &byte, 1), 1);
    pthread_mutex_lock(&scene->mutex);
    scene->bytes++;
    pthread_cond_broadcast(&scene->cond);
    pthread_mutex_unlock(&scene->mutex);
}

static void alarmed(void *context) {
    struct scene *scene = context;
    pthread_mutex_lock(&scene->mutex);
    scene->alarms++;
    pthread_cond_broadcast(&scene->cond);
    pthread_mutex_unlock(&scene->mutex);
}

static void await(struct scene *scene, const uint32_t *counter, uint32_t value) {
    pthread_mutex_lock(&scene->mutex);
    while (*counter < value) {
        pthread_cond_wait(&scene->cond, &scene->mutex);
    }
    pthread_mutex_unlock(&scene->mutex);
}

static int set_up(void **out) {
    struct scene *scene = calloc(1, sizeof *scene);
    assert_non_null(scene);
    pthread_mutex_init(&scene->mutex, NULL);
    pthread_cond_init(&scene->cond, NULL);
    struct monitor_handlers handlers = {scene, died, attend, alarmed};
    assert_int_equal(monitor_create(&handlers, &scene->monitor), 0);
    *out = scene;
    return 0;
}

static int tear_down(void **state) {
    struct scene *scene = *state;
    monitor_free(scene->monitor);
    pthread_cond_destroy(&scene->cond);
    pthread_mutex_destroy(&scene->mutex);
    free(scene);
    return 0;
}

static pid_t start_sleeper(void) {
    pid_t pid = fork();
    if (pid == 0) {
        for (;;) {
            (void)pause();
        }
    }
    assert_true(pid > 0);
    return pid;
}

static void death_before_reaping_is_told_with_its_signal(void **state) {
    struct scene *scene = *state;
    pid_t pid = start_sleeper();
    assert_int_equal(monitor_watch_process(scene->monitor, 7, pid, monitor_start_time(pid)), 0);
    assert_int_equal(kill(pid, SIGKILL), 0);
    await(scene, &scene->deaths, 1);
    assert_int_equal(scene->peers, 7);
    assert_true(WIFSIGNALED(scene->wait_status) && WTERMSIG(scene->wait_status) == SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void many_processes_are_told_each_once(void **state) {
    enum { COUNT = 20 };
    struct scene *scene = *state;
    pid_t pids[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) {
        pids[i] = start_sleeper();
        assert_int_equal(monitor_watch_process(scene->monitor, i, pids[i], monitor_start_time(pids[i])), 0);
    }
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(kill(pids[i], SIGKILL), 0);
        assert_int_equal(waitpid(pids[i], NULL, 0), pids[i]);
    }
    await(scene, &scene->deaths, COUNT);
    assert_int_equal(scene->peers, COUNT * (COUNT - 1) / 2);
    assert_int_equal(scene->deaths, COUNT);
}

static void a_process_that_is_gone_is_an_error(void **state) {
    struct scene *scene = *state;
    pid_t pid = start_sleeper();
    uint64_t start_time = monitor_start_time(pid);
    assert_true(start_time > 0);
    /* Another process has the number now. */
    assert_int_equal(monitor_watch_process(scene->monitor, 1, pid, start_time - 1), MUSTER_EPEER);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(monitor_watch_process(scene->monitor, 1, pid, start_time), MUSTER_EPEER);
    assert_int_equal(monitor_start_time(pid), 0);
}

static void what_a_process_is_at_can_be_asked(void **state) {
    (void)state;
    int status;
    pid_t pid = start_sleeper();
    uint64_t start_time = monitor_start_time(pid);
    assert_false(monitor_is_ending(pid, start_time));
    assert_true(monitor_is_ending(pid, start_time - 1)); /* that one has ended: another has its number */
    assert_int_equal(monitor_process_state(pid, start_time - 1), '\0');
    assert_int_equal(kill(pid, SIGSTOP), 0);
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    assert_int_equal(monitor_process_state(pid, start_time), 'T');
    assert_true(monitor_is_alive(pid, start_time) && !monitor_is_ending(pid, start_time));
    assert_int_equal(kill(pid, SIGKILL), 0);
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    assert_int_equal(monitor_process_state(pid, start_time), 'Z');
    assert_true(monitor_is_ending(pid, start_time) && !monitor_is_alive(pid, start_time));
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(monitor_process_state(pid, start_time), '\0');
}

static void a_readable_descriptor_is_attended_to(void **state) {
    struct scene *scene = *state;
    assert_int_equal(pipe(scene->pipe), 0);
    assert_int_equal(monitor_watch_descriptor(scene->monitor, scene->pipe[0]), 0);
    for (uint32_t i = 1; i <= 3; i++) {
        assert_int_equal(write(scene->pipe[1], "a", 1), 1);
        await(scene, &scene->bytes, i);
    }
    monitor_free(scene->monitor);
    scene->monitor = NULL;
    assert_int_equal(close(scene->pipe[0]), 0);
    assert_int_equal(close(scene->pipe[1]), 0);
}

/* Nobody takes out what has been written: that counts which comes. */
static void an_alarm_is_heard_each_time(void **state) {
    struct scene *scene = *state;
    assert_int_equal(pipe(scene->pipe), 0);
    assert_int_equal(write(scene->pipe[1], "a", 1), 1);
    assert_int_equal(monitor_watch_alarm(scene->monitor, scene->pipe[0]), 0); /* raised before */
    await(scene, &scene->alarms, 1);
    for (uint32_t i = 2; i <= 4; i++) {
        assert_int_equal(write(scene->pipe[1], "a", 1), 1);
        await(scene, &scene->alarms, i);
    }
    monitor_free(scene->monitor);
    scene->monitor = NULL;
    assert_int_equal(scene->alarms, 4);
    assert_int_equal(close(scene->pipe[0]), 0);
    assert_int_equal(close(scene->pipe[1]), 0);
}

static void how_a_zombie_has_ended_can_be_asked(void **state) {
    (void)state;
    siginfo_t info;
    pid_t pid = start_sleeper();
    uint64_t start_time = monitor_start_time(pid);
    assert_int_equal(monitor_exit_status(pid, start_time), -1);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    assert_int_equal(monitor_exit_status(pid, start_time), SIGKILL);
    assert_int_equal(monitor_exit_status(pid, start_time + 1), -1);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(monitor_exit_status(pid, start_time), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(death_before_reaping_is_told_with_its_signal, set_up, tear_down),
        cmocka_unit_test_setup_teardown(many_processes_are_told_each_once, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_process_that_is_gone_is_an_error, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_a_process_is_at_can_be_asked, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_readable_descriptor_is_attended_to, set_up, tear_down),
        cmocka_unit_test_setup_teardown(an_alarm_is_heard_each_time, set_up, tear_down),
        cmocka_unit_test(how_a_zombie_has_ended_can_be_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
