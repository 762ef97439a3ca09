// The backend "muster" of torch.distributed: c10d's calls over a process group of libmuster.
//
// A blocking call (asyncOp false) runs in the caller's thread, with Python's lock released. A call that returns a work
// object runs in the group's progress thread, and muster_work_then() completes it. Sends and receives go on while
// somebody waits for them, as libmuster's do.
//
// Tensors that are not contiguous, and lists of tensors that do not lie one after the other, go through a copy.
//
// This file is compiled for one minor version of PyTorch and of Python: c10d has no stable interface. What newer
// versions of the headers have is asked of the headers (MUSTER_HAS_...), not of version numbers.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/utils/pybind.h>
#include <torch/python.h>

#include <pybind11/chrono.h>

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <muster/muster.h>

namespace {

using at::Tensor;
using c10d::OpType;
using c10d::ReduceOp;
using c10d::Work;
using Milliseconds = std::chrono::milliseconds;
using Tensors = std::vector<Tensor>;

constexpr Milliseconds kLook{250}; // between two looks at whether a signal has come

// ---- failures ----

// Functions of muster/errors.py that make exceptions; owned for the life of the process.
PyObject *make_error = nullptr;           // (code, sentence)
PyObject *make_monitored_error = nullptr; // (code, sentence, rank, all ranks?, time-out in ms)

// Threads of the library outlive Python's last moments in programs that do not destroy their groups. From end_python() on
// none of them touches Python any more.
std::atomic<bool> python_ends{false};
std::atomic<int> in_python{0};

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
void end_python() {
    python_ends = true;
    pybind11::gil_scoped_release unlocked;
    for (int looks = 0; looks < 1000 && in_python > 0; looks++) {
        std::this_thread::sleep_for(Milliseconds(1));
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
bool signal_has_raised(std::shared_ptr<python_error> *out) {
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
std::exception_ptr carry(PyObject *made, const std::string &sentence) {
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
std::exception_ptr failure(int code, const std::string &sentence) {
    PythonSection python;
    if (!python) {
        return std::make_exception_ptr(std::runtime_error(sentence));
    }
    return carry(make_error ? PyObject_CallFunction(make_error, "is", code, sentence.c_str()) : nullptr, sentence);
}

std::exception_ptr monitored_failure(int code, const std::string &sentence, int rank, bool all_ranks, int64_t timeout_ms) {
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

[[noreturn]] void fail(int code) {
    std::rethrow_exception(failure(code, muster_detail()));
}

// ---- the store ----

// A store of c10d as the functions that libmuster asks for.
struct StoreCalls {
    explicit StoreCalls(c10::intrusive_ptr<c10d::Store> given) : store(std::move(given)) {}

    c10::intrusive_ptr<c10d::Store> store;
    std::shared_ptr<python_error> interrupted; // what a signal's handler raised while a call waited

    // Runs `call`, which throws on failure.
    template <typename Call> int guard(const char *what, const char *key, Call call) {
        try {
            return call();
        } catch (const std::exception &error) {
            std::string sentence = std::string("store of torch.distributed: ") + what + " " + key + ": " + error.what();
            return muster_fail(MUSTER_ECONNECT, sentence.substr(0, sentence.find('\n')).c_str());
        }
    }

    // In a thread of its own where the keys are not there yet: c10d's stores wait without looking at signals, and this
    // thread has to answer them. After a signal that thread is left alone, until its time is up or the process ends.
    int wait(const std::vector<std::string> &keys, int64_t timeout_ms) {
        if (store->check(keys)) {
            return MUSTER_OK;
        }
        auto waiting = std::make_shared<Waiting>();
        auto body = [waiting, keys, timeout_ms, from = store] {
            std::exception_ptr error;
            try {
                from->wait(keys, Milliseconds(std::max<int64_t>(timeout_ms, 1)));
            } catch (...) {
                error = std::current_exception();
            }
            std::lock_guard<std::mutex> locked(waiting->mutex);
            waiting->error = error;
            waiting->is_over = true;
            waiting->over.notify_all();
        };
        if (timeout_ms > 0) {
            std::thread(body).detach();
        }
        std::unique_lock<std::mutex> locked(waiting->mutex);
        while (timeout_ms > 0 && !waiting->is_over) {
            waiting->over.wait_for(locked, kLook);
            if (!waiting->is_over) {
                locked.unlock();
                std::shared_ptr<python_error> raised;
                if (signal_has_raised(&raised)) {
                    std::atomic_store(&interrupted, std::move(raised));
                    return muster_fail(MUSTER_ECANCELED, "interrupted by a signal");
                }
                locked.lock();
            }
        }
        locked.unlock();
        if (timeout_ms > 0 && !waiting->error) {
            return MUSTER_OK;
        }
        if (store->check(keys)) { // throws if the store is lost: then that is the reason
            return MUSTER_OK;
        }
        std::string sentence = "store of torch.distributed: key " + keys[0] + (keys.size() > 1 ? " and others do" : " does") +
                               " not exist yet; gave up after " + std::to_string(timeout_ms) + " ms";
        return muster_fail(MUSTER_ETIMEOUT, sentence.c_str());
    }

    struct Waiting {
        std::mutex mutex;
        std::condition_variable over;
        bool is_over = false;
        std::exception_ptr error;
    };
};

std::vector<uint8_t> bytes_of(const void *data, size_t len) {
    const auto *bytes = static_cast<const uint8_t *>(data);
    return bytes ? std::vector<uint8_t>(bytes, bytes + len) : std::vector<uint8_t>();
}

int store_set(void *context, const char *key, const void *value, size_t len, int64_t /*timeout_ms*/) {
    auto *calls = static_cast<StoreCalls *>(context);
    return calls->guard("set", key, [&] {
        calls->store->set(key, bytes_of(value, len));
        return MUSTER_OK;
    });
}

int store_get(void *context, const char *key, int64_t timeout_ms, muster_store_value *out) {
    auto *calls = static_cast<StoreCalls *>(context);
    return calls->guard("get", key, [&] {
        int code = calls->wait({key}, timeout_ms);
        if (code != MUSTER_OK) {
            return code;
        }
        std::vector<uint8_t> value = calls->store->get(key);
        return muster_store_value_copy(value.data(), value.size(), out);
    });
}

int store_add(void *context, const char *key, int64_t delta, int64_t /*timeout_ms*/, int64_t *out_sum) {
    auto *calls = static_cast<StoreCalls *>(context);
    return calls->guard("add", key, [&] {
        *out_sum = calls->store->add(key, delta);
        return MUSTER_OK;
    });
}

int store_compare_set(void *context, const char *key, const void *expected, size_t expected_len, const void *desired,
                      size_t desired_len, int64_t /*timeout_ms*/, muster_store_value *out) {
    auto *calls = static_cast<StoreCalls *>(context);
    return calls->guard("compare_set", key, [&] {
        std::vector<uint8_t> value =
            calls->store->compareSet(key, bytes_of(expected, expected_len), bytes_of(desired, desired_len));
        return muster_store_value_copy(value.data(), value.size(), out);
    });
}

int store_remove(void *context, const char *key, int64_t /*timeout_ms*/, bool *out_deleted) {
    auto *calls = static_cast<StoreCalls *>(context);
    return calls->guard("delete", key, [&] {
        *out_deleted = calls->store->deleteKey(key);
        return MUSTER_OK;
    });
}

std::vector<std::string> list_of(const char *const *keys, size_t key_count) {
    return {keys, keys + key_count};
}

int store_check(void *context, const char *const *keys, size_t key_count, int64_t /*timeout_ms*/, bool *out_all) {
    auto *calls = static_cast<StoreCalls *>(context);
    return calls->guard("check", key_count > 0 ? keys[0] : "", [&] {
        *out_all = calls->store->check(list_of(keys, key_count));
        return MUSTER_OK;
    });
}

int store_wait(void *context, const char *const *keys, size_t key_count, int64_t timeout_ms) {
    auto *calls = static_cast<StoreCalls *>(context);
    return key_count == 0 ? MUSTER_OK : calls->guard("wait", keys[0], [&] {
        return calls->wait(list_of(keys, key_count), timeout_ms);
    });
}

// ---- a group ----

// A group of libmuster and the store where it met. It lives until the last tensor in its memory and the last work
// object have gone.
class Group {
  public:
    Group(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size, Milliseconds timeout,
          const std::string &name)
        : calls_(store) {
        muster_store_calls calls = MUSTER_STORE_CALLS_INIT;
        calls.set = store_set;
        calls.get = store_get;
        calls.add = store_add;
        calls.compare_set = store_compare_set;
        calls.remove = store_remove;
        calls.check = store_check;
        calls.wait = store_wait;
        muster_group_options options = options_of(timeout, name);
        int code = muster_store_open_calls(&calls, &calls_, MUSTER_STORE_DEFAULT, &store_);
        if (code == MUSTER_OK) {
            code = muster_group_create_store(store_, static_cast<uint32_t>(rank), static_cast<uint32_t>(size), &options,
                                             &group_);
        }
        if (code != MUSTER_OK) {
            std::exception_ptr error = reason(code, muster_detail());
            muster_store_close(store_);
            std::rethrow_exception(error);
        }
    }

    // What survivors agreed on; `from` lends the store.
    Group(std::shared_ptr<Group> from, muster_group *group)
        : calls_(from->calls_.store), group_(group), from_(std::move(from)) {}

    Group(const Group &) = delete;
    Group &operator=(const Group &) = delete;

    // Of one that the progress thread is the last to use: that thread cannot wait for its own end.
    static void end(Group *group) {
        if (completes_a_call) {
            std::thread([group] { delete group; }).detach();
        } else {
            delete group;
        }
    }

    static thread_local bool completes_a_call;

    ~Group() {
        WithoutLock unlocked;
        for (auto &blocks : spare_) {
            for (void *memory : blocks.second) {
                muster_free(group_, memory);
            }
        }
        muster_group_free(group_);
        muster_store_close(store_);
    }

    muster_group *get() const { return group_; }

    // The exception for a call that has failed: what a signal's handler raised, if that is why.
    std::exception_ptr reason(int code, const std::string &sentence) {
        std::shared_ptr<python_error> raised = std::atomic_exchange(&interrupted_, {});
        raised = raised ? raised : std::atomic_exchange(&calls_.interrupted, {});
        return raised ? std::make_exception_ptr(python_error(*raised)) : failure(code, sentence);
    }

    // Memory of muster_alloc(), which the ranks of the host share. To make it takes the kernel long, so what is freed is
    // kept for the next that want as much.
    void *allocate(size_t bytes) {
        size_t rounded = block_of(bytes);
        {
            std::lock_guard<std::mutex> locked(spare_mutex_);
            std::vector<void *> &blocks = spare_[rounded];
            if (!blocks.empty()) {
                void *memory = blocks.back();
                blocks.pop_back();
                return memory;
            }
        }
        void *memory = nullptr;
        int code = muster_alloc(group_, rounded, &memory);
        if (code != MUSTER_OK) {
            fail(code);
        }
        return memory;
    }

    void release(void *memory, size_t bytes) {
        std::lock_guard<std::mutex> locked(spare_mutex_);
        spare_[block_of(bytes)].push_back(memory);
    }

    void keep(std::shared_ptr<python_error> raised) { std::atomic_store(&interrupted_, std::move(raised)); }

  private:
    muster_group_options options_of(Milliseconds timeout, const std::string &name) {
        muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
        options.timeout_ms = std::max<int64_t>(timeout.count(), 1);
        name_ = name.substr(0, MUSTER_GROUP_NAME_MAX - 1);
        options.name = name_.empty() ? nullptr : name_.c_str();
        options.interrupted = [](void *context) {
            std::shared_ptr<python_error> raised;
            bool has_raised = signal_has_raised(&raised);
            if (has_raised) {
                static_cast<Group *>(context)->keep(std::move(raised));
            }
            return has_raised ? 1 : 0;
        };
        options.interrupted_context = this;
        return options;
    }

    // Eight sizes between two powers of two.
    static size_t block_of(size_t bytes) {
        size_t step = 64;
        while (step * 16 < bytes) {
            step *= 2;
        }
        return std::max<size_t>((bytes + step - 1) / step, 1) * step;
    }

    std::mutex spare_mutex_;
    std::map<size_t, std::vector<void *>> spare_; // by their bytes
    StoreCalls calls_;
    std::string name_;
    std::shared_ptr<python_error> interrupted_;
    muster_store *store_ = nullptr;
    muster_group *group_ = nullptr;
    std::shared_ptr<Group> from_;
};

thread_local bool Group::completes_a_call = false;

// ---- tensors ----

muster_type type_of(at::ScalarType type) {
    switch (type) {
    case at::kByte:
    case at::kBool:
        return MUSTER_UINT8;
    case at::kChar:
        return MUSTER_INT8;
    case at::kShort:
        return MUSTER_INT16;
    case at::kInt:
        return MUSTER_INT32;
    case at::kLong:
        return MUSTER_INT64;
    case at::kHalf:
        return MUSTER_FLOAT16;
    case at::kBFloat16:
        return MUSTER_BFLOAT16;
    case at::kFloat:
    case at::kComplexFloat:
        return MUSTER_FLOAT32;
    case at::kDouble:
    case at::kComplexDouble:
        return MUSTER_FLOAT64;
    case at::kUInt16:
        return MUSTER_UINT16;
    case at::kUInt32:
        return MUSTER_UINT32;
    case at::kUInt64:
        return MUSTER_UINT64;
    default:
        return MUSTER_TYPE_COUNT;
    }
}

// What libmuster sees of a tensor's elements: moved only, every type will do.
struct Elements {
    muster_type type;
    size_t per_element; // of PyTorch's
};

Elements moved(const Tensor &tensor) {
    muster_type type = type_of(tensor.scalar_type());
    return type == MUSTER_TYPE_COUNT ? Elements{MUSTER_UINT8, static_cast<size_t>(tensor.element_size())}
                                     : Elements{type, static_cast<size_t>(tensor.element_size()) / muster_type_bytes(type)};
}

Elements reduced(const Tensor &tensor) {
    muster_type type = type_of(tensor.scalar_type());
    TORCH_CHECK_TYPE(type != MUSTER_TYPE_COUNT, "the backend muster does not reduce tensors of type ",
                     tensor.scalar_type());
    return {type, static_cast<size_t>(tensor.element_size()) / muster_type_bytes(type)};
}

size_t count_of(const Tensor &tensor, const Elements &elements) {
    return static_cast<size_t>(tensor.numel()) * elements.per_element;
}

// Truth values add up to whether any is true, and are multiplied to whether all are.
muster_reduction reduction_of(const ReduceOp &operation, const Tensor &tensor) {
    bool is_bool = tensor.scalar_type() == at::kBool, is_complex = tensor.is_complex();
    ReduceOp::RedOpType type = operation;
    TORCH_CHECK(!is_complex || type == ReduceOp::SUM || type == ReduceOp::AVG || type == ReduceOp::PREMUL_SUM,
                "complex tensors can be reduced by SUM and AVG only");
    switch (type) {
    case ReduceOp::SUM:
    case ReduceOp::PREMUL_SUM: // multiplied beforehand
        return is_bool ? MUSTER_OP_BIT_OR : MUSTER_OP_SUM;
    case ReduceOp::AVG:
        TORCH_CHECK(!is_bool, "tensors of type bool cannot be averaged");
        return MUSTER_OP_AVERAGE;
    case ReduceOp::PRODUCT:
        return is_bool ? MUSTER_OP_BIT_AND : MUSTER_OP_PRODUCT;
    case ReduceOp::MIN:
        return MUSTER_OP_MIN;
    case ReduceOp::MAX:
        return MUSTER_OP_MAX;
    case ReduceOp::BAND:
        return MUSTER_OP_BIT_AND;
    case ReduceOp::BOR:
        return MUSTER_OP_BIT_OR;
    case ReduceOp::BXOR:
        return MUSTER_OP_BIT_XOR;
    default:
        TORCH_CHECK(false, "the backend muster does not know this reduction");
    }
}

void check_tensor(const Tensor &tensor) {
    TORCH_CHECK(tensor.device().is_cpu(), "the backend muster takes tensors of the CPU; this one is on ",
                tensor.device());
    TORCH_CHECK(tensor.layout() == at::kStrided, "the backend muster takes dense tensors for this call");
}

const Tensor &only(const Tensors &tensors) {
    TORCH_CHECK(tensors.size() == 1, "the backend muster takes one tensor a call, not ", tensors.size());
    check_tensor(tensors[0]);
    return tensors[0];
}

// ---- one call ----

// What runs: `start` makes libmuster's call (NULL: blocks), `after` brings results to where they belong.
struct Call {
    std::function<int(muster_group *, muster_work **)> start;
    std::function<void()> after; // may be empty
    Tensors kept;                // borrowed by the call
    Tensors outputs;
};

// A tensor whose elements lie one after the other in their order, in its place or in a copy that `after` brings back. In
// their order: another rank's tensor may have other strides.
Tensor contiguous_output(Call &call, const Tensor &tensor) {
    if (tensor.is_contiguous()) {
        call.kept.push_back(tensor);
        return tensor;
    }
    Tensor copy = at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous));
    {
        at::NoGradGuard no_grad;
        copy.copy_(tensor);
    }
    call.kept.push_back(tensor);
    call.kept.push_back(copy);
    auto before = std::move(call.after);
    call.after = [before, tensor, copy] {
        if (before) {
            before();
        }
        at::NoGradGuard no_grad;
        Tensor(tensor).copy_(copy);
    };
    return copy;
}

Tensor contiguous_input(Call &call, const Tensor &tensor) {
    Tensor dense = tensor.contiguous();
    call.kept.push_back(dense);
    return dense;
}

int64_t numel_of(const Tensors &tensors) {
    int64_t sum = 0;
    for (const Tensor &tensor : tensors) {
        sum += tensor.numel();
    }
    return sum;
}

// Do the tensors lie one after the other in memory?
bool lie_in_a_row(const Tensors &tensors) {
    const auto *at = tensors.empty() ? nullptr : static_cast<const char *>(tensors[0].data_ptr());
    for (const Tensor &tensor : tensors) {
        if (!tensor.is_contiguous() || tensor.data_ptr() != at) {
            return false;
        }
        at += tensor.nbytes();
    }
    return true;
}

void check_list(const Tensors &tensors, const Tensor &like, size_t size, const char *what) {
    TORCH_CHECK(tensors.size() == size, what, ": ", tensors.size(), " tensors for a group of ", size, " ranks");
    for (const Tensor &tensor : tensors) {
        check_tensor(tensor);
        TORCH_CHECK(tensor.scalar_type() == like.scalar_type(), what, ": tensors of type ", tensor.scalar_type(),
                    " and ", like.scalar_type());
    }
}

// One buffer for a list of results, which `after` hands out.
Tensor gathered_output(Call &call, const Tensors &tensors) {
    call.kept.insert(call.kept.end(), tensors.begin(), tensors.end());
    if (lie_in_a_row(tensors)) {
        return tensors[0];
    }
    Tensor whole = at::empty({numel_of(tensors)}, tensors[0].options().memory_format(std::nullopt));
    call.kept.push_back(whole);
    auto before = std::move(call.after);
    call.after = [before, tensors, whole] {
        if (before) {
            before();
        }
        at::NoGradGuard no_grad;
        int64_t at = 0;
        for (const Tensor &tensor : tensors) {
            Tensor(tensor).copy_(whole.narrow(0, at, tensor.numel()).view(tensor.sizes()));
            at += tensor.numel();
        }
    };
    return whole;
}

// One buffer with all of a list.
Tensor gathered_input(Call &call, const Tensors &tensors) {
    if (lie_in_a_row(tensors)) {
        call.kept.insert(call.kept.end(), tensors.begin(), tensors.end());
        return tensors[0];
    }
    at::NoGradGuard no_grad;
    Tensors flat;
    flat.reserve(tensors.size());
    for (const Tensor &tensor : tensors) {
        flat.push_back(tensor.reshape({-1}));
    }
    Tensor whole = at::cat(flat);
    call.kept.push_back(whole);
    return whole;
}

std::vector<size_t> counts_of(const Tensors &tensors, const Elements &elements) {
    std::vector<size_t> counts;
    counts.reserve(tensors.size());
    for (const Tensor &tensor : tensors) {
        counts.push_back(count_of(tensor, elements));
    }
    return counts;
}

bool are_equal(const std::vector<size_t> &counts) {
    for (size_t count : counts) {
        if (count != counts[0]) {
            return false;
        }
    }
    return true;
}

// ---- work objects ----

c10::intrusive_ptr<c10::ivalue::Future> new_future() {
    return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
}

// A call that runs, or has run, in some thread.
class CallWork : public Work {
  public:
    CallWork(int rank, OpType type, const char *title, const std::optional<Tensors> &inputs, uint64_t sequence,
             std::shared_ptr<Group> group)
        : Work(rank, type, title, inputs), sequence_(sequence), group_(std::move(group)) {}

    // In the thread that has run it. What `call` borrowed is given back.
    void complete(int code, const char *detail, Call &call) {
        std::exception_ptr error;
        if (code != MUSTER_OK) {
            error = group_->reason(code, detail);
        } else if (call.after) {
            try {
                call.after();
            } catch (...) {
                error = std::current_exception();
            }
        }
        outputs_ = std::move(call.outputs);
        call.kept.clear();
        call.after = nullptr;
        c10::intrusive_ptr<c10::ivalue::Future> future;
        {
            std::lock_guard<std::mutex> locked(future_mutex_);
            is_over_ = true;
            future = future_;
        }
        finish(error);
        if (future) {
            settle(future);
        }
    }

    void complete_or_throw(int code, Call &call) {
        complete(code, code == MUSTER_OK ? "" : muster_detail(), call);
        if (exception_) {
            std::rethrow_exception(exception_);
        }
    }

    bool wait(Milliseconds timeout) override {
        auto until = std::chrono::steady_clock::now() + timeout;
        std::unique_lock<std::mutex> locked(mutex_);
        while (!completed_) {
            cv_.wait_for(locked, kLook);
            if (completed_) {
                break;
            }
            locked.unlock();
            std::shared_ptr<python_error> raised;
            if (signal_has_raised(&raised)) {
                muster_group_abort(group_->get(), "interrupted");
                throw python_error(*raised);
            }
            if (timeout != kNoTimeout && std::chrono::steady_clock::now() >= until) {
                std::rethrow_exception(
                    failure(MUSTER_ETIMEOUT, "wait: the call was not done after " + std::to_string(timeout.count()) +
                                                 " ms; it goes on"));
            }
            locked.lock();
        }
        if (exception_) {
            std::rethrow_exception(exception_);
        }
        return true;
    }

    Tensors result() override { return outputs_; }
    uint64_t getSequencenumber() const override { return sequence_; }
    void abort() override { muster_group_abort(group_->get(), "a work object was aborted"); }

    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
        c10::intrusive_ptr<c10::ivalue::Future> future;
        bool is_over = false;
        {
            std::lock_guard<std::mutex> locked(future_mutex_);
            bool is_new = !future_;
            if (is_new) {
                future_ = new_future();
            }
            future = future_;
            is_over = is_new && is_over_;
        }
        if (is_over) {
            wait(kNoTimeoutHere); // complete() is between its two halves at most
            settle(future);
        }
        return future;
    }

  private:
    static constexpr Milliseconds kNoTimeoutHere{0};

    void settle(const c10::intrusive_ptr<c10::ivalue::Future> &future) {
        if (exception_) {
            future->setError(exception_);
        } else {
            future->markCompleted(c10::IValue(outputs_));
        }
    }

    const uint64_t sequence_;
    std::shared_ptr<Group> group_;
    Tensors outputs_;
    std::mutex future_mutex_;
    c10::intrusive_ptr<c10::ivalue::Future> future_;
    bool is_over_ = false;
};

// A send or a receive: it goes on while somebody waits.
class MessageWork : public Work {
  public:
    MessageWork(int rank, OpType type, const char *title, const std::optional<Tensors> &inputs,
                std::shared_ptr<Group> group, Call call)
        : Work(rank, type, title, inputs), group_(std::move(group)), call_(std::move(call)) {}

    ~MessageWork() override {
        if (handle_) { // nobody has waited: its buffer is borrowed until it is over
            WithoutLock unlocked;
            (void)muster_work_wait(&handle_);
        }
    }

    int start() { return call_.start(group_->get(), &handle_); }
    muster_message *message() { return &message_; }
    void set_call(Call call) { call_ = std::move(call); }

    bool isCompleted() override {
        std::lock_guard<std::mutex> locked(message_mutex_);
        if (handle_ && muster_work_done(handle_)) {
            end();
        }
        return !handle_;
    }

    bool isSuccess() const override { return !handle_ && !exception_; }

    bool wait(Milliseconds timeout) override {
        std::lock_guard<std::mutex> locked(message_mutex_);
        if (handle_ && timeout != kNoTimeout) {
            size_t index = 0;
            int code = muster_work_wait_any(&handle_, 1, timeout.count(), &index);
            if (code != MUSTER_OK) {
                std::rethrow_exception(group_->reason(code, muster_detail()));
            }
        }
        if (handle_) {
            end();
        }
        if (exception_) {
            std::rethrow_exception(exception_);
        }
        return true;
    }

    int sourceRank() const override { return static_cast<int>(message_.rank); }
    Tensors result() override { return call_.outputs; }
    void abort() override { muster_group_abort(group_->get(), "a work object was aborted"); }

    // Completed when it is asked for: nothing carries messages on but those who wait.
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
        auto future = new_future();
        try {
            (void)wait(kNoTimeout);
            future->markCompleted(c10::IValue(call_.outputs));
        } catch (...) {
            future->setError(std::current_exception());
        }
        return future;
    }

  private:
    void end() {
        int code = muster_work_wait(&handle_);
        std::exception_ptr error;
        if (code != MUSTER_OK) {
            error = group_->reason(code, muster_detail());
        } else if (call_.after) {
            call_.after();
        }
        call_.kept.clear();
        call_.after = nullptr;
        finish(error);
    }

    std::shared_ptr<Group> group_;
    Call call_;
    muster_message message_ = {};
    muster_work *handle_ = nullptr;
    std::mutex message_mutex_;
};

// What calls between startCoalescing() and endCoalescing() return: the end's work object stands for them.
class NotedWork : public Work {
  public:
    NotedWork(int rank, OpType type) : Work(rank, type) { finish(); }
};

// ---- the backend ----

class ProcessGroupMuster : public c10d::Backend {
  public:
    struct Options : c10d::Backend::Options {
        explicit Options(Milliseconds timeout = kBackendDefaultTimeout) : c10d::Backend::Options("muster", timeout) {}
    };

    ProcessGroupMuster(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
                       const c10::intrusive_ptr<Options> &options, const std::string &name)
        : Backend(rank, size), options_(options),
          group_(new Group(store, rank, size, options->timeout, name), Group::end) {
        init();
    }

    ProcessGroupMuster(std::shared_ptr<Group> group, const c10::intrusive_ptr<Options> &options)
        : Backend(static_cast<int>(muster_group_rank(group->get())), static_cast<int>(muster_group_size(group->get()))),
          options_(options), group_(std::move(group)) {
        init();
    }

    const std::string getBackendName() const override { return "muster"; }
    c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
    c10::intrusive_ptr<Options> options() const { return options_; }
    bool supportsSplitting() const override { return true; }
    bool supportsCoalescing() const override { return true; }
    bool supportsShrinking() const override { return true; }

    // ---- reductions ----

    c10::intrusive_ptr<Work> allreduce(Tensors &tensors, const c10d::AllreduceOptions &options) override {
        if (tensors.size() == 1 && tensors[0].is_sparse()) {
            return allreduce_sparse(tensors, options);
        }
        const Tensor &tensor = only(tensors);
        Call call;
        call.outputs = tensors;
        Tensor dense = premultiplied(contiguous_output(call, tensor), options.reduceOp);
        Elements elements = reduced(tensor);
        muster_reduction reduction = reduction_of(options.reduceOp, tensor);
        call.start = [=](muster_group *group, muster_work **work) {
            return muster_all_reduce(group, dense.data_ptr(), dense.data_ptr(), count_of(dense, elements),
                                     elements.type, reduction, work);
        };
        return run(OpType::ALLREDUCE, "muster:all_reduce", tensors, options, std::move(call));
    }

    c10::intrusive_ptr<Work> allreduce_coalesced(Tensors &tensors,
                                                 const c10d::AllreduceCoalescedOptions &options) override {
        TORCH_CHECK(!tensors.empty(), "all_reduce_coalesced: no tensor");
        check_list(tensors, tensors[0], tensors.size(), "all_reduce_coalesced");
        Call call;
        call.outputs = tensors;
        Tensor whole = gathered_output(call, tensors);
        if (!lie_in_a_row(tensors)) {
            Call copy;
            whole.copy_(gathered_input(copy, tensors));
        }
        size_t elements_each = reduced(tensors[0]).per_element;
        muster_type type = reduced(tensors[0]).type;
        size_t count = static_cast<size_t>(numel_of(tensors)) * elements_each;
        muster_reduction reduction = reduction_of(options.reduceOp, tensors[0]);
        TORCH_CHECK(options.reduceOp != ReduceOp::PREMUL_SUM, "all_reduce_coalesced: PREMUL_SUM is for one tensor");
        call.start = [=](muster_group *group, muster_work **work) {
            return muster_all_reduce(group, whole.data_ptr(), whole.data_ptr(), count, type, reduction, work);
        };
        return run(OpType::ALLREDUCE_COALESCED, "muster:all_reduce", tensors, options, std::move(call));
    }

    // Every rank gathers the others' indices and values, and adds them up in the order of ranks. Blocks.
    c10::intrusive_ptr<Work> allreduce_sparse(Tensors &tensors, const c10d::AllreduceOptions &options) override {
        TORCH_CHECK(tensors.size() == 1 && tensors[0].is_sparse() && tensors[0].device().is_cpu(),
                    "all_reduce of sparse tensors: one sparse tensor of the CPU is needed");
        TORCH_CHECK(options.reduceOp == ReduceOp::SUM, "all_reduce of sparse tensors: SUM only");
        auto work = new_work(OpType::_ALLREDUCE_SPARSE, "muster:sparse_all_reduce", tensors);
        Call call;
        call.outputs = tensors;
        int code = add_up_sparse(tensors[0], options.timeout);
        work->complete_or_throw(code, call);
        return work;
    }

    c10::intrusive_ptr<Work> reduce(Tensors &tensors, const c10d::ReduceOptions &options) override {
        const Tensor &tensor = only(tensors);
        Call call;
        call.outputs = tensors;
        bool is_root = options.rootRank == getRank();
        Tensor dense = is_root ? premultiplied(contiguous_output(call, tensor), options.reduceOp)
                               : premultiplied_copy(contiguous_input(call, tensor), options.reduceOp, call);
        Elements elements = reduced(tensor);
        muster_reduction reduction = reduction_of(options.reduceOp, tensor);
        auto root = rank_of(options.rootRank);
        call.start = [=](muster_group *group, muster_work **work) {
            return muster_reduce(group, dense.data_ptr(), is_root ? dense.data_ptr() : nullptr,
                                 count_of(dense, elements), elements.type, reduction, root, work);
        };
        return run(OpType::REDUCE, "muster:reduce", tensors, options, std::move(call));
    }

    c10::intrusive_ptr<Work> _reduce_scatter_base(Tensor &output, Tensor &input,
                                                  const c10d::ReduceScatterOptions &options) override {
        check_tensor(output);
        check_tensor(input);
        TORCH_CHECK(input.scalar_type() == output.scalar_type(), "reduce_scatter: tensors of type ",
                    input.scalar_type(), " and ", output.scalar_type());
        TORCH_CHECK(input.numel() == output.numel() * getSize(), "reduce_scatter: the input has ", input.numel(),
                    " elements, ", getSize(), " times ", output.numel(), " are needed");
        Call call;
        call.outputs = {output};
        Tensor from = premultiplied_copy(contiguous_input(call, input), options.reduceOp, call);
        Tensor to = contiguous_output(call, output);
        Elements elements = reduced(input);
        muster_reduction reduction = reduction_of(options.reduceOp, input);
        call.start = [=](muster_group *group, muster_work **work) {
            return muster_reduce_scatter(group, from.data_ptr(), to.data_ptr(), count_of(to, elements), elements.type,
                                         reduction, work);
        };
        return run(OpType::_REDUCE_SCATTER_BASE, "muster:_reduce_scatter_base", Tensors{input}, options,
                   std::move(call));
    }

    c10::intrusive_ptr<Work> reduce_scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                                            const c10d::ReduceScatterOptions &options) override {
        const Tensor &output = only(outputs);
        TORCH_CHECK(inputs.size() == 1, "reduce_scatter: one list of tensors is needed");
        check_list(inputs[0], output, static_cast<size_t>(getSize()), "reduce_scatter");
        TORCH_CHECK(inputs[0][static_cast<size_t>(getRank())].numel() == output.numel(),
                    "reduce_scatter: this rank's input and its output differ in size");
        Call call;
        call.outputs = outputs;
        Tensor from = premultiplied_copy(gathered_input(call, inputs[0]), options.reduceOp, call);
        Tensor to = contiguous_output(call, output);
        Elements elements = reduced(output);
        muster_reduction reduction = reduction_of(options.reduceOp, output);
        std::vector<size_t> counts = counts_of(inputs[0], elements);
        call.start = [=](muster_group *group, muster_work **work) {
            return are_equal(counts) ? muster_reduce_scatter(group, from.data_ptr(), to.data_ptr(), counts[0],
                                                             elements.type, reduction, work)
                                     : muster_reduce_scatter_v(group, from.data_ptr(), to.data_ptr(), counts.data(),
                                                               elements.type, reduction, work);
        };
        return run(OpType::REDUCE_SCATTER, "muster:reduce_scatter", inputs[0], options, std::move(call));
    }

    c10::intrusive_ptr<Work> reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                                             const c10d::ReduceScatterOptions &options) override {
        TORCH_CHECK(outputs.size() == inputs.size(), "reduce_scatter: ", inputs.size(), " inputs and ",
                    outputs.size(), " outputs");
        c10::intrusive_ptr<Work> last;
        for (size_t i = 0; i < outputs.size(); i++) {
            last = _reduce_scatter_base(outputs[i], inputs[i], options);
        }
        return last ? last : nothing(OpType::REDUCE_SCATTER_TENSOR_COALESCED);
    }

