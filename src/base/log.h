/* The agent's own log lines.
 *
 * Library code neither prints nor exits: a line goes to the sink that the program installed (the command
 * line writes it to stderr in the format torchrun users know); without a sink it is dropped. Level and sink
 * are the process-wide state that this one file is allowed to have. Any thread may set them at any time: a library's
 * first process group does. Whoever diverts lines (below) does so before other threads write some. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>

enum log_level { LOG_LEVEL_DEBUG, LOG_LEVEL_INFO, LOG_LEVEL_WARNING, LOG_LEVEL_ERROR, LOG_LEVEL_OFF };

/* `file` is relative to the source root ("src/agent/agent.c"); `text` may hold several lines. */
typedef void log_sink(enum log_level level, const char *file, int line, const char *text);

void log_set_sink(log_sink *sink);
bool log_has_sink(void);
void log_set_level(enum log_level level);

/* Longest text of one call; a longer one is cut. */
#define LOG_TEXT_MAX 4096

void log_write(enum log_level level, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* While workers' output passes through the same stderr, whoever writes it takes the program's own lines too, so that
 * they neither mix nor block. `divert` returns false for what it does not take. NULL ends it. */
typedef bool log_divert_fn(void *ctx, const char *text, size_t bytes);
void log_set_divert(log_divert_fn *divert, void *ctx);

/* For the code that writes to stderr: offers it `text` (whole lines); false: write it yourself. */
bool log_divert(const char *text, size_t bytes);

/* The build maps __FILE__ to a path relative to the source root. */
#define log_debug(...) log_write(LOG_LEVEL_DEBUG, __FILE__, __LINE__, __VA_ARGS__)
#define log_info(...) log_write(LOG_LEVEL_INFO, __FILE__, __LINE__, __VA_ARGS__)
#define log_warning(...) log_write(LOG_LEVEL_WARNING, __FILE__, __LINE__, __VA_ARGS__)
#define log_error(...) log_write(LOG_LEVEL_ERROR, __FILE__, __LINE__, __VA_ARGS__)

#endif
