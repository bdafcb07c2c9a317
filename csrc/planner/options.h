// Which kernel families may serve: all of them, or those that DECONV_FAMILY names, to measure or test one by itself.
#pragma once

#include <string>
#include <vector>

namespace deconv {

inline constexpr const char* kFamilyVariable = "DECONV_FAMILY";

struct PlannerOptions {
  std::vector<std::string> families;  // empty: all

  bool forced() const { return !families.empty(); }
  bool allows(const std::string& family) const;
  PlannerOptions without(const std::string& family) const;  // all others, where it is the only one
};

// From the variable's value, names separated by commas; null and "" allow all. Raises InvalidArgument.
PlannerOptions parse_planner_options(const char* value);

std::string join(const std::vector<std::string>& names);

}  // namespace deconv
