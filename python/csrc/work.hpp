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
        complete_as(std::move(call.outputs), error);
    }

    void complete_as(Tensors outputs, std::exception_ptr error) {
        outputs_ = std::move(outputs);
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

// A send or a receive: it goes on while somebody waits in the group. Whoever frees it waits for nothing: a receive is taken back, a send
// goes on as the library's own (muster_work_free()).
class MessageWork : public Work {
  public:
    MessageWork(int rank, OpType type, const char *title, const std::optional<Tensors> &inputs,
                std::shared_ptr<Group> group, Call call)
        : Work(rank, type, title, inputs), group_(std::move(group)), call_(std::move(call)) {}

    // Perhaps under Python's lock, or when Python is at its end.
    ~MessageWork() override { muster_work_free(&handle_); }

    int start() {
        outputs_ = call_.outputs;
        return call_.start(group_->get(), &handle_);
    }
    const std::shared_ptr<muster_message> &message() { return message_; }
    void set_call(Call call) { call_ = std::move(call); }

    bool isCompleted() override {
        std::unique_lock<TriedMutex> locked(message_mutex_, std::try_to_lock);
        if (!locked) { // somebody waits, perhaps for Python's lock, which this thread may have
            return false;
        }
        if (carried_) {
            return carried_->isCompleted();
        }
        if (handle_ && muster_work_done(handle_)) {
            end();
        }
        return !handle_;
    }

    bool isSuccess() const override { return carried_ ? carried_->isSuccess() : !handle_ && !exception_; }
    std::exception_ptr exception() const override { return carried_ ? carried_->exception() : Work::exception(); }

    bool wait(std::chrono::milliseconds timeout) override {
        std::unique_lock<TriedMutex> locked(message_mutex_);
        if (carried_) {
            locked.unlock();
            return carried_->wait(timeout);
        }
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

    int sourceRank() const override { return static_cast<int>(message_->rank); }
    Tensors result() override { return carried_ ? carried_->result() : outputs_; }
    void abort() override { muster_group_abort(group_->get(), "a work object was aborted"); }

    // From now on a thread of its own waits for the message, and completes the future: nobody else need wait, nor keep this object.
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
        WithoutLock unlocked; // before the mutex: see isCompleted()
        std::lock_guard<TriedMutex> locked(message_mutex_);
        if (!carried_) {
            carry();
        }
        return carried_->getFuture();
    }

  private:
    struct Carried {
        c10::intrusive_ptr<CallWork> work;
        Call call;
        std::shared_ptr<muster_message> message;
        muster_work *handle;

        // Like a call that the progress thread has run: when Python ends, nothing of it is touched.
        static void wait(Carried *carried) {
            int code = muster_work_wait(&carried->handle);
            std::string detail = code == MUSTER_OK ? "" : muster_detail();
            in_python++;
            if (!python_ends) {
                std::unique_ptr<Carried> done(carried);
                done->work->complete(code, detail.c_str(), done->call);
            }
            in_python--;
        }
    };

    void carry() {
        auto work = c10::make_intrusive<CallWork>(rank_, opType_, nullptr, std::nullopt, 0, group_);
        if (!handle_) { // it has ended
            work->complete_as(outputs_, exception_);
            carried_ = work;
            return;
        }
        auto carried = std::make_unique<Carried>(Carried{work, call_, message_, handle_});
        std::thread(Carried::wait, carried.get()).detach();
        (void)carried.release();
        call_ = Call();
        handle_ = nullptr;
        carried_ = work;
    }

    void end() {
        int code = muster_work_wait(&handle_);
        finish(call_.conclude(*group_, code, muster_detail()));
    }

    std::shared_ptr<Group> group_;
    Call call_;
    Tensors outputs_;
    std::shared_ptr<muster_message> message_ = std::make_shared<muster_message>();
    muster_work *handle_ = nullptr;
    c10::intrusive_ptr<CallWork> carried_; // once somebody has asked for a future
    TriedMutex message_mutex_;
};

// What calls between startCoalescing() and endCoalescing() return: the end's work object stands for them.
class NotedWork : public Work {
  public:
    NotedWork(int rank, OpType type) : Work(rank, type) { finish(); }
};

} // namespace muster_backend
