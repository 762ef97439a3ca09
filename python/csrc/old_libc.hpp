// The backend starts where PyTorch does, with glibc 2.28. libstdc++'s headers use what came later where the C library that
// compiles has it; this keeps that out. First of all headers.
#pragma once

#include <cstddef> // libstdc++'s settings

#undef _GLIBCXX_USE_PTHREAD_COND_CLOCKWAIT // glibc 2.30. Timed waits look at the system's clock: ours are short, and repeated

#if __has_include(<sys/single_threaded.h>) // glibc 2.32. A process with PyTorch has threads anyway
#include <sys/single_threaded.h>
static constexpr bool muster_is_single_threaded = false;
#define __libc_single_threaded muster_is_single_threaded
#endif
