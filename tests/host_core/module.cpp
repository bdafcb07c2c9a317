// The torch-free host core as a Python module for the tests; built by CMakeLists.txt, not part of the wheel.
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "core/divisor.h"
#include "families/autotune.h"
#include "families/igemm_sm80/plan.h"
#include "families/igemm_sm90/plan.h"
#include "families/plan_cache.h"
#include "families/wgrad_sm90/plan_rs_nhwc.h"
#include "families/wgrad_sm90/plan_ss.h"
#include "lowerings/group_merge/plan.h"
#include "lowerings/repack.h"
#include "lowerings/sub_pixel/plan.h"
#include "planner/explain.h"

namespace py = pybind11;

namespace deconv {
namespace {

Problem problem_of(Direction direction, DType dtype, const Sizes& first, const Sizes& second, const Sizes& extent,
                   const ConvArgs& args, Layout layout) {
  const auto arg = [layout](const Sizes& size) {
    if (size.size() != 4) return TensorArg{size, Sizes(size.size(), 1)};
    const Tensor4 tensor = dense({size[0], size[1], size[2], size[3]}, layout);
    return TensorArg{size, {tensor.stride.begin(), tensor.stride.end()}};
  };
  switch (direction) {
    case Direction::kForward: return describe_forward(dtype, arg(first), arg(second), std::nullopt, args);
    case Direction::kGradInput: return describe_grad_input(dtype, arg(first), arg(second), extent, args);
    default: return describe_grad_weight(dtype, arg(first), arg(second), extent, args);
  }
}

// The plan inside a lowering's, or none.
const Plan* inner(const Plan& plan) {
  if (const auto* blocks = plan.get_if<SubPixelPlan>()) return blocks->inner.get();
  if (const auto* merged = plan.get_if<GroupMergePlan>()) return merged->inner.get();
  return nullptr;
}

// The type of the family's own plan.
std::string kernel(const Plan& plan) {
  std::string name = plan.tile->type().name();
  py::detail::clean_type_id(name);
  return name.substr(name.rfind(':') + 1);
}

// Steps in all, steps a split, splits: of the plans that share K out in equal runs of steps.
template <class... Types>
std::optional<std::array<int64_t, 3>> split(const Plan& plan) {
  std::optional<std::array<int64_t, 3>> found;
  const auto take = [&](const auto* one) {
    if (one) found = {one->steps, one->steps_per_split, one->splits};
  };
  (take(plan.get_if<Types>()), ...);
  return found;
}

// The instance of the kernel's template, where plans of one type have many.
std::optional<std::vector<int>> instance(const Plan& plan) {
  const auto* p = plan.get_if<IgemmSm90Plan>();
  if (!p) return std::nullopt;
  const bool major_m = p->weights == Sm90Weights::kMajorM;
  return std::vector<int>{p->tile.groups, p->tile.phases, p->tile.fold,
                          p->parts,       p->row_bytes,   static_cast<int>(p->source),
                          p->split > 1,   major_m,        p->to_blocks};
}

}  // namespace
}  // namespace deconv