    // ---- moving data ----

    c10::intrusive_ptr<Work> broadcast(Tensors &tensors, const c10d::BroadcastOptions &options) override {
        const Tensor &tensor = only(tensors);
        Call call;
        call.outputs = tensors;
        Tensor dense = contiguous_output(call, tensor);
        Elements elements = moved(tensor);
        auto root = rank_of(options.rootRank);
        call.start = [=](muster_group *group, muster_work **work) {
            return muster_broadcast(group, dense.data_ptr(), count_of(dense, elements), elements.type, root, work);
        };
        return run(OpType::BROADCAST, "muster:broadcast", tensors, options, std::move(call));
    }

    c10::intrusive_ptr<Work> _allgather_base(Tensor &output, Tensor &input,
                                             const c10d::AllgatherOptions &options) override {
        check_tensor(output);
        check_tensor(input);
        TORCH_CHECK(input.scalar_type() == output.scalar_type(), "all_gather: tensors of type ", input.scalar_type(),
                    " and ", output.scalar_type());
        TORCH_CHECK(output.numel() == input.numel() * getSize(), "all_gather: the output has ", output.numel(),
                    " elements, ", getSize(), " times ", input.numel(), " are needed");
        Call call;
        call.outputs = {output};
        Tensor from = contiguous_input(call, input);
        Tensor to = contiguous_output(call, output);
        Elements elements = moved(input);
        call.start = [=](muster_group *group, muster_work **work) {
            return muster_all_gather(group, from.data_ptr(), to.data_ptr(), count_of(from, elements), elements.type,
                                     work);
        };
        return run(OpType::_ALLGATHER_BASE, "muster:_all_gather_base", Tensors{input}, options, std::move(call));
    }

