// A group of libmuster that meets in a store of c10d: who ends it, why its calls failed, and its memory.
#pragma once

#include <algorithm>
#include <map>
#include <vector>

#include "store.hpp"

namespace muster_backend {

// A group of libmuster and the store where it met. It lives until the last tensor in its memory and the last work
// object have gone.
class Group {
  public:
    Group(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size, std::chrono::milliseconds timeout,
          const std::string &name)
        : calls_(store) {
        muster_store_calls calls = store_calls();
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
        remember();
    }

    // What survivors agreed on; `from` lends the store.
    Group(std::shared_ptr<Group> from, muster_group *group)
        : calls_(from->calls_.store), group_(group), from_(std::move(from)) {
        remember();
    }

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

    inline static thread_local bool completes_a_call = false;

    ~Group() {
        WithoutLock unlocked;
        bool has_left = false;
        {
            std::lock_guard<std::mutex> locked(all_mutex_);
            auto found = std::find(all_.begin(), all_.end(), this);
            has_left = found == all_.end();
            if (!has_left) {
                all_.erase(found);
            }
        }
        std::lock_guard<std::mutex> locked(leaving_); // leave_all() may be at it
        if (!has_left) {
            leave();
        }
        muster_store_close(store_);
    }

    // At the end of the process, behind Python's: groups that nobody has freed (newer versions of PyTorch keep some to
    // the end) deliver what was sent, and tell the other ranks that this one leaves. The newest first, since groups lend
    // from older ones. Other threads may still end some.
    static void leave_all() {
        std::unique_lock<std::mutex> locked(all_mutex_);
        while (!all_.empty()) {
            Group *group = all_.back();
            all_.pop_back();
            group->leaving_.lock(); // it stays until this is unlocked
            locked.unlock();
            group->leave();
            group->leaving_.unlock();
            locked.lock();
        }
    }

    muster_group *get() const { return group_; }

    // The exception for a call that has just failed in this thread, or of which muster_work_then() tells: what a
    // signal's handler raised, if that is why.
    std::exception_ptr reason(int code, const std::string &sentence) {
        muster_failure record = last_failure();
        std::shared_ptr<python_error> raised = std::atomic_exchange(&interrupted_, {});
        raised = raised ? raised : std::atomic_exchange(&calls_.interrupted, {});
        return raised ? std::make_exception_ptr(python_error(*raised)) : failure(code, sentence, record);
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
    void remember() {
        std::lock_guard<std::mutex> locked(all_mutex_);
        all_.push_back(this);
    }

    void leave() {
        std::map<size_t, std::vector<void *>> spare;
        {
            std::lock_guard<std::mutex> locked(spare_mutex_);
            spare.swap(spare_);
        }
        for (auto &blocks : spare) {
            for (void *memory : blocks.second) {
                muster_free(group_, memory);
            }
        }
        muster_group_free(group_);
    }

    muster_group_options options_of(std::chrono::milliseconds timeout, const std::string &name) {
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

    inline static std::mutex all_mutex_;
    inline static std::vector<Group *> all_; // that have not left; the newest is the last

    std::mutex leaving_;
    std::mutex spare_mutex_;
    std::map<size_t, std::vector<void *>> spare_; // by their bytes
    StoreCalls calls_;
    std::string name_;
    std::shared_ptr<python_error> interrupted_;
    muster_store *store_ = nullptr;
    muster_group *group_ = nullptr;
    std::shared_ptr<Group> from_;
};

} // namespace muster_backend
