/* For the doubles of libcuda and libnccl: faults at chosen calls. A variable of the environment holds rules, with
 * commas between them:
 *
 *     error:FUNCTION:N:CODE    the N-th call (from 1; 0: every one) of the function returns CODE and does nothing
 *     fail:FUNCTION:N:CODE     what that call starts fails later, with CODE
 *     hang:FUNCTION:N          that call does not return
 *     stick:FUNCTION:N         what that call starts never ends by itself
 *     die:FUNCTION:N           the process is killed in that call
 *     delay:FUNCTION:N:US      that call returns after so many microseconds
 *
 * FUNCTION may be `*`. The variable is read at the first call of a process. */
#ifndef COMM_FAULT_TEST_SUPPORT_H
#define COMM_FAULT_TEST_SUPPORT_H

#include <stdatomic.h>

enum fault_kind { FAULT_NONE, FAULT_ERROR, FAULT_FAIL, FAULT_HANG, FAULT_STICK, FAULT_DIE, FAULT_DELAY };
enum { FAULTS_MAX = 16 };

struct fault_rule {
    enum fault_kind kind;
    char function[48];
    unsigned number, value;
    _Atomic unsigned calls;
};

struct faults {
    const char *variable;
    _Atomic int state; /* 0: not read, 1: being read, 2: read */
    struct fault_rule rules[FAULTS_MAX];
    unsigned count;
};

/* What a call is to do. */
struct fault {
    enum fault_kind kind; /* FAULT_NONE, FAULT_ERROR, FAULT_FAIL or FAULT_STICK */
    unsigned value;
};

void fault_pause_us(unsigned us);

/* Counts a call of `function`, and does what a rule says. */
struct fault fault_call(struct faults *faults, const char *function);

#endif