    c10::intrusive_ptr<Work> allgather(std::vector<Tensors> &outputs, Tensors &inputs,
                                       const c10d::AllgatherOptions &options) override {
        const Tensor &input = only(inputs);
        TORCH_CHECK(outputs.size() == 1, "all_gather: one list of tensors is needed");
        check_list(outputs[0], input, static_cast<size_t>(getSize()), "all_gather");
        TORCH_CHECK(outputs[0][static_cast<size_t>(getRank())].numel() == input.numel(),
                    "all_gather: this rank's input and its output differ in size");
        Call call;
        call.outputs = outputs[0];
        Tensor from = contiguous_input(call, input);
        Tensor to = gathered_output(call, outputs[0]);
        Elements elements = moved(input);
        std::vector<size_t> counts = counts_of(outputs[0], elements);
        call.start = [=](muster_group *group, muster_work **work) {
            return are_equal(counts) ? muster_all_gather(group, from.data_ptr(), to.data_ptr(), counts[0],
                                                         elements.type, work)
                                     : muster_all_gather_v(group, from.data_ptr(), to.data_ptr(), counts.data(),
                                                           elements.type, work);
        };
        return run(OpType::ALLGATHER, "muster:all_gather", inputs, options, std::move(call));
    }

    c10::intrusive_ptr<Work> allgather_coalesced(std::vector<Tensors> &outputs, Tensors &inputs,
                                                 const c10d::AllgatherOptions &options) override {
        TORCH_CHECK(outputs.size() == static_cast<size_t>(getSize()), "all_gather_coalesced: ", outputs.size(),
                    " lists for a group of ", getSize(), " ranks");
        c10::intrusive_ptr<Work> last;
        for (size_t i = 0; i < inputs.size(); i++) {
            std::vector<Tensors> lists(1);
            for (Tensors &list : outputs) {
                TORCH_CHECK(list.size() == inputs.size(), "all_gather_coalesced: lists of different lengths");
                lists[0].push_back(list[i]);
            }
            Tensors one{inputs[i]};
            last = allgather(lists, one, options);
        }
        return last ? last : nothing(OpType::ALLGATHER_COALESCED);
    }

