#include "torch/device_call.h"

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <sstream>

#include "families/autotune.h"
#include "families/plan_cache.h"
#include "planner/explain.h"
#include "torch/fallback.h"
#include "torch/precision.h"

#ifdef DECONV_WITH_CUDA
#include "families/launch.h"
#include "launch/capability.h"
#include "torch/plan_timer.h"
#endif

namespace deconv {
namespace {

#ifdef DECONV_WITH_CUDA

constexpr int kDevices = 64;

Device query(int index) {
  Device device;
  cudaDeviceProp properties{};
  int value = 0;
  if (cudaGetDeviceProperties(&properties, index) == cudaSuccess) device.name = properties.name;
  const auto attribute = [&](cudaDeviceAttr which) {
    return cudaDeviceGetAttribute(&value, which, index) == cudaSuccess ? value : 0;
  };
  device.capability = 10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor);
#ifdef DECONV_SM90
  device.has_wgmma = device.capability == 90;
#else
  device.has_wgmma = false;
#endif
  const torch::stable::accelerator::DeviceGuard guard(index);
  device.has_mma = kernels_capability() >= 80;
  device.multiprocessors = attribute(cudaDevAttrMultiProcessorCount);
  device.shared_bytes_per_block = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  // Two transfers a clock (kHz) on each line of the bus.
  const double lines = attribute(cudaDevAttrGlobalMemoryBusWidth), clock = 1e3 * attribute(cudaDevAttrMemoryClockRate);
  if (lines * clock > 0) device.partial_run_bytes = partial_run_bytes(2 * clock * lines / 8);
  return device;
}

// Queried at a device's first use: every call needs it for its plan.
const Device& device_of(int index) {
  static std::array<std::once_flag, kDevices> once;
  static std::array<Device, kDevices> devices;
  if (index < 0 || index >= kDevices) {
    throw std::runtime_error("conv_transpose2d: no CUDA device " + std::to_string(index));
  }
  std::call_once(once[index], [&] { devices[index] = query(index); });
  return devices[index];
}

#endif

}  // namespace

bool has_kernels([[maybe_unused]] int64_t device) {
#ifdef DECONV_WITH_CUDA
  static std::array<std::atomic<char>, kDevices> known{};  // 0: not asked yet, 1: yes, 2: no
  if (device < 0 || device >= kDevices) return false;
  if (known[device] == 0) {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || device >= count) return false;
    const torch::stable::accelerator::DeviceGuard guard(static_cast<int32_t>(device));
    known[device] = kernels_capability() > 0 ? 1 : 2;
  }
  return known[device] == 1;
#else
  return false;
#endif
}

namespace {

bool has_kernels_for(DType dtype, const Tensor& operand) {
  return dtype != DType::kOther && operand.is_cuda() && has_kernels(operand.get_device_index());
}

std::string name_operand(const Tensor& operand) {
  return device_name(operand) + " and " + torch::headeronly::toString(operand.scalar_type());
}

}  // namespace

bool kernels_serve(DType dtype, const Tensor& operand) {
  const bool serve = has_kernels_for(dtype, operand);
  if (!serve && operand.is_cuda()) warn_unserved(name_operand(operand));
  return serve;
}

namespace {

PlannerOptions read_planner_options() {
  const char *const kernels = std::getenv(kKernelsVariable), *const families = std::getenv(kFamilyVariable);
  if (families == nullptr || *families == '\0') return parse_planner_options(kernels);
  const bool both = kernels != nullptr && *kernels != '\0';
  const PlannerOptions options = both ? parse_planner_options(kernels) : parse_family_options(families);
  const std::string advice = std::string(kFamilyVariable) + " is deprecated" +
                             (both ? " and ignored beside " : ": set ") + kKernelsVariable + '=' + options.describe();
  aoti_torch_warn(__func__, __FILE__, __LINE__, advice.c_str());
  return options;
}

// DECONV_KERNELS, or DECONV_FAMILY, read once a process.
const PlannerOptions& planner_options() {
  static const PlannerOptions options = read_planner_options();
  return options;
}

Autotuner& autotuner() {
  static Autotuner& one = *new Autotuner;  // never destroyed: threads may outlive static objects
  return one;
}

// The GPU that a call on `operand` is planned for; none if it goes to ATen. Meta tensors are planned for GPU 0.
std::optional<Device> planning_device(DType dtype, const Tensor& operand) {
  const bool meta = device_name(operand) == "meta" && dtype != DType::kOther;
#ifdef DECONV_WITH_CUDA
  if (meta && has_kernels(0)) return device_of(0);
  if (has_kernels_for(dtype, operand)) return device_of(operand.get_device_index());
#endif
  return meta ? std::optional(Device{}) : std::nullopt;
}

#ifdef DECONV_WITH_CUDA

// One call's plan on its way to the GPU.
class PlannedRun {
 public:
  PlannedRun(const Problem& problem, const Operands& operands, const Tensor& operand)
      : problem_(problem),
        operands_(operands),
        operand_(operand),
        index_(operand.get_device_index()),
        stream_(static_cast<cudaStream_t>(current_stream(index_))) {}