PYBIND11_MODULE(_host_core, m) {
  using namespace deconv;
  py::enum_<Direction>(m, "Direction")
      .value("forward", Direction::kForward)
      .value("grad_input", Direction::kGradInput)
      .value("grad_weight", Direction::kGradWeight);
  py::enum_<DType>(m, "DType")
      .value("float16", DType::kFloat16)
      .value("bfloat16", DType::kBFloat16)
      .value("float32", DType::kFloat32)
      .value("float64", DType::kFloat64);
  py::enum_<Layout>(m, "Layout").value("contiguous", Layout::kContiguous).value("channels_last", Layout::kChannelsLast);

  py::class_<AxisGeometry>(m, "AxisGeometry")
      .def(py::init([](int source_size, int result_size, int kernel, int stride, int padding, int dilation,
                       bool is_forward) {
             return AxisGeometry{source_size, result_size, kernel, stride, padding, dilation, is_forward};
           }),
           py::arg("source_size"), py::arg("result_size"), py::arg("kernel"), py::arg("stride"), py::arg("padding"),
           py::arg("dilation"), py::arg("is_forward"))
      .def("phases", &AxisGeometry::phases)
      .def("planes", &AxisGeometry::planes)
      .def("phase_size", &AxisGeometry::phase_size);
  py::class_<AxisTaps>(m, "AxisTaps")
      .def_readonly("count", &AxisTaps::count)
      .def_readonly("first_tap", &AxisTaps::first_tap)
      .def_readonly("tap_step", &AxisTaps::tap_step)
      .def_readonly("first_shift", &AxisTaps::first_shift)
      .def_readonly("shift_step", &AxisTaps::shift_step);
  m.def("axis_taps", &axis_taps, py::arg("axis"), py::arg("phase"), py::arg("plane"));

  py::class_<ConvArgs>(m, "ConvArgs")
      .def(py::init([](Sizes stride, Sizes padding, Sizes output_padding, int64_t groups, Sizes dilation) {
             return ConvArgs{stride, padding, output_padding, groups, dilation};
           }),
           py::arg("stride") = Sizes{1}, py::arg("padding") = Sizes{0}, py::arg("output_padding") = Sizes{0},
           py::arg("groups") = 1, py::arg("dilation") = Sizes{1});
  py::class_<Problem>(m, "Problem")
      .def(py::init(&problem_of), py::arg("direction"), py::arg("dtype"), py::arg("first"), py::arg("second"),
           py::arg("extent") = Sizes{}, py::arg("args") = ConvArgs{}, py::arg("layout") = Layout::kContiguous)
      .def_readwrite("allow_tf32", &Problem::allow_tf32)
      .def_readwrite("unaligned_first", &Problem::unaligned_first)
      .def_readwrite("unaligned_second", &Problem::unaligned_second)
      .def_readwrite("has_bias", &Problem::has_bias)
      .def("set_strides",  // of "x", "w" or "y", in elements
           [](Problem& p, char tensor, std::array<int64_t, 4> strides) {
             (tensor == 'x' ? p.x : tensor == 'w' ? p.w : p.y).stride = strides;
           })
      .def("result_sizes", &Problem::result_sizes)
      .def("result_strides", &Problem::result_strides)
      .def("flops", &Problem::flops)
      .def("bytes", &Problem::bytes)
      .def("describe", &Problem::describe);
  py::register_exception<InvalidArgument>(m, "InvalidArgument", PyExc_RuntimeError);

  py::class_<TapPlace>(m, "TapPlace")
      .def_readonly("phase", &TapPlace::phase)
      .def_readonly("plane", &TapPlace::plane)
      .def_readonly("shift", &TapPlace::shift);
  m.def("tap_place", &tap_place, py::arg("axis"), py::arg("k"));
  m.def("window_shift", &window_shift, py::arg("axis"), py::arg("k"));
  m.def("without_idle_taps", &without_idle_taps, py::arg("axis"));
  py::class_<Device>(m, "Device")
      .def(py::init<>())
      .def_readwrite("capability", &Device::capability)
      .def_readwrite("has_wgmma", &Device::has_wgmma)
      .def_readwrite("has_mma", &Device::has_mma)
      .def_readwrite("multiprocessors", &Device::multiprocessors)
      .def_readwrite("shared_bytes_per_block", &Device::shared_bytes_per_block)
      .def_readwrite("partial_run_bytes", &Device::partial_run_bytes);
  m.def("partial_run_bytes", &partial_run_bytes, py::arg("peak_bandwidth"));
  py::class_<Plan>(m, "Plan")
      .def_property_readonly("kernel", &kernel)
      .def_property_readonly("inner", &inner, py::return_value_policy::reference_internal)
      .def_property_readonly("instance", &instance)
      .def_property_readonly("split", &split<WgradSm80Plan, WgradSsPlan, WgradRsNhwcPlan>)
      .def_readonly("workspace_bytes", &Plan::workspace_bytes)
      .def_readonly("estimate_ms", &Plan::estimate_ms)
      .def_property_readonly("launch", [](const Plan& plan) { return plan.tile->launch_description(); })
      .def("describe", [](const Plan& plan, DType dtype) { return describe(plan, dtype); }, py::arg("dtype"));
  py::class_<PlanMemory>(m, "PlanMemory")
      .def(py::init<>())
      .def_property_readonly("planned", &PlanMemory::planned)
      .def_property_readonly("remembered", &PlanMemory::remembered)
      .def(
          "find",
          [](PlanMemory& memory, const Problem& problem, int device_index, const Device& device) {
            return memory.find(problem, device_index, device, {});  // a copy
          },
          py::arg("problem"), py::arg("device_index") = 0, py::arg("device") = Device());
  m.def("quotient", [](int n, int64_t divisor) { return divide_by(divisor).quotient(n); });
  m.attr("WORKSPACE_LIMIT") = kWorkspaceLimit;
  m.attr("REPACK_LIMIT") = kRepackLimit;
  m.attr("TENSOR_CORE_MIN_CHANNELS") = kTensorCoreMinChannels;
  m.attr("TF32_MIN_FLOPS") = kTf32MinFlops;
  m.def("wants_tf32_answer", &wants_tf32_answer, py::arg("problem"), py::arg("device") = Device{});
  // `kernels` is what DECONV_KERNELS would hold.
  m.def(
      "make_plan",
      [](const Problem& problem, const Device& device, const std::string& kernels) {
        return make_plan(problem, device, parse_planner_options(kernels.c_str()));
      },
      py::arg("problem"), py::arg("device") = Device{}, py::arg("kernels") = "");
  // The plans that make_plan chooses from, of the families that list theirs.
  m.def(
      "candidates",
      [](const Problem& problem, const Device& device, const std::string& kernels) {
        std::vector<Candidate> considered;
        make_plan(problem, device, parse_planner_options(kernels.c_str()), &considered);
        std::vector<Plan> plans;
        for (const Candidate& candidate : considered) {
          if (candidate.plan) plans.push_back(*candidate.plan);
        }
        return plans;
      },
      py::arg("problem"), py::arg("device") = Device{}, py::arg("kernels") = "");
  py::class_<TunedPlan, std::shared_ptr<TunedPlan>>(m, "TunedPlan")
      .def_readonly("plan", &TunedPlan::plan)
      .def_property_readonly("timings", [](const TunedPlan& tuned) {  // tile, estimate ms, ms
        std::vector<std::tuple<std::string, double, double>> all;
        for (const Timing& one : tuned.timings) all.emplace_back(one.tile, one.estimate_ms, one.ms);
        return all;
      });
  m.def(
      "autotune",  // `time` stands for the GPU: a plan's ms, or None
      [](const Problem& problem, int64_t most, const TimePlan& time) { return autotune(problem, {}, {}, most, time); },
      py::arg("problem"), py::arg("most"), py::arg("time"));
  py::class_<Autotuner>(m, "Autotuner")
      .def(py::init<>())
      .def_property_readonly("candidates", &Autotuner::candidates)
      .def("set_candidates", &Autotuner::set_candidates)
      .def("find", [](const Autotuner& tuner,
                      const Problem& problem) { return std::const_pointer_cast<TunedPlan>(tuner.find(problem, 0)); })
      .def("keep", [](Autotuner& tuner, const Problem& problem, TunedPlan plan) {
        return std::const_pointer_cast<TunedPlan>(tuner.keep(problem, 0, std::move(plan)));
      });
  m.def(
      "explain",
      [](const Problem& problem, const Device& device, const std::string& kernels, const TunedPlan* tuned) {
        return explain(problem, device, parse_planner_options(kernels.c_str()), tuned);
      },
      py::arg("problem"), py::arg("device") = Device{}, py::arg("kernels") = "", py::arg("tuned") = nullptr);
}