    c10::intrusive_ptr<Work> allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                                             const c10d::AllgatherOptions &options) override {
        TORCH_CHECK(outputs.size() == inputs.size(), "all_gather: ", inputs.size(), " inputs and ", outputs.size(),
                    " outputs");
        c10::intrusive_ptr<Work> last;
        for (size_t i = 0; i < outputs.size(); i++) {
            last = _allgather_base(outputs[i], inputs[i], options);
        }
        return last ? last : nothing(OpType::COALESCED);
    }

    c10::intrusive_ptr<Work> gather(std::vector<Tensors> &outputs, Tensors &inputs,
                                    const c10d::GatherOptions &options) override {
        const Tensor &input = only(inputs);
        bool is_root = options.rootRank == getRank();
        TORCH_CHECK(outputs.size() == (is_root ? 1u : 0u), "gather: ",
                    is_root ? "the root needs one list of tensors" : "only the root has a list of tensors");
        Call call;
        Tensor from = contiguous_input(call, input), to;
        if (is_root) {
            check_list(outputs[0], input, static_cast<size_t>(getSize()), "gather");
            check_sizes(outputs[0], input, "gather");
            call.outputs = outputs[0];
            to = gathered_output(call, outputs[0]);
        }
        Elements elements = moved(input);
        auto root = rank_of(options.rootRank);
        call.start = [=](muster_group *group, muster_work **work) {
            return muster_gather(group, from.data_ptr(), is_root ? to.data_ptr() : nullptr, count_of(from, elements),
                                 elements.type, root, work);
        };
        return run(OpType::GATHER, "muster:gather", inputs, options, std::move(call));
    }

    c10::intrusive_ptr<Work> scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                                     const c10d::ScatterOptions &options) override {
        const Tensor &output = only(outputs);
        bool is_root = options.rootRank == getRank();
        TORCH_CHECK(inputs.size() == (is_root ? 1u : 0u), "scatter: ",
                    is_root ? "the root needs one list of tensors" : "only the root has a list of tensors");
        Call call;
        call.outputs = outputs;
        Tensor from, to = contiguous_output(call, output);
        if (is_root) {
            check_list(inputs[0], output, static_cast<size_t>(getSize()), "scatter");
            check_sizes(inputs[0], output, "scatter");
            from = gathered_input(call, inputs[0]);
        }
        Elements elements = moved(output);
        auto root = rank_of(options.rootRank);
        call.start = [=](muster_group *group, muster_work **work) {
            return muster_scatter(group, is_root ? from.data_ptr() : nullptr, to.data_ptr(), count_of(to, elements),
                                  elements.type, root, work);
        };
        return run(OpType::SCATTER, "muster:scatter", is_root ? inputs[0] : Tensors{}, options, std::move(call));
    }

    c10::intrusive_ptr<Work> alltoall_base(Tensor &output, Tensor &input, std::vector<int64_t> &output_splits,
                                           std::vector<int64_t> &input_splits,
                                           const c10d::AllToAllOptions &options) override {
        check_tensor(output);
        check_tensor(input);
        TORCH_CHECK(input.scalar_type() == output.scalar_type(), "all_to_all: tensors of type ", input.scalar_type(),
                    " and ", output.scalar_type());
        Call call;
        call.outputs = {output};
        Tensor from = contiguous_input(call, input);
        Tensor to = contiguous_output(call, output);
        Elements elements = moved(input);
        std::vector<size_t> sends = split_counts(from, input_splits, elements, "input");
        std::vector<size_t> receives = split_counts(to, output_splits, elements, "output");
        bool is_even = input_splits.empty() && output_splits.empty();
        TORCH_CHECK(!is_even || from.numel() == to.numel(), "all_to_all: the input has ", from.numel(),
                    " elements, the output ", to.numel());
        bool overlap = from.data_ptr() == to.data_ptr();
        if (overlap && !is_even) {
            from = from.clone();
            call.kept.push_back(from);
        }
        call.start = [=](muster_group *group, muster_work **work) {
            return is_even ? muster_all_to_all(group, from.data_ptr(), to.data_ptr(), sends[0], elements.type, work)
                           : muster_all_to_all_v(group, from.data_ptr(), sends.data(), to.data_ptr(), receives.data(),
                                                 elements.type, work);
        };
        return run(OpType::ALLTOALL_BASE, "muster:all_to_all", Tensors{input}, options, std::move(call));
    }

    c10::intrusive_ptr<Work> alltoall(Tensors &outputs, Tensors &inputs,
                                      const c10d::AllToAllOptions &options) override {
        auto size = static_cast<size_t>(getSize());
        TORCH_CHECK(!inputs.empty() && !outputs.empty(), "all_to_all: no tensors");
        check_list(inputs, inputs[0], size, "all_to_all");
        check_list(outputs, inputs[0], size, "all_to_all");
        Call call;
        call.outputs = outputs;
        Tensor from = gathered_input(call, inputs);
        Tensor to = gathered_output(call, outputs);
        Elements elements = moved(inputs[0]);
        std::vector<size_t> sends = counts_of(inputs, elements), receives = counts_of(outputs, elements);
        call.start = [=](muster_group *group, muster_work **work) {
            return muster_all_to_all_v(group, from.data_ptr(), sends.data(), to.data_ptr(), receives.data(),
                                       elements.type, work);
        };
        return run(OpType::ALLTOALL, "muster:all_to_all", inputs, options, std::move(call));
    }

    // ---- messages ----

    c10::intrusive_ptr<Work> send(Tensors &tensors, int to, int tag) override {
        const Tensor &tensor = only(tensors);
        Call call;
        Tensor dense = contiguous_input(call, tensor);
        call.start = [=, peer = rank_of(to), number = static_cast<uint32_t>(tag)](muster_group *group,
                                                                                  muster_work **work) {
            return muster_send(group, dense.data_ptr(), dense.nbytes(), MUSTER_UINT8, peer, number, work);
        };
        return message(OpType::SEND, "muster:send", tensors, std::move(call));
    }

    c10::intrusive_ptr<Work> recv(Tensors &tensors, int from, int tag) override {
        return receive(OpType::RECV, "muster:recv", tensors, rank_of(from), tag);
    }

    c10::intrusive_ptr<Work> recvAnysource(Tensors &tensors, int tag) override {
        return receive(OpType::RECVANYSOURCE, "muster:recvAnySource", tensors, MUSTER_ANY_RANK, tag);
    }

    // ---- barriers ----

    c10::intrusive_ptr<Work> barrier(const c10d::BarrierOptions &options) override {
        Call call;
        call.start = [](muster_group *group, muster_work **work) { return muster_barrier(group, work); };
        return run(OpType::BARRIER, "muster:barrier", Tensors{}, options, std::move(call));
    }

    void monitoredBarrier(const c10d::BarrierOptions &options, bool all_ranks) override {
        std::lock_guard<std::mutex> locked(call_mutex_);
        Milliseconds timeout = options.timeout == c10d::kUnsetTimeout ? options_->timeout : options.timeout;
        int64_t timeout_ms = std::max<int64_t>(timeout.count(), 1);
        int code = muster_monitored_barrier(group_->get(), timeout_ms);
        if (code == MUSTER_ETIMEOUT) {
            std::rethrow_exception(monitored_failure(code, muster_detail(), getRank(), all_ranks, timeout_ms));
        }
        if (code != MUSTER_OK) {
            std::rethrow_exception(group_->reason(code, muster_detail()));
        }
    }

    // ---- the group ----

    void setSequenceNumberForGroup() override {}
    uint64_t getSequenceNumberForGroup() override { return sequence_; }

    void setTimeout(Milliseconds timeout) override {
        std::lock_guard<std::mutex> locked(call_mutex_);
        options_->timeout = timeout;
        (void)muster_group_set_timeout(group_->get(), timeout.count());
    }

    void startCoalescing() override {
        std::lock_guard<std::mutex> locked(call_mutex_);
        int code = muster_coalesce_begin(group_->get());
        if (code != MUSTER_OK) {
            fail(code);
        }
        coalesced_ = std::make_shared<std::vector<Call>>();
    }

    c10::intrusive_ptr<Work> endCoalescing() override {
        std::shared_ptr<std::vector<Call>> noted;
        Call call;
        {
            std::lock_guard<std::mutex> locked(call_mutex_);
            noted = std::move(coalesced_);
            coalesced_ = nullptr;
        }
        TORCH_CHECK(noted, "endCoalescing without startCoalescing");
        call.start = [noted](muster_group *group, muster_work **work) { return muster_coalesce_end(group, work); };
        call.after = [noted] {
            for (Call &one : *noted) {
                if (one.after) {
                    one.after();
                }
            }
        };
        for (Call &one : *noted) {
            call.outputs.insert(call.outputs.end(), one.outputs.begin(), one.outputs.end());
        }
        return run_now(OpType::COALESCED, "muster:coalesced", Tensors{}, c10d::kUnsetTimeout, true, std::move(call));
    }

    c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store> &store, const std::vector<int> &ranks,
                                            const c10::intrusive_ptr<c10d::Backend::Options> &options) override {
        for (size_t i = 0; i < ranks.size(); i++) {
            if (ranks[i] == getRank()) {
                auto own = c10::make_intrusive<Options>(options ? options->timeout : options_->timeout);
                own->group_name = options ? options->group_name : "";
                return c10::make_intrusive<ProcessGroupMuster>(store, static_cast<int>(i),
                                                               static_cast<int>(ranks.size()), own, own->group_name);
            }
        }
        return nullptr;
    }

    // Those who are excluded do not call; whoever else does not come in time is left out as well.
    c10::intrusive_ptr<c10d::Backend> shrink(const std::vector<int64_t> & /*excluded*/, int /*flags*/,
                                             const c10::intrusive_ptr<c10d::Backend::Options> &options) override {
        Milliseconds timeout = options ? options->timeout : options_->timeout;
        muster_group *made = nullptr;
        std::lock_guard<std::mutex> locked(call_mutex_);
        int code = muster_group_shrink(group_->get(), timeout.count(), &made);
        if (code != MUSTER_OK) {
            std::rethrow_exception(group_->reason(code, muster_detail()));
        }
        return c10::make_intrusive<ProcessGroupMuster>(std::shared_ptr<Group>(new Group(group_, made), Group::end),
                                                       c10::make_intrusive<Options>(timeout));
    }

    c10d::ErrorType getError() override {
        switch (muster_group_status(group_->get())) {
        case MUSTER_OK:
            return c10d::ErrorType::SUCCESS;
        case MUSTER_ETIMEOUT:
            return c10d::ErrorType::TIMEOUT;
        case MUSTER_EPEER:
            return c10d::ErrorType::REMOTE_ERROR;
        default:
            return c10d::ErrorType::COMM_ERROR;
        }
    }

    void abort() override { muster_group_abort(group_->get(), "torch.distributed asked for it"); }
    void shutdown() override {}

    // ---- memory ----

    bool supportsTensorAlloc(c10::DeviceIndex /*index*/) override { return true; }

    Tensor allocateTensor(long size, at::TensorOptions options) override {
        std::shared_ptr<Group> group = group_;
        size_t bytes = static_cast<size_t>(size) * options.dtype().itemsize();
        return at::from_blob(
            group->allocate(bytes), {size}, [group, bytes](void *memory) { group->release(memory, bytes); }, options);
    }

  private:
    static uint32_t rank_of(int64_t rank) {
        TORCH_CHECK(rank >= 0, "rank ", rank, " is none of this group");
        return static_cast<uint32_t>(rank);
    }

    static void check_sizes(const Tensors &tensors, const Tensor &like, const char *what) {
        for (const Tensor &tensor : tensors) {
            TORCH_CHECK(tensor.numel() == like.numel(), what, ": tensors of ", tensor.numel(), " and ", like.numel(),
                        " elements");
        }
    }

    static at::Scalar factor_of(const ReduceOp &operation) {
        const auto *given = reinterpret_cast<const c10d::PreMulSumSupplement *>(operation.supplement_.get());
        return given->tensor_factor.defined() ? given->tensor_factor.item() : at::Scalar(given->double_factor);
    }

    // In place: the caller's tensor holds the result anyway.
    static Tensor premultiplied(Tensor tensor, const ReduceOp &operation) {
        if (operation == ReduceOp::PREMUL_SUM) {
            at::NoGradGuard no_grad;
            tensor.mul_(factor_of(operation));
        }
        return tensor;
    }

    static Tensor premultiplied_copy(Tensor tensor, const ReduceOp &operation, Call &call) {
        if (operation == ReduceOp::PREMUL_SUM) {
            at::NoGradGuard no_grad;
            tensor = tensor.mul(factor_of(operation));
            call.kept.push_back(tensor);
        }
        return tensor;
    }

    std::vector<size_t> split_counts(const Tensor &tensor, const std::vector<int64_t> &splits, const Elements &elements,
                                     const char *which) const {
        auto size = static_cast<size_t>(getSize());
        if (splits.empty()) {
            TORCH_CHECK(tensor.numel() % getSize() == 0, "all_to_all: ", tensor.numel(), " elements of the ", which,
                        " do not divide by ", getSize(), " ranks");
            return std::vector<size_t>(size, count_of(tensor, elements) / size);
        }
        TORCH_CHECK(splits.size() == size, "all_to_all: ", splits.size(), " split sizes of the ", which,
                    " for a group of ", size, " ranks");
        TORCH_CHECK(tensor.dim() > 0, "all_to_all: the ", which, " has no dimension to split");
        int64_t rows = 0;
        for (int64_t split : splits) {
            TORCH_CHECK(split >= 0, "all_to_all: a split size is negative");
            rows += split;
        }
        TORCH_CHECK(rows == tensor.size(0), "all_to_all: the split sizes of the ", which, " sum up to ", rows,
                    ", its first dimension is ", tensor.size(0));
        size_t per_row = rows == 0 ? 0 : count_of(tensor, elements) / static_cast<size_t>(rows);
        std::vector<size_t> counts;
        counts.reserve(size);
        for (int64_t split : splits) {
            counts.push_back(static_cast<size_t>(split) * per_row);
        }
        return counts;
    }

    c10::intrusive_ptr<CallWork> new_work(OpType type, const char *title, const Tensors &inputs) {
        return c10::make_intrusive<CallWork>(getRank(), type, title, std::optional<Tensors>(inputs), ++sequence_,
                                             group_);
    }

    c10::intrusive_ptr<Work> nothing(OpType type) { return c10::make_intrusive<NotedWork>(getRank(), type); }

    template <typename CallOptions>
    c10::intrusive_ptr<Work> run(OpType type, const char *title, const Tensors &inputs, const CallOptions &options,
                                 Call call) {
        if (coalesced_) {
            return note(type, std::move(call));
        }
        return run_now(type, title, inputs, options.timeout, options.asyncOp, std::move(call));
    }

    // Between startCoalescing() and endCoalescing().
    c10::intrusive_ptr<Work> note(OpType type, Call call) {
        std::lock_guard<std::mutex> locked(call_mutex_);
        int code = call.start(group_->get(), nullptr);
        if (code != MUSTER_OK) {
            fail(code);
        }
        coalesced_->push_back(std::move(call));
        return nothing(type);
    }

    c10::intrusive_ptr<Work> run_now(OpType type, const char *title, const Tensors &inputs, Milliseconds timeout,
                                     bool is_async, Call call) {
        auto work = new_work(type, title, inputs);
        if (is_async) {
            submit(work, timeout, std::move(call));
            return work;
        }
        int code = MUSTER_OK;
        {
            std::lock_guard<std::mutex> locked(call_mutex_);
            use_timeout(timeout);
            code = call.start(group_->get(), nullptr);
        }
        work->complete_or_throw(code, call);
        return work;
    }

    struct Submitted {
        c10::intrusive_ptr<CallWork> work;
        Call call;
    };

    void submit(const c10::intrusive_ptr<CallWork> &work, Milliseconds timeout, Call call) {
        auto submitted = std::make_unique<Submitted>(Submitted{work, std::move(call)});
        muster_work *handle = nullptr;
        int code = MUSTER_OK;
        {
            std::lock_guard<std::mutex> locked(call_mutex_);
            use_timeout(timeout);
            code = submitted->call.start(group_->get(), &handle);
        }
        if (code != MUSTER_OK) {
            work->complete_or_throw(code, submitted->call);
        }
        auto then = [](void *context, int result, const char *detail) {
            in_python++;
            if (!python_ends) { // else nobody waits, and to free a tensor may take Python's lock
                Group::completes_a_call = true;
                std::unique_ptr<Submitted> done(static_cast<Submitted *>(context));
                done->work->complete(result, detail, done->call);
                done.reset();
                Group::completes_a_call = false;
            }
            in_python--;
        };
        (void)muster_work_then(&handle, then, submitted.release());
    }

    // Of the call that is made next, by who holds call_mutex_.
    void use_timeout(Milliseconds timeout) {
        Milliseconds wanted = timeout == c10d::kUnsetTimeout ? options_->timeout : timeout;
        if (wanted != used_timeout_) {
            (void)muster_group_set_timeout(group_->get(), wanted.count());
            used_timeout_ = wanted;
        }
    }

    c10::intrusive_ptr<Work> message(OpType type, const char *title, const Tensors &inputs, Call call) {
        if (coalesced_) {
            return note(type, std::move(call));
        }
        auto work = c10::make_intrusive<MessageWork>(getRank(), type, title, std::optional<Tensors>(inputs), group_,
                                                     std::move(call));
        return started(work);
    }

    c10::intrusive_ptr<Work> started(const c10::intrusive_ptr<MessageWork> &work) {
        std::lock_guard<std::mutex> locked(call_mutex_);
        int code = work->start();
        if (code != MUSTER_OK) {
            std::rethrow_exception(group_->reason(code, muster_detail()));
        }
        return work;
    }

    c10::intrusive_ptr<Work> receive(OpType type, const char *title, Tensors &tensors, uint32_t from, int tag) {
        const Tensor &tensor = only(tensors);
        Call call;
        call.outputs = tensors;
        Tensor dense = contiguous_output(call, tensor);
        auto number = static_cast<uint32_t>(tag);
        if (coalesced_) {
            call.start = [=](muster_group *group, muster_work **work) {
                return muster_receive(group, dense.data_ptr(), dense.nbytes(), MUSTER_UINT8, from, number, nullptr,
                                      work);
            };
            return note(type, std::move(call));
        }
        auto work = c10::make_intrusive<MessageWork>(getRank(), type, title, std::optional<Tensors>(tensors), group_,
                                                     Call());
        muster_message *into = work->message();
        call.start = [=](muster_group *group, muster_work **handle) {
            return muster_receive(group, dense.data_ptr(), dense.nbytes(), MUSTER_UINT8, from, number, into, handle);
        };
        work->set_call(std::move(call));
        return started(work);
    }

    int add_up_sparse(Tensor &tensor, Milliseconds timeout) {
        std::lock_guard<std::mutex> locked(call_mutex_);
        use_timeout(timeout);
        at::NoGradGuard no_grad;
        auto size = static_cast<size_t>(getSize());
        Tensor own = tensor.coalesce();
        Tensor indices = own.indices().contiguous(), values = own.values().contiguous();
        int64_t own_count = indices.size(1), dims = indices.size(0);
        std::vector<int64_t> found(size);
        int code = muster_all_gather(group_->get(), &own_count, found.data(), 1, MUSTER_INT64, nullptr);
        if (code != MUSTER_OK) {
            return code;
        }
        int64_t per_value = 1;
        for (int64_t dim = 1; dim < values.dim(); dim++) {
            per_value *= values.size(dim);
        }
        Elements elements = moved(values);
        std::vector<size_t> index_counts, value_counts;
        int64_t whole = 0;
        for (int64_t count : found) {
            index_counts.push_back(static_cast<size_t>(count * dims));
            value_counts.push_back(static_cast<size_t>(count * per_value) * elements.per_element);
            whole += count;
        }
        Tensor all_indices = at::empty({whole * dims}, indices.options());
        std::vector<int64_t> shape = values.sizes().vec();
        shape[0] = whole;
        Tensor all_values = at::empty(shape, values.options());
        code = muster_all_gather_v(group_->get(), indices.data_ptr(), all_indices.data_ptr(), index_counts.data(),
                                   MUSTER_INT64, nullptr);
        code = code != MUSTER_OK ? code
                                 : muster_all_gather_v(group_->get(), values.data_ptr(), all_values.data_ptr(),
                                                       value_counts.data(), elements.type, nullptr);
        if (code != MUSTER_OK) {
            return code;
        }
        Tensors parts;
        int64_t at = 0;
        for (int64_t count : found) {
            parts.push_back(all_indices.narrow(0, at * dims, count * dims).view({dims, count}));
            at += count;
        }
        Tensor sum = at::sparse_coo_tensor(at::cat(parts, 1), all_values, tensor.sizes(), tensor.options()).coalesce();
        tensor.copy_(sum);
        return MUSTER_OK;
    }

    c10::intrusive_ptr<Options> options_;
    std::shared_ptr<Group> group_;
    std::mutex call_mutex_; // libmuster takes the calls of one thread at a time
    std::shared_ptr<std::vector<Call>> coalesced_;
    Milliseconds used_timeout_{-1};
    std::atomic<uint64_t> sequence_{0};
};

