/* Error records of a worker: what went wrong, for the launcher's failure report.
 *
 * A launcher (muster run, or PyTorch's torchrun) names a file in the environment variable TORCHELASTIC_ERROR_FILE and
 * shows its text when the worker fails. Without that variable (a program started by hand) the calls below do nothing
 * and succeed. Nothing but the C library is needed. */
#ifndef MUSTER_RECORD_H
#define MUSTER_RECORD_H

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

/* From now on SIGSEGV, SIGBUS, SIGILL, SIGFPE and SIGABRT leave a record with a backtrace before the process dies of
 * them. The signal is then passed on to the handler that was installed before (it gets the same siginfo), or to the
 * default action. So the wait status and the core file are those of the signal. A signal that was ignored stays
 * ignored. Processes forked later do not write this process's record.
 *
 * Call once, early in main(), before threads start and after other libraries have installed handlers of their own. A
 * second call does nothing. The calling thread gets an alternate signal stack if it has none, so that a stack overflow
 * is recorded. An overflow of another thread is recorded only if that thread has its own alternate stack. Link with
 * -rdynamic to see the names of the program's own functions. Returns 0, MUSTER_ELIMIT (the file's name is too long),
 * MUSTER_ENOMEM or MUSTER_ESYSTEM. */
int muster_record_start(void);

/* Writes a record with this message and a backtrace of the caller. It does not end the process: call it where the
 * program is about to exit with a failure. A later record replaces it, that of abort() excepted. Any thread;
 * not from signal handlers. Returns 0 or MUSTER_ESYSTEM. The message is cut at MUSTER_RECORD_MESSAGE_MAX - 1 bytes. */
#define MUSTER_RECORD_MESSAGE_MAX 4096
int muster_record_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
