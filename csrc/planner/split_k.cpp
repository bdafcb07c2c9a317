#include "planner/split_k.h"

#include <algorithm>

#include "planner/cost_model.h"

namespace deconv {

SplitK split_evenly(int64_t steps, int64_t splits) {
  const int64_t per_split = std::max<int64_t>(1, ceil_div(steps, splits));
  const int filled = std::max<int64_t>(1, ceil_div(steps, per_split));
  return {per_split, filled};
}

std::optional<SplitK> choose_splits(const SplitLimits& limits, int64_t at_once, int waves,
                                    const std::function<double(const SplitK&)>& cost) {
  const int64_t least = ceil_div(limits.steps, limits.most_steps);
  const int64_t most = std::min(limits.most_splits, std::max(least, limits.steps / limits.least_steps));
  if (least > most || limits.tiles * most > INT32_MAX / 16) return std::nullopt;
  std::optional<SplitK> best;
  double best_cost = 0;
  for (int wave = 0; wave <= waves; ++wave) {
    const int64_t splits = wave == 0 ? 1 : wave * at_once / limits.tiles;
    const SplitK split = split_evenly(limits.steps, std::clamp(splits, least, most));
    if (best && split.splits == best->splits) continue;
    const double its_cost = cost(split);
    if (best && its_cost >= best_cost) continue;
    best = split;
    best_cost = its_cost;
  }
  return best;
}

}  // namespace deconv
