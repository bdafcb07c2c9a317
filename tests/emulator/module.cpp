// The kernels on the CPU, as a Python module for the tests: one call of the launchers with a plan of the host core.
#include <pybind11/pybind11.h>

#include <stdexcept>

#include "examples.h"
#include "families/launch.h"
#include "machine.h"

namespace py = pybind11;

namespace {

void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

void check(cudaError_t error) {
  emulator::finish();
  const std::string text = emulator::take_error();
  if (!text.empty()) throw std::runtime_error(text);
  if (error != cudaSuccess) throw std::runtime_error("launch returned error " + std::to_string(error));
}

void launch(const deconv::Problem& problem, const deconv::Plan& plan, uintptr_t x, uintptr_t w, uintptr_t y,
            uintptr_t bias, uintptr_t result, uintptr_t workspace, uint64_t seed) {
  emulator::set_seed(seed);
  check(deconv::launch(problem, plan,
                       {pointer(x), pointer(w), pointer(y), pointer(bias), pointer(result), pointer(workspace)},
                       nullptr));
}

void launch_example(deconv::Mistake mistake, uintptr_t source, uintptr_t copy, uintptr_t result, uint64_t seed) {
  emulator::set_seed(seed);
  check(deconv::launch_example(mistake, static_cast<const uint32_t*>(pointer(source)),
                               static_cast<uint32_t*>(pointer(copy)), static_cast<float*>(pointer(result))));
}

}  // namespace

PYBIND11_MODULE(_emulator, m) {
  py::module_::import("_host_core");  // its types
  py::enum_<deconv::Mistake>(m, "Mistake")
      .value("NONE", deconv::Mistake::kNone)
      .value("NO_FENCE", deconv::Mistake::kNoFence)
      .value("NO_SYNC", deconv::Mistake::kNoSync)
      .value("NO_WAIT", deconv::Mistake::kNoWait)
      .value("READS_BULK_EARLY", deconv::Mistake::kReadsBulkEarly)
      .value("OVERWRITES_EARLY", deconv::Mistake::kOverwritesEarly)
      .value("RELEASES_EARLY", deconv::Mistake::kReleasesEarly)
      .value("READS_EARLY", deconv::Mistake::kReadsEarly)
      .value("DEADLOCK", deconv::Mistake::kDeadlock)
      .value("EXPECTS_TOO_MUCH", deconv::Mistake::kExpectsTooMuch)
      .value("MISALIGNED", deconv::Mistake::kMisaligned)
      .value("OUTSIDE", deconv::Mistake::kOutside)
      .value("UNWRITTEN", deconv::Mistake::kUnwritten)
      .value("BEHIND_ARRAY", deconv::Mistake::kBehindArray)
      .value("TOO_MANY_REGISTERS", deconv::Mistake::kTooManyRegisters);
  m.def("launch_example", &launch_example, py::arg("mistake"), py::arg("source"), py::arg("copy"), py::arg("result"),
        py::arg("seed") = 0);
  m.def("launch", &launch, py::arg("problem"), py::arg("plan"), py::arg("x"), py::arg("w"), py::arg("y"),
        py::arg("bias"), py::arg("result"), py::arg("workspace"), py::arg("seed") = 0);
}
