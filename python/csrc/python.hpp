// What touches Python from threads of C++: its lock, its end, its signals, and exceptions of its classes.
#pragma once

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include <muster/muster.h>

namespace muster_backend {

constexpr std::chrono::milliseconds kLook{250}; // between two looks at whether a signal has come

// Functions of muster/errors.py that make exceptions; owned for the life of the process.
inline PyObject *make_error = nullptr;           // (code, sentence)
inline PyObject *make_monitored_error = nullptr; // (code, sentence, rank, all ranks?, time-out in ms)

// Threads of the library outlive Python's last moments in programs that do not destroy their groups. From end_python() on
// none of them touches Python any more.
inline std::atomic<bool> python_ends{false};
inline std::atomic<int> in_python{0};

// Python's lock, or false when Python is about to end.
class PythonSection {
  public:
    PythonSection() {
        in_python++;
        if (!python_ends) {
            locked_ = std::make_unique<pybind11::gil_scoped_acquire>();
        }
    }
    ~PythonSection() {
        locked_.reset();
        in_python--;
    }
    PythonSection(const PythonSection &) = delete;
    PythonSection &operator=(const PythonSection &) = delete;
    explicit operator bool() const { return locked_ != nullptr; }

  private:
    std::unique_ptr<pybind11::gil_scoped_acquire> locked_;
};

// By Python's atexit, before it begins to take itself apart; waits for those who are in it.
inline void end_python() {
    python_ends = true;
    pybind11::gil_scoped_release unlocked;
    for (int looks = 0; looks < 1000 && in_python > 0; looks++) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

// Around what may wait for a thread that wants Python's lock, where this thread may have it.
class WithoutLock {
  public:
    WithoutLock() {
        if (!python_ends && PyGILState_Check() != 0) {
            unlocked_ = std::make_unique<pybind11::gil_scoped_release>();
        }
    }

  private:
    std::unique_ptr<pybind11::gil_scoped_release> unlocked_;
};

// Did a signal's handler raise? Only the main thread runs handlers. Takes Python's lock.
inline bool signal_has_raised(std::shared_ptr<python_error> *out) {
    if (static_cast<pid_t>(syscall(SYS_gettid)) != getpid()) {
        return false;
    }
    PythonSection python;
    if (!python || PyErr_CheckSignals() == 0) {
        return false;
    }
    auto error = std::make_shared<python_error>();
    error->persist();
    *out = std::move(error);
    return true;
}

// A Python exception, which is taken, as a C++ exception that every path of PyTorch carries on whole. NULL: to make it
// has failed. With Python's lock held.
inline std::exception_ptr carry(PyObject *made, const std::string &sentence) {
    if (made) {
        PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(made)), made);
        Py_DECREF(made);
    } else if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_RuntimeError, sentence.c_str());
    }
    python_error error;
    error.persist();
    return std::make_exception_ptr(std::move(error));
}

// The exception for a failed call of libmuster.
inline std::exception_ptr failure(int code, const std::string &sentence) {
    PythonSection python;
    if (!python) {
        return std::make_exception_ptr(std::runtime_error(sentence));
    }
    return carry(make_error ? PyObject_CallFunction(make_error, "is", code, sentence.c_str()) : nullptr, sentence);
}

inline std::exception_ptr monitored_failure(int code, const std::string &sentence, int rank, bool all_ranks, int64_t timeout_ms) {
    PythonSection python;
    if (!python) {
        return std::make_exception_ptr(std::runtime_error(sentence));
    }
    return carry(make_monitored_error ? PyObject_CallFunction(make_monitored_error, "isiOL", code, sentence.c_str(), rank,
                                                              all_ranks ? Py_True : Py_False,
                                                              static_cast<long long>(timeout_ms))
                                      : nullptr,
                 sentence);
}

[[noreturn]] inline void fail(int code) {
    std::rethrow_exception(failure(code, muster_detail()));
}

} // namespace muster_backend