c10::intrusive_ptr<ProcessGroupMuster> create(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
                                              Milliseconds timeout, const std::string &name) {
    auto options = c10::make_intrusive<ProcessGroupMuster::Options>(timeout);
    options->group_name = name;
    return c10::make_intrusive<ProcessGroupMuster>(store, rank, size, options, name);
}

} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
    namespace py = pybind11;
    using Class = c10::intrusive_ptr<ProcessGroupMuster>;
    (void)py::module_::import("torch.distributed");
    using Options = ProcessGroupMuster::Options;
    py::class_<Options, c10::intrusive_ptr<Options>, c10d::Backend::Options>(module, "Options")
        .def(py::init<Milliseconds>(), py::arg("timeout") = kBackendDefaultTimeout);
    py::class_<ProcessGroupMuster, Class, c10d::Backend>(module, "ProcessGroupMuster")
        .def_property_readonly("options", &ProcessGroupMuster::options, "Its options: _timeout, group_name, global_ranks_in_group.");
    module.def("create", &create, py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"),
               py::arg("name"), py::call_guard<py::gil_scoped_release>(),
               "A process group of libmuster whose ranks meet in `store`.");
    module.def(
        "set_errors",
        [](py::function made, py::function monitored) {
            make_error = made.release().ptr();
            make_monitored_error = monitored.release().ptr();
        },
        "The functions of muster/errors.py that make what failed calls raise.");
    module.def("end_python", &end_python, "For atexit: threads of the library leave Python alone from now on.");
    module.def("library_version", [] { return std::string(muster_version_text()); });
}
