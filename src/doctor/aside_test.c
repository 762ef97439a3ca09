/* Work aside: whole answers, early ones, late ones, and crashes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "doctor/aside.h"

struct answer {
    int number;
    char large[200000]; /* more than a pipe holds */
};
static struct answer answers[4];

static void says_seven(const struct aside_job *job) {
    struct answer *answer = job->answer;
    answer->number = 7 + *(const int *)job->question;
    memset(answer->large, 'x', sizeof answer->large);
}

static void hangs_after_a_word(const struct aside_job *job) {
    struct answer *answer = job->answer;
    answer->number = 8;
    aside_tell(job);
    answer->number = 9;
    for (;;) {
        (void)pause();
    }
}

static void hangs(const struct aside_job *job) {
    (void)job;
    for (;;) {
        (void)pause();
    }
}

static void crashes(const struct aside_job *job) {
    (void)job;
    (void)signal(SIGSEGV, SIG_DFL); /* a sanitizer has its own */
    (void)raise(SIGSEGV);
}

static struct aside_job job_of(void (*work)(const struct aside_job *job), const void *question, struct answer *answer) {
    return (struct aside_job){.work = work, .question = question, .answer = answer, .answer_bytes = sizeof *answer};
}

/* Nobody of them is left. */
static void assert_no_children(void) {
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

static void answers_come_whole(void **state) {
    (void)state;
    int zero = 0, one = 1;
    struct aside_job jobs[] = {job_of(says_seven, &zero, &answers[0]), job_of(says_seven, &one, &answers[1])};
    assert_int_equal(aside_run(jobs, 2, 60000), 0);
    for (int i = 0; i < 2; i++) {
        assert_true(jobs[i].is_answered && jobs[i].is_finished);
        assert_int_equal(answers[i].number, 7 + i);
        assert_int_equal(answers[i].large[sizeof answers[i].large - 1], 'x');
    }
    assert_no_children();
}

static void the_late_are_left_behind(void **state) {
    (void)state;
    int zero = 0;
    answers[1].number = answers[2].number = -1;
    struct aside_job jobs[] = {
        job_of(says_seven, &zero, &answers[0]),
        job_of(hangs_after_a_word, NULL, &answers[1]),
        job_of(hangs, NULL, &answers[2]),
        job_of(crashes, NULL, &answers[3]),
    };
    assert_int_equal(aside_run(jobs, 4, 4000), 0);
    assert_true(jobs[1].is_answered && !jobs[1].is_finished);
    assert_int_equal(answers[1].number, 8);
    assert_false(jobs[2].is_answered);
    assert_int_equal(answers[2].number, -1);
    assert_false(jobs[3].is_answered);
    assert_no_children();
}

static void nothing_is_asked(void **state) {
    (void)state;
    assert_int_equal(aside_run(NULL, 0, 1000), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_come_whole),
        cmocka_unit_test(the_late_are_left_behind),
        cmocka_unit_test(nothing_is_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
