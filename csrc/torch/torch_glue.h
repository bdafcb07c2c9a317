// Every contact with torch: tensors to descriptions, allocation, stream, device guard, calls to ATen. Stable ABI only.
#pragma once

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "core/problem.h"

#ifdef DECONV_WITH_CUDA
// In libtorch_cuda, which CPU-only torch lacks: weak, so that one shared object loads under both.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device, void** stream);
#endif
// From torch 2.13 on: the text of the exception behind a failed call.
extern "C" __attribute__((weak)) const char* torch_exception_get_what_without_backtrace();

namespace deconv {

using torch::stable::Tensor;

// Throws if a call into torch failed, with the reason if this torch tells it.
inline void check(AOTITorchError code, const char* what) {
  if (code == AOTI_TORCH_SUCCESS) return;
  const char* reason = torch_exception_get_what_without_backtrace ? torch_exception_get_what_without_backtrace()
                                                                  : nullptr;
  throw std::runtime_error(std::string("conv_transpose2d: ") + what + " failed" + (reason ? ": " : "") +
                           (reason ? reason : ""));
}

inline DType dtype_of(const Tensor& tensor) {
  using torch::headeronly::ScalarType;
  switch (tensor.scalar_type()) {
    case ScalarType::Half: return DType::kFloat16;
    case ScalarType::BFloat16: return DType::kBFloat16;
    case ScalarType::Float: return DType::kFloat32;
    case ScalarType::Double: return DType::kFloat64;
    default: return DType::kOther;
  }
}

inline TensorArg describe(const Tensor& tensor) {
  const auto size = tensor.sizes(), stride = tensor.strides();
  return {{size.begin(), size.end()}, {stride.begin(), stride.end()}};
}

inline std::string device_name(const Tensor& tensor) {
  const auto device = tensor.device();
  switch (device.type()) {
    case torch::headeronly::DeviceType::CPU: return "cpu";
    case torch::headeronly::DeviceType::CUDA: return "cuda:" + std::to_string(device.index());
    case torch::headeronly::DeviceType::Meta: return "meta";
    default: return "device type " + std::to_string(static_cast<int>(device.type()));
  }
}

// All operands of one call share the first one's element type and device.
inline void check_alike(const char* first_name, const Tensor& first, const char* name, const Tensor& other) {
  if (other.scalar_type() != first.scalar_type()) {
    throw InvalidArgument(std::string("conv_transpose2d: ") + name + " must have " + first_name + "'s dtype " +
                          torch::headeronly::toString(first.scalar_type()) + ", but got " +
                          torch::headeronly::toString(other.scalar_type()));
  }
  if (device_name(other) != device_name(first)) {
    throw InvalidArgument(std::string("conv_transpose2d: ") + name + " must be on " + first_name + "'s device " +
                          device_name(first) + ", but got " + device_name(other));
  }
}

inline Tensor empty_strided(const std::vector<int64_t>& size, const std::vector<int64_t>& stride, const Tensor& like) {
  int32_t dtype = 0, device_type = 0;
  check(aoti_torch_get_dtype(like.get(), &dtype), "reading the dtype");
  check(aoti_torch_get_device_type(like.get(), &device_type), "reading the device");
  AtenTensorHandle handle = nullptr;
  check(aoti_torch_empty_strided(static_cast<int64_t>(size.size()), size.data(), stride.data(), dtype, device_type,
                                 like.get_device_index(), &handle),
        "allocating a result or workspace");
  return Tensor(handle);
}

inline void* current_stream([[maybe_unused]] int32_t device) {
  void* stream = nullptr;
#ifdef DECONV_WITH_CUDA
  if (aoti_torch_get_current_cuda_stream == nullptr) {
    throw std::runtime_error("conv_transpose2d: this torch has no CUDA");
  }
  check(aoti_torch_get_current_cuda_stream(device, &stream), "asking for the current stream");
#endif
  return stream;
}

// Height and width of an image or a kernel, as the operators for gradients take them.
inline Sizes extent_of(const Tensor& tensor) { return {tensor.size(-2), tensor.size(-1)}; }

template <class... Args>
Tensor call_aten(const char* name, const char* overload, const Args&... args) {
  std::array<StableIValue, sizeof...(Args)> stack{torch::stable::detail::from(args)...};
  check(torch_call_dispatcher(name, overload, stack.data(), TORCH_ABI_VERSION), name);
  return torch::stable::detail::to<Tensor>(stack[0]);
}

}  // namespace deconv
