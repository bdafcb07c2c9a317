// Which kernels and planner options may serve: all, or what DECONV_KERNELS leaves, to measure or test one by itself.
#pragma once

#include <string>
#include <vector>

namespace deconv {

inline constexpr const char* kKernelsVariable = "DECONV_KERNELS";
inline constexpr const char* kFamilyVariable = "DECONV_FAMILY";  // with the families' older names

// Names are those of csrc/families and csrc/lowerings, and of their options: "igemm_sm90", "igemm_sm90.ping_pong".
struct PlannerOptions {
  std::vector<std::string> only;     // empty: everything
  std::vector<std::string> without;  // of these

  bool restricted() const { return !only.empty() || !without.empty(); }
  bool allows(const std::string& name) const;               // a family or a lowering
  bool allows(const char* family, const char* option) const;  // an option of an allowed family
  bool allows_all_options(const std::string& family) const;
  PlannerOptions excluding(const std::string& name) const;  // all others, where it is the only one
  std::string describe() const;  // as DECONV_KERNELS has it
};

// From the variable's value: names separated by commas, each allowed or, behind a minus, switched off; null and ""
// allow all. Raises InvalidArgument for an unknown name, and where both forms are mixed.
PlannerOptions parse_planner_options(const char* kernels);
// The same for DECONV_FAMILY.
PlannerOptions parse_family_options(const char* families);

std::string join(const std::vector<std::string>& names);

}  // namespace deconv
