// The only file that knows all families.
#include "planner/plan.h"

namespace deconv {

Family depthwise_family();
Family wgrad_sm90_family();
Family igemm_sm90_family();
Family igemm_sm80_family();
Family col2im_family();
Family small_channel_family();
Family sub_pixel_family();
Family group_merge_family();
Family simt_family();

const std::vector<Family>& families() {
  static const std::vector<Family> all{
      depthwise_family(),     wgrad_sm90_family(), igemm_sm90_family(),  igemm_sm80_family(), col2im_family(),
      small_channel_family(), sub_pixel_family(),  group_merge_family(), simt_family(),
  };
  return all;
}

Plan make_plan(const Problem& problem, const Device& device, const PlannerOptions& options,
               std::vector<Candidate>* considered) {
  Search search{problem, device, options, considered};
  for (const Family& family : families()) {
    if (options.allows(family.name)) family.plan(search);
  }
  if (!search.best) families().back().plan(search);
  return *search.best;
}

}  // namespace deconv
