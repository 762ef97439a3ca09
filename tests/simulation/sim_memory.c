/* Allocation, counted: the linker sends malloc() and its kin of the code under test here (--wrap). */
#include "sim_memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The names are the linker's. */
void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *block, size_t bytes);
void __real_free(void *block);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *block, size_t bytes);
void __wrap_free(void *block);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t max);
int __wrap_vasprintf(char **out, const char *format, va_list args) __attribute__((format(printf, 2, 0)));
int __wrap___vasprintf_chk(char **out, int flag, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));

static long live;

static void *counted(void *block) {
    live += block != NULL;
    return block;
}

long sim_memory_live(void) {
    return live;
}

void *__wrap_malloc(size_t bytes) {
    return counted(__real_malloc(bytes));
}

void *__wrap_calloc(size_t count, size_t bytes) {
    return counted(__real_calloc(count, bytes));
}

void *__wrap_realloc(void *block, size_t bytes) {
    void *moved = __real_realloc(block, bytes);
    live += moved != NULL && block == NULL;
    return moved;
}

void __wrap_free(void *block) {
    live -= block != NULL;
    __real_free(block);
}

char *__wrap_strndup(const char *text, size_t max) {
    size_t len = strnlen(text, max);
    char *copy = __wrap_malloc(len + 1);
    if (copy) {
        memcpy(copy, text, len);
        copy[len] = '\0';
    }
    return copy;
}

char *__wrap_strdup(const char *text) {
    return __wrap_strndup(text, strlen(text));
}

int __wrap_vasprintf(char **out, const char *format, va_list args) {
    va_list again;
    va_copy(again, args);
    int len = vsnprintf(NULL, 0, format, again);
    va_end(again);
    *out = len >= 0 ? __wrap_malloc((size_t)len + 1) : NULL;
    return *out ? vsnprintf(*out, (size_t)len + 1, format, args) : -1;
}

int __wrap___vasprintf_chk(char **out, int flag, const char *format, va_list args) {
    (void)flag;
    return __wrap_vasprintf(out, format, args);
}

void *sim_memory_counted_take(size_t bytes) {
    return __wrap_malloc(bytes);
}

void sim_memory_counted_give(void *block) {
    __wrap_free(block);
}

static void *or_end(void *block) {
    if (!block) {
        (void)fputs("no memory for the simulation\n", stderr);
        exit(2);
    }
    return block;
}

void *sim_memory_take(size_t bytes) {
    return or_end(__real_calloc(1, bytes));
}

void *sim_memory_resize(void *block, size_t bytes) {
    return or_end(__real_realloc(block, bytes));
}

void sim_memory_give(void *block) {
    __real_free(block);
}
