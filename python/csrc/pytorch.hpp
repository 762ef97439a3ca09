// What differs between versions of PyTorch's headers, and nothing else does (docs/adr/0027-backend-for-pytorch.md):
// asked of the headers where they can be asked, else by the version.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/version.h>

#include <type_traits>

namespace muster_backend {

// From 2.12 on a coalesced reduce_scatter has a name of its own.
template <typename T, typename = void> struct CoalescedReduceScatter { static constexpr T value = T::COALESCED; };
template <typename T> struct CoalescedReduceScatter<T, std::void_t<decltype(T::REDUCE_SCATTER_TENSOR_COALESCED)>> {
    static constexpr T value = T::REDUCE_SCATTER_TENSOR_COALESCED;
};

// The factor of PREMUL_SUM was NCCL's alone before 2.13.
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
using PreMulSum = c10d::NCCLPreMulSumSupplement;
#else
using PreMulSum = c10d::PreMulSumSupplement;
#endif

// What Backend and its options have from 2.14 on. Ours is defined without `override`, so that it compiles with all
// versions; where PyTorch has the function, it must have our signature, else its callers would pass ours by.
template <typename T, typename = void> struct GatherFits : std::true_type {};
template <typename T> struct GatherFits<T, std::void_t<decltype(&T::gather_single), decltype(&T::gather_into_tensor)>> {
    using Expected = c10::intrusive_ptr<c10d::Work> (T::*)(at::Tensor &, at::Tensor &, const c10d::GatherOptions &);
    static constexpr bool value = std::is_same_v<decltype(&T::gather_single), Expected> &&
                                  std::is_same_v<decltype(&T::gather_into_tensor), Expected>;
};
static_assert(GatherFits<c10d::Backend>::value, "gather_single() has another signature in this version of PyTorch");

template <typename T, typename = void> struct CloneFits : std::true_type {};
template <typename T>
struct CloneFits<T, std::void_t<decltype(&T::clone)>>
    : std::is_same<decltype(&T::clone), c10::intrusive_ptr<T> (T::*)() const> {};
static_assert(CloneFits<c10d::Backend::Options>::value,
              "Options::clone() has another signature in this version of PyTorch");

} // namespace muster_backend
