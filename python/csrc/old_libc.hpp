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

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace muster_backend {

// For std::mutex where try_lock() is called: pthread_mutex_trylock() has a version of glibc 2.34 where it is linked anew.
class TriedMutex {
  public:
    void lock() {
        std::unique_lock<std::mutex> locked(mutex_);
        while (!freed_.wait_for(locked, std::chrono::seconds(1), [this] { return !is_taken_; })) {
            // wait() without an end has a version of gcc 12
        }
        is_taken_ = true;
    }

    bool try_lock() {
        std::lock_guard<std::mutex> locked(mutex_);
        bool was_taken = is_taken_;
        is_taken_ = true;
        return !was_taken;
    }

    void unlock() {
        std::lock_guard<std::mutex> locked(mutex_);
        is_taken_ = false;
        freed_.notify_one();
    }

  private:
    std::mutex mutex_; // held for some instructions
    std::condition_variable freed_;
    bool is_taken_ = false;
};

} // namespace muster_backend
