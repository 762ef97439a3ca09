// Work objects of c10d: of calls in some thread, of messages, and of calls that wait for the end of a coalesced batch.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp> // unregister_work()
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "call.hpp"

namespace muster_backend {

using c10d::OpType;
using c10d::Work;

inline c10::intrusive_ptr<c10::ivalue::Future> new_future() {
    return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
}

// A call that runs, or has run, in some thread.
class CallWork : public Work {
  public:
    CallWork(int rank, OpType type, const char *title, const std::optional<Tensors> &inputs, uint64_t sequence,
             std::shared_ptr<Group> group)
        : Work(rank, type, title, inputs), sequence_(sequence), group_(std::move(group)) {}

    // In the thread that has run it. What `call` borrowed is given back. The future is completed before those who wait go on: they may
    // hang callbacks on it, and count on these being run at once, as with gloo.
    void complete(int code, const char *detail, Call &call) {
        std::exception_ptr error = call.conclude(*group_, code, detail);
        outputs_ = std::move(call.outputs);
        c10::intrusive_ptr<c10::ivalue::Future> future;
        {
            std::lock_guard<std::mutex> locked(future_mutex_);
            error_ = error;
            is_over_ = true; // from now on whoever asks for a future settles it
            settles_ = std::this_thread::get_id();
            future = future_;
        }
        if (future) {
            settle(future);
        }
        finish(error);
    }

    void complete_or_throw(int code, Call &call) {
        complete(code, code == MUSTER_OK ? "" : muster_detail(), call);
        if (exception_) {
            std::rethrow_exception(exception_);
        }
    }

    bool wait(std::chrono::milliseconds timeout) override {
        if (is_settled_here()) { // a callback of the future waits for the call that it is called for
            forget_for_graphs();
            if (error_) {
                std::rethrow_exception(error_);
            }
            return true;
        }
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
                std::string sentence =
                    "wait: the call was not done after " + std::to_string(timeout.count()) + " ms; it goes on";
                fail(muster_fail(MUSTER_ETIMEOUT, sentence.c_str()));
            }
            locked.lock();
        }
        locked.unlock();
        forget_for_graphs();
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
            settle(future);
        }
        return future;
    }

  private:
    // c10d notes calls that a compiled graph may wait for; this one has been waited for.
    void forget_for_graphs() {
        if (c10d::get_work_registry_size() > 0) {
            c10d::unregister_work(c10::intrusive_ptr<c10d::Work>::reclaim_copy(this));
        }
    }

    bool is_settled_here() {
        std::lock_guard<std::mutex> locked(future_mutex_);
        return is_over_ && settles_ == std::this_thread::get_id();
    }

    void settle(const c10::intrusive_ptr<c10::ivalue::Future> &future) {
        if (error_) {
            future->setError(error_);
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
    std::exception_ptr error_;
    std::thread::id settles_; // it completes the future, and then this object
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

    bool wait(std::chrono::milliseconds timeout) override {
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
        finish(call_.conclude(*group_, code, muster_detail()));
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

} // namespace muster_backend