  cudaError_t run() {
    thread_local PlanMemory memory;
    const Device& device = device_of(index_);
    const int64_t candidates = autotuner().candidates();
    if (candidates > 0) {
      std::shared_ptr<const TunedPlan> tuned = autotuner().find(problem_, index_);
      if (!tuned && !is_capturing(stream_)) tuned = autotuner().keep(problem_, index_, tune(device, candidates));
      if (tuned) return run(tuned->plan);
    }
    return run(memory.find(problem_, index_, device, planner_options()));
  }

 private:
  cudaError_t run(const Plan& plan) {
    std::optional<Tensor> workspace;
    Operands operands = operands_;
    if (plan.workspace_bytes > 0) {
      workspace = empty_strided({plan.workspace_bytes / element_size(problem_.dtype)}, {1}, operand_);
      operands.workspace = workspace->data_ptr();
    }
    return launch(problem_, plan, operands, stream_);
  }

  TunedPlan tune(const Device& device, int64_t candidates) {
    PlanTimer timer(operand_, problem_.dtype, stream_);
    return autotune(problem_, device, planner_options(), candidates, [&](const Plan& plan) -> std::optional<double> {
      try {
        return timer.time([&] { return run(plan); });
      } catch (const std::runtime_error&) {  // no memory for its workspace
        return std::nullopt;
      }
    });
  }

  const Problem& problem_;
  const Operands& operands_;
  const Tensor& operand_;
  int32_t index_;
  cudaStream_t stream_;
};

#endif

bool is_unaligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 != 0; }

}  // namespace

int64_t set_autotune_candidates(int64_t candidates) { return autotuner().set_candidates(candidates); }

Tensor run(Problem problem, const Tensor& operand, const Inputs& inputs) {
#ifdef DECONV_WITH_CUDA
  const int32_t index = operand.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(index);
  Tensor result = empty_strided(problem.result_sizes(), problem.result_strides(), operand);
  if (problem.result().numel() == 0) return result;
  problem.allow_tf32 = wants_tf32_answer(problem, device_of(index)) && tf32_allowed();
  problem.unaligned_first = is_unaligned(operand.data_ptr());
  problem.unaligned_second = is_unaligned(problem.direction == Direction::kGradWeight ? inputs.y : inputs.w);
  const Operands operands{inputs.x, inputs.w, inputs.y, inputs.bias, result.data_ptr(), nullptr};
  const cudaError_t error = PlannedRun(problem, operands, operand).run();
  if (error != cudaSuccess) {
    throw std::runtime_error("conv_transpose2d: the launch failed (" + std::string(cudaGetErrorString(error)) +
                             ") for " + problem.describe());
  }
  return result;
#else
  (void)inputs;
  (void)operand;
  throw std::runtime_error("conv_transpose2d: built without CUDA kernels, asked for " + problem.describe());
#endif
}

bool plans_for(DType dtype, const Tensor& operand) { return planning_device(dtype, operand).has_value(); }

std::string explain_on(Problem problem, const Tensor& operand, const Tensor& other, bool json) {
  const std::optional<Device> device = planning_device(problem.dtype, operand);
  if (!device) {
    const std::string reason = "this build has no kernels for " + name_operand(operand);
    if (!json) return problem.describe() + "\n  plan: ATen, for " + reason + '\n';
    return "{\"device\": " + json_string(device_name(operand)) + ", \"reason\": " + json_string(reason) + '}';
  }
  if (problem.out_channels == 0) return problem.describe() + "\n  plan: none, the weight has no output channels\n";
  problem.allow_tf32 = wants_tf32_answer(problem, *device) && tf32_allowed();
  problem.unaligned_first = is_unaligned(operand.data_ptr());
  problem.unaligned_second = is_unaligned(other.data_ptr());
  std::shared_ptr<const TunedPlan> tuned;
  if (autotuner().candidates() > 0)
    tuned = autotuner().find(problem, operand.is_cuda() ? operand.get_device_index() : 0);
  return (json ? plan_json : explain)(problem, *device, planner_options(), tuned.get());
}

std::string build_info() {
  std::ostringstream text;
#ifdef DECONV_WITH_CUDA
  text << "cuda " << CUDART_VERSION / 1000 << '.' << CUDART_VERSION % 1000 / 10 << "; architectures "
       << DECONV_CUDA_ARCHS;
#else
  text << "no CUDA kernels";
#endif
  text << "; stable ABI of torch " << (TORCH_TARGET_VERSION >> 56) << '.' << (TORCH_TARGET_VERSION >> 48 & 0xff);
  return text.str();
}

}  // namespace deconv
