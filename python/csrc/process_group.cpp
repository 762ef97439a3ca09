// The backend "muster" of torch.distributed: c10d's calls over a process group of libmuster.
//
// A blocking call (asyncOp false) runs in the caller's thread, with Python's lock released. A call that returns a work
// object runs in the group's progress thread, and muster_work_then() completes it. Sends and receives go on while
// somebody waits for them, as libmuster's do.
//
// Compiled for one minor version of PyTorch and of Python, since c10d has no stable interface. The other files of this
// folder are its rooms: pytorch, python, store, group, call, work, each of which includes those before it.
#include "old_libc.hpp"

#include <torch/python.h>

#include <pybind11/chrono.h>

#include <iterator>

#include <linux/membarrier.h>

#include "pytorch.hpp"
#include "work.hpp"

namespace muster_backend {

using Milliseconds = std::chrono::milliseconds;

class ProcessGroupMuster : public c10d::Backend {
  public:
    struct Options : c10d::Backend::Options {
        explicit Options(Milliseconds timeout = kBackendDefaultTimeout) : c10d::Backend::Options("muster", timeout) {}

        // For split_group(), which changes what it hands to the child.
        c10::intrusive_ptr<c10d::Backend::Options> clone() const { return c10::make_intrusive<Options>(*this); }
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
        Tensor whole = gathered_input(call, tensors);
        if (!lie_in_a_row(tensors)) {
            hand_out(call, tensors, whole);
        }
        Elements elements = reduced(tensors[0]);
        size_t count = static_cast<size_t>(numel_of(tensors)) * elements.per_element;
        muster_reduction reduction = reduction_of(options.reduceOp, tensors[0]);
        TORCH_CHECK(options.reduceOp != ReduceOp::PREMUL_SUM, "all_reduce_coalesced: PREMUL_SUM is for one tensor");
        call.start = [=](muster_group *group, muster_work **work) {
            return muster_all_reduce(group, whole.data_ptr(), whole.data_ptr(), count, elements.type, reduction, work);
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
        return last ? last : nothing(CoalescedReduceScatter<OpType>::value);
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
        return gather_into(from, to, inputs, options, std::move(call));
    }

    // Into one tensor of the root's, which the other ranks have none of.
    c10::intrusive_ptr<Work> gather_single(Tensor &output, Tensor &input, const c10d::GatherOptions &options) {
        check_tensor(input);
        Call call;
        Tensor from = contiguous_input(call, input), to;
        if (options.rootRank == getRank()) {
            check_tensor(output);
            TORCH_CHECK(input.scalar_type() == output.scalar_type(), "gather: tensors of type ", input.scalar_type(),
                        " and ", output.scalar_type());
            TORCH_CHECK(output.numel() == input.numel() * getSize(), "gather: the output has ", output.numel(),
                        " elements, ", getSize(), " times ", input.numel(), " are needed");
            call.outputs = {output};
            to = contiguous_output(call, output);
        }
        return gather_into(from, to, Tensors{input}, options, std::move(call));
    }

    c10::intrusive_ptr<Work> gather_into_tensor(Tensor &output, Tensor &input, const c10d::GatherOptions &options) {
        return gather_single(output, input, options);
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
            std::rethrow_exception(monitored_failure(code, muster_detail(), last_failure(), getRank(), all_ranks, timeout_ms));
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
        use_timeout(c10d::kUnsetTimeout);
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
        for (Call &one : *noted) {
            std::move(one.after.begin(), one.after.end(), std::back_inserter(call.after));
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
                // A connection of its own: waiting in the parent's would keep its other users out.
                return c10::make_intrusive<ProcessGroupMuster>(store->clone(), static_cast<int>(i),
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
        const auto *given = reinterpret_cast<const PreMulSum *>(operation.supplement_.get());
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

    // `to`: undefined on other ranks than the root.
    c10::intrusive_ptr<Work> gather_into(const Tensor &from, const Tensor &to, const Tensors &inputs,
                                         const c10d::GatherOptions &options, Call call) {
        Elements elements = moved(from);
        auto root = rank_of(options.rootRank);
        call.start = [=](muster_group *group, muster_work **work) {
            return muster_gather(group, from.data_ptr(), to.defined() ? to.data_ptr() : nullptr,
                                 count_of(from, elements), elements.type, root, work);
        };
        return run(OpType::GATHER, "muster:gather", inputs, options, std::move(call));
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
        use_timeout(c10d::kUnsetTimeout);
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
        auto start_into = [=, number = static_cast<uint32_t>(tag)](const std::shared_ptr<muster_message> &into) {
            return [=](muster_group *group, muster_work **work) {
                return muster_receive(group, dense.data_ptr(), dense.nbytes(), MUSTER_UINT8, from, number, into.get(), work);
            };
        };
        if (coalesced_) {
            call.start = start_into(nullptr);
            return note(type, std::move(call));
        }
        auto work = c10::make_intrusive<MessageWork>(getRank(), type, title, std::optional<Tensors>(tensors), group_,
                                                     Call());
        call.start = start_into(work->message());
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

} // namespace muster_backend

using muster_backend::ProcessGroupMuster;

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
    namespace py = pybind11;
    using Class = c10::intrusive_ptr<ProcessGroupMuster>;
    (void)py::module_::import("torch.distributed");
    using Options = ProcessGroupMuster::Options;
    py::class_<Options, c10::intrusive_ptr<Options>, c10d::Backend::Options>(module, "Options")
        .def(py::init<std::chrono::milliseconds>(), py::arg("timeout") = kBackendDefaultTimeout);
    py::class_<ProcessGroupMuster, Class, c10d::Backend>(module, "ProcessGroupMuster")
        .def_property_readonly("options", &ProcessGroupMuster::options,
                               "Its options: _timeout, group_name, global_ranks_in_group.");
    module.def("create", &muster_backend::create, py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"),
               py::arg("name"), py::call_guard<py::gil_scoped_release>(),
               "A process group of libmuster whose ranks meet in `store`.");
    module.def(
        "set_errors",
        [](py::function made, py::function monitored) {
            muster_backend::make_error = made.release().ptr();
            muster_backend::make_monitored_error = monitored.release().ptr();
        },
        "The functions of muster/errors.py that make what failed calls raise.");
    module.def("end_python", &muster_backend::end_python, "For atexit: threads of the library leave Python alone from now on.");
    (void)std::atexit(muster_backend::Group::leave_all);
    // The library asks for this when it makes a group. Here the process has one thread yet; when it has several, the kernel takes more than 10 ms.
    (void)syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0);
}
