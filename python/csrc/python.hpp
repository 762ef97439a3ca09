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
inline PyObject *make_error = nullptr;           // (code, sentence, facts)
inline PyObject *make_monitored_error = nullptr; // (code, sentence, facts, rank, all ranks?, time-out in ms)

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

// What libmuster knows of this thread's last failure.
inline muster_failure last_failure() {
    muster_failure record = {};
    (void)muster_last_failure(&record);
    return record;
}

// The same as a dictionary of errors.py: what is not known is left away. With Python's lock held.
inline pybind11::dict facts_of(const muster_failure &record) {
    pybind11::dict facts;
    facts["cause"] = record.cause;
    if (record.group[0] != '\0') {
        facts["group"] = record.group;
    }
    if (record.call != 0) {
        facts["operation"] = record.operation;
        facts["call"] = record.call;
    }
    if (record.rank != MUSTER_NO_RANK) {
        facts["rank"] = record.rank;
    }
    if (record.host[0] != '\0') {
        facts["host"] = record.host;
    }
    if (record.pid != 0) {
        facts["pid"] = record.pid;
    }
    if (record.signal != 0) {
        facts["signal"] = record.signal;
    }
    pybind11::list missing;
    for (uint32_t run = 0; run < record.run_count; run++) {
        for (uint32_t i = 0; i < record.missing[run].count; i++) {
            missing.append(record.missing[run].first + i);
        }
    }
    facts["missing"] = missing;
    return facts;
}

// The exception that a function of errors.py makes of a failed call.
template <typename... More>
inline std::exception_ptr made_by(PyObject *function, int code, const std::string &sentence, const muster_failure &record,
                                  More... more) {
    PythonSection python;
    if (!python || !function) {
        return std::make_exception_ptr(std::runtime_error(sentence));
    }
    try {
        pybind11::str text(PyUnicode_DecodeUTF8(sentence.data(), static_cast<Py_ssize_t>(sentence.size()), "replace"));
        auto call = pybind11::reinterpret_borrow<pybind11::function>(function);
        return carry(call(code, text, facts_of(record), more...).release().ptr(), sentence);
    } catch (pybind11::error_already_set &error) {
        error.restore();
        return carry(nullptr, sentence);
    }
}

// The exception for a failed call of libmuster.
inline std::exception_ptr failure(int code, const std::string &sentence, const muster_failure &record) {
    return made_by(make_error, code, sentence, record);
}

inline std::exception_ptr monitored_failure(int code, const std::string &sentence, const muster_failure &record, int rank,
                                            bool all_ranks, int64_t timeout_ms) {
    return made_by(make_monitored_error, code, sentence, record, rank, all_ranks, timeout_ms);
}

[[noreturn]] inline void fail(int code) {
    std::rethrow_exception(failure(code, muster_detail(), last_failure()));
}

} // namespace muster_backend
