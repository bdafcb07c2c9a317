// The plans of the problems met last. A plan is arithmetic on the problem and the device alone, so it may be kept: the
// same layer comes again at every step, and the largest planners take some 10 µs.
#pragma once

#include <array>
#include <vector>

#include "plan.h"

namespace deconv {

// Not for several threads at once: each has its own.
class PlanMemory {
 public:
  // The plan of make_plan with these options. `device_index` stands for `device`, whose facts never change. Valid until
  // the next call.
  const Plan& find(const Problem& problem, int device_index, const Device& device, const PlannerOptions& options);

  int64_t planned() const { return planned_; }  // calls that were not remembered

 private:
  static constexpr size_t kEntries = 64;
  // Every number of a problem that a plan may depend on, and the device.
  using Key = std::array<int64_t, 48>;
  static Key key_of(const Problem& problem, int device_index);
  static size_t slot_of(const Key& key);

  struct Entry {
    Key key{};
    bool used = false;
    Plan plan;
  };
  std::vector<Entry> entries_;
  int64_t planned_ = 0;
};

}  // namespace deconv
