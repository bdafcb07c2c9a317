#include "planner/options.h"

#include <algorithm>
#include <map>
#include <sstream>

#include "core/problem.h"
#include "planner/plan.h"

namespace deconv {
namespace {

using Names = std::vector<std::string>;

const std::map<std::string, Names> kOlderNames{
    {"gather", {"simt"}},
    {"depthwise", {"depthwise"}},
    {"hopper", {"igemm_sm90", "wgrad_sm90"}},
    {"mma", {"igemm_sm80"}},
    {"narrow", {"small_channel"}},
    {"col2im", {"col2im"}},
    {"subpixel", {"sub_pixel"}},
    {"merged", {"group_merge"}},
    {"direct", {}},
    {"rows", {}},
};

bool contains(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Names all_names() {
  Names names;
  for (const Family& family : families()) {
    names.push_back(family.name);
    for (const std::string& option : family.options) names.push_back(std::string(family.name) + '.' + option);
  }
  return names;
}

[[noreturn]] void refuse(const char* variable, const std::string& rule, const char* value) {
  throw InvalidArgument(std::string("conv_transpose2d: the environment variable ") + variable + " must list " + rule +
                        ", separated by commas, but got '" + value + "'");
}

Names split(const char* value) {
  Names names;
  std::istringstream text(value ? value : "");
  for (std::string name; std::getline(text, name, ',');) names.push_back(name);
  return names;
}

}  // namespace

bool PlannerOptions::allows(const std::string& name) const {
  return (only.empty() || contains(only, name)) && !contains(without, name);
}

bool PlannerOptions::allows(const char* family, const char* option) const {
  return !contains(without, std::string(family) + '.' + option);
}

bool PlannerOptions::allows_all_options(const std::string& family) const {
  const std::string prefix = family + '.';
  return std::none_of(without.begin(), without.end(),
                      [&](const std::string& name) { return name.compare(0, prefix.size(), prefix) == 0; });
}

PlannerOptions PlannerOptions::excluding(const std::string& name) const {
  PlannerOptions options = *this;
  options.only.erase(std::remove(options.only.begin(), options.only.end(), name), options.only.end());
  options.without.push_back(name);
  return options;
}

std::string PlannerOptions::describe() const {
  std::string text = join(only);
  for (const std::string& name : without) text += (text.empty() ? "-" : ", -") + name;
  return text;
}

PlannerOptions parse_planner_options(const char* kernels) {
  PlannerOptions options;
  const Names valid = all_names();
  for (const std::string& name : split(kernels)) {
    const bool off = !name.empty() && name[0] == '-';
    const std::string bare = off ? name.substr(1) : name;
    if (!contains(valid, bare) || (!off && bare.find('.') != std::string::npos)) {
      refuse(kKernelsVariable, "kernel families, or families and options each behind a minus (" + join(valid) + ")",
             kernels);
    }
    (off ? options.without : options.only).push_back(bare);
  }
  if (!options.only.empty() && !options.without.empty()) {
    refuse(kKernelsVariable, "either names to allow or names behind a minus to switch off", kernels);
  }
  return options;
}

PlannerOptions parse_family_options(const char* families) {
  PlannerOptions options;
  for (const std::string& name : split(families)) {
    const auto known = kOlderNames.find(name);
    if (known == kOlderNames.end()) {
      Names valid;
      for (const auto& [older, newer] : kOlderNames) valid.push_back(older);
      refuse(kFamilyVariable, "kernel families (" + join(valid) + ")", families);
    }
    options.only.insert(options.only.end(), known->second.begin(), known->second.end());
  }
  if (families && *families != '\0' && options.only.empty()) options.only = {"simt"};  // only removed ones are named
  return options;
}

std::string join(const Names& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace deconv
