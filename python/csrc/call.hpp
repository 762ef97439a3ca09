// Tensors as libmuster sees them, and what one call borrows of them. Tensors that are not contiguous, and lists whose tensors do not
// lie one after the other, go through a copy.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <functional>

#include "group.hpp"

namespace muster_backend {

using at::Tensor;
using c10d::ReduceOp;
using Tensors = std::vector<Tensor>;

inline muster_type type_of(at::ScalarType type) {
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

inline Elements moved(const Tensor &tensor) {
    muster_type type = type_of(tensor.scalar_type());
    return type == MUSTER_TYPE_COUNT ? Elements{MUSTER_UINT8, static_cast<size_t>(tensor.element_size())}
                                     : Elements{type, static_cast<size_t>(tensor.element_size()) / muster_type_bytes(type)};
}

inline Elements reduced(const Tensor &tensor) {
    muster_type type = type_of(tensor.scalar_type());
    TORCH_CHECK_TYPE(type != MUSTER_TYPE_COUNT, "the backend muster does not reduce tensors of type ",
                     tensor.scalar_type());
    return {type, static_cast<size_t>(tensor.element_size()) / muster_type_bytes(type)};
}

inline size_t count_of(const Tensor &tensor, const Elements &elements) {
    return static_cast<size_t>(tensor.numel()) * elements.per_element;
}

// Truth values add up to whether any is true, and are multiplied to whether all are.
inline muster_reduction reduction_of(const ReduceOp &operation, const Tensor &tensor) {
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

inline void check_tensor(const Tensor &tensor) {
    TORCH_CHECK(tensor.device().is_cpu(), "the backend muster takes tensors of the CPU; this one is on ",
                tensor.device());
    TORCH_CHECK(tensor.layout() == at::kStrided, "the backend muster takes dense tensors for this call");
}

inline const Tensor &only(const Tensors &tensors) {
    TORCH_CHECK(tensors.size() == 1, "the backend muster takes one tensor a call, not ", tensors.size());
    check_tensor(tensors[0]);
    return tensors[0];
}

// ---- one call ----

// What runs: `start` makes libmuster's call (NULL: blocks), `after` brings results to where they belong.
struct Call {
    std::function<int(muster_group *, muster_work **)> start;
    std::vector<std::function<void()>> after;
    Tensors kept; // borrowed by the call
    Tensors outputs;

    void then(std::function<void()> one) { after.push_back(std::move(one)); }

    // It has ended: why it failed, or null, with the results in their places. What it borrowed is given back.
    std::exception_ptr conclude(Group &group, int code, const char *detail) {
        std::exception_ptr error;
        try {
            if (code != MUSTER_OK) {
                error = group.reason(code, detail);
            } else if (!after.empty()) {
                at::NoGradGuard no_grad;
                for (const auto &one : after) {
                    one();
                }
            }
        } catch (...) {
            error = std::current_exception();
        }
        kept.clear();
        after.clear();
        return error;
    }
};

// A tensor whose elements lie one after the other in their order, in its place or in a copy that is brought back. In
// their order: another rank's tensor may have other strides.
inline Tensor contiguous_output(Call &call, const Tensor &tensor) {
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
    call.then([tensor, copy] { Tensor(tensor).copy_(copy); });
    return copy;
}

inline Tensor contiguous_input(Call &call, const Tensor &tensor) {
    Tensor dense = tensor.contiguous();
    call.kept.push_back(dense);
    return dense;
}

inline int64_t numel_of(const Tensors &tensors) {
    int64_t sum = 0;
    for (const Tensor &tensor : tensors) {
        sum += tensor.numel();
    }
    return sum;
}

// Do the tensors lie one after the other in memory?
inline bool lie_in_a_row(const Tensors &tensors) {
    const auto *at = tensors.empty() ? nullptr : static_cast<const char *>(tensors[0].data_ptr());
    for (const Tensor &tensor : tensors) {
        if (!tensor.is_contiguous() || tensor.data_ptr() != at) {
            return false;
        }
        at += tensor.nbytes();
    }
    return true;
}

inline void check_list(const Tensors &tensors, const Tensor &like, size_t size, const char *what) {
    TORCH_CHECK(tensors.size() == size, what, ": ", tensors.size(), " tensors for a group of ", size, " ranks");
    for (const Tensor &tensor : tensors) {
        check_tensor(tensor);
        TORCH_CHECK(tensor.scalar_type() == like.scalar_type(), what, ": tensors of type ", tensor.scalar_type(),
                    " and ", like.scalar_type());
    }
}

// Afterwards the list gets what is in `whole`.
inline void hand_out(Call &call, const Tensors &tensors, const Tensor &whole) {
    call.then([tensors, whole] {
        int64_t at = 0;
        for (const Tensor &tensor : tensors) {
            Tensor(tensor).copy_(whole.narrow(0, at, tensor.numel()).view(tensor.sizes()));
            at += tensor.numel();
        }
    });
}

// One buffer for a list of results, which are handed out afterwards.
inline Tensor gathered_output(Call &call, const Tensors &tensors) {
    call.kept.insert(call.kept.end(), tensors.begin(), tensors.end());
    if (lie_in_a_row(tensors)) {
        return tensors[0];
    }
    Tensor whole = at::empty({numel_of(tensors)}, tensors[0].options().memory_format(std::nullopt));
    hand_out(call, tensors, whole);
    return whole;
}

// One buffer with all of a list.
inline Tensor gathered_input(Call &call, const Tensors &tensors) {
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

inline std::vector<size_t> counts_of(const Tensors &tensors, const Elements &elements) {
    std::vector<size_t> counts;
    counts.reserve(tensors.size());
    for (const Tensor &tensor : tensors) {
        counts.push_back(count_of(tensor, elements));
    }
    return counts;
}

inline bool are_equal(const std::vector<size_t> &counts) {
    for (size_t count : counts) {
        if (count != counts[0]) {
            return false;
        }
    }
    return true;
}

} // namespace muster_backend
