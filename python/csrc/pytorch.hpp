// What differs between versions of PyTorch's headers, and nothing else does (docs/adr/0027-backend-for-pytorch.md): asked of the headers where they can be
// asked, else by the version.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/version.h>

#include <type_traits>

namespace muster_backend {

// From 2.12 on a coalesced reduce_scatter has a name of its own.
template <typename T, typename = void>
struct CoalescedReduceScatter {
    static constexpr T value = T::COALESCED;
};
template <typename T>
struct CoalescedReduceScatter<T, std::void_t<decltype(T::REDUCE_SCATTER_TENSOR_COALESCED)>> {
    static constexpr T value = T::REDUCE_SCATTER_TENSOR_COALESCED;
};

// The factor of PREMUL_SUM was NCCL's alone before 2.13.
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
using PreMulSum = c10d::NCCLPreMulSumSupplement;
#else
using PreMulSum = c10d::PreMulSumSupplement;
#endif

} // namespace muster_backend
