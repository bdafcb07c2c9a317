#include "planner/options.h"

#include <algorithm>
#include <sstream>

#include "core/problem.h"

namespace deconv {
namespace {

const std::vector<std::string> kFamilies{"gather", "depthwise", "hopper",   "mma",
                                         "narrow", "col2im",    "subpixel", "merged"};

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

bool PlannerOptions::allows(const std::string& family) const { return !forced() || contains(families, family); }

PlannerOptions PlannerOptions::without(const std::string& family) const {
  const auto others = [&](std::vector<std::string> names) {
    names.erase(std::remove(names.begin(), names.end(), family), names.end());
    return names;
  };
  PlannerOptions options{others(families)};
  if (!options.forced()) options.families = others(kFamilies);
  return options;
}

PlannerOptions parse_planner_options(const char* value) {
  PlannerOptions options;
  std::istringstream names(value ? value : "");
  for (std::string name; std::getline(names, name, ',');) {
    if (!contains(kFamilies, name)) {
      throw InvalidArgument(std::string("conv_transpose2d: the environment variable ") + kFamilyVariable +
                            " must list kernel families (" + join(kFamilies) + "), separated by commas, but got '" +
                            value + "'");
    }
    options.families.push_back(name);
  }
  return options;
}

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace deconv
