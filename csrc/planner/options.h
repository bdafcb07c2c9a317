// Which families, lowerings and planner options may serve: all, or those that DECONV_KERNELS leaves. Isolates one to
// measure or test it.
#pragma once

#include <string>
#include <vector>

namespace deconv {

inline constexpr const char* kKernelsVariable = "DECONV_KERNELS";
inline constexpr const char* kFamilyVariable = "DECONV_FAMILY";  // accepts the families' older names

// Names are those of csrc/families and csrc/lowerings, and of their options: "igemm_sm90", "igemm_sm90.ping_pong".
struct PlannerOptions {
  std::vector<std::string> only;     // empty: everything
  std::vector<std::string> without;  // switched off

  bool restricted() const { return !only.empty() || !without.empty(); }
  bool allows(const std::string& name) const;               // a family or a lowering
  bool allows(const char* family, const char* option) const;  // an option of an allowed family
  bool allows_all_options(const std::string& family) const;
  PlannerOptions excluding(const std::string& name) const;  // without this one; all others if `only` has no other
  std::string describe() const;  // in the syntax of DECONV_KERNELS
};

// Parses DECONV_KERNELS: names separated by commas, each allowed or, behind a minus, switched off; null and "" allow
// all. Raises InvalidArgument for an unknown name and for a mix of both forms.
PlannerOptions parse_planner_options(const char* kernels);
// Parses DECONV_FAMILY.
PlannerOptions parse_family_options(const char* families);

std::string join(const std::vector<std::string>& names);

}  // namespace deconv
