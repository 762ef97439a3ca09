// A store of c10d, of whatever kind, as the functions that libmuster asks for (struct muster_store_calls).
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "python.hpp"

namespace muster_backend {

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

    int wait(const std::vector<std::string> &keys, int64_t timeout_ms) {
        if (store->check(keys) || (timeout_ms > 0 && await(keys, timeout_ms))) {
            return MUSTER_OK;
        }
        if (std::atomic_load(&interrupted)) {
            return muster_fail(MUSTER_ECANCELED, "interrupted by a signal");
        }
        if (store->check(keys)) { // throws if the store is lost: then that is the reason
            return MUSTER_OK;
        }
        std::string sentence = "store of torch.distributed: key " + keys[0] +
                               (keys.size() > 1 ? " and others do" : " does") + " not exist yet; gave up after " +
                               std::to_string(timeout_ms) + " ms";
        return muster_fail(MUSTER_ETIMEOUT, sentence.c_str());
    }

  private:
    struct Waiting {
        std::mutex mutex;
        std::condition_variable over;
        bool is_over = false, are_there = false;
    };

    // Waits in a thread of its own: c10d's stores do not look at signals, and this thread has to answer them. After a
    // signal (`interrupted`) that thread is left alone, until its time is up or the process ends.
    bool await(const std::vector<std::string> &keys, int64_t timeout_ms) {
        auto waiting = std::make_shared<Waiting>();
        std::thread([waiting, keys, timeout_ms, from = store] {
            bool are_there = false;
            try {
                from->wait(keys, std::chrono::milliseconds(timeout_ms));
                are_there = true;
            } catch (...) { // time is up, or the store is lost: check() tells
            }
            std::lock_guard<std::mutex> locked(waiting->mutex);
            waiting->are_there = are_there;
            waiting->is_over = true;
            waiting->over.notify_all();
        }).detach();
        std::unique_lock<std::mutex> locked(waiting->mutex);
        while (!waiting->is_over) {
            waiting->over.wait_for(locked, kLook);
            locked.unlock();
            std::shared_ptr<python_error> raised;
            if (signal_has_raised(&raised)) {
                std::atomic_store(&interrupted, std::move(raised));
                return false;
            }
            locked.lock();
        }
        return waiting->are_there;
    }
};

inline std::vector<uint8_t> bytes_of(const void *data, size_t len) {
    const auto *bytes = static_cast<const uint8_t *>(data);
    return bytes ? std::vector<uint8_t>(bytes, bytes + len) : std::vector<uint8_t>();
}

inline int store_set(void *context, const char *key, const void *value, size_t len, int64_t /*timeout_ms*/) {
    auto *calls = static_cast<StoreCalls *>(context);
    return calls->guard("set", key, [&] {
        calls->store->set(key, bytes_of(value, len));
        return MUSTER_OK;
    });
}

inline int store_get(void *context, const char *key, int64_t /*timeout_ms*/, muster_store_value *out) {
    auto *calls = static_cast<StoreCalls *>(context);
    return calls->guard("get", key, [&] {
        std::vector<uint8_t> value = calls->store->get(key);
        return muster_store_value_copy(value.data(), value.size(), out);
    });
}

inline int store_add(void *context, const char *key, int64_t delta, int64_t /*timeout_ms*/, int64_t *out_sum) {
    auto *calls = static_cast<StoreCalls *>(context);
    return calls->guard("add", key, [&] {
        *out_sum = calls->store->add(key, delta);
        return MUSTER_OK;
    });
}

inline int store_compare_set(void *context, const char *key, const void *expected, size_t expected_len, const void *desired,
                      size_t desired_len, int64_t /*timeout_ms*/, muster_store_value *out) {
    auto *calls = static_cast<StoreCalls *>(context);
    return calls->guard("compare_set", key, [&] {
        std::vector<uint8_t> value =
            calls->store->compareSet(key, bytes_of(expected, expected_len), bytes_of(desired, desired_len));
        return muster_store_value_copy(value.data(), value.size(), out);
    });
}

inline int store_remove(void *context, const char *key, int64_t /*timeout_ms*/, bool *out_deleted) {
    auto *calls = static_cast<StoreCalls *>(context);
    return calls->guard("delete", key, [&] {
        *out_deleted = calls->store->deleteKey(key);
        return MUSTER_OK;
    });
}

inline std::vector<std::string> list_of(const char *const *keys, size_t key_count) {
    return {keys, keys + key_count};
}

inline int store_check(void *context, const char *const *keys, size_t key_count, int64_t /*timeout_ms*/, bool *out_all) {
    auto *calls = static_cast<StoreCalls *>(context);
    return calls->guard("check", key_count > 0 ? keys[0] : "", [&] {
        *out_all = calls->store->check(list_of(keys, key_count));
        return MUSTER_OK;
    });
}

inline int store_wait(void *context, const char *const *keys, size_t key_count, int64_t timeout_ms) {
    auto *calls = static_cast<StoreCalls *>(context);
    return key_count == 0 ? MUSTER_OK : calls->guard("wait", keys[0], [&] {
        return calls->wait(list_of(keys, key_count), timeout_ms);
    });
}

inline muster_store_calls store_calls() {
    muster_store_calls calls = MUSTER_STORE_CALLS_INIT;
    calls.set = store_set;
    calls.get = store_get;
    calls.add = store_add;
    calls.compare_set = store_compare_set;
    calls.remove = store_remove;
    calls.check = store_check;
    calls.wait = store_wait;
    return calls;
}

} // namespace muster_backend
