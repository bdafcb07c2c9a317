// Planners of the col2im family, and what its launchers ask them. Family: few result channels, strided.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/correlation.h"
#include "families/col2im/plan.h"
#include "families/col2im/plan_sm90.h"
#include "families/col2im/plan_whole_images.h"
#include "families/small_channel/planner.h"
#include "planner/plan.h"

namespace deconv {

// Forward, and grad_input of stride 1, in float16, bfloat16 and float32 on compute capability 8.0 and later; nothing
// where it refuses.
std::optional<Plan> plan_col2im_conv(const Problem& problem, const Device& device, std::vector<Candidate>* considered);

// The same on Hopper, but for strict float32, of sources that tensor copies take.
std::optional<Plan> plan_col2im_hopper(const Problem& problem, const Device& device,
                                       std::vector<Candidate>* considered);

std::string describe(const Col2imConvPlan& plan, DType dtype);
std::string describe_launch(const Col2imConvPlan& plan);
std::string describe(const Col2imHopperPlan& plan, DType dtype);
std::string describe_launch(const Col2imHopperPlan& plan);

// Elements that one store may take along the results of one source column.
int col2im_vector_result(const Problem& problem, const Col2imWalk& walk);

// A layer as all kernels of the family walk it.
class Col2imLayer {
 public:
  static constexpr int kMostPasses = 3;  // blocks of channels

  // Says in `refusal` why the family does not serve a problem.
  static std::optional<Col2imLayer> describe(const Problem& problem, const Device& device, std::string& refusal);

  const Problem& problem;
  const Device& device;
  Correlation c;
  NarrowAxis h, w;
  int element;  // bytes
  int taps;

  // Without pitch, rows and ring.
  Col2imWalk walk(int channels, int columns) const;
  // Once rows are known: as many segments of an image as keep all multiprocessors busy equally long, each of which has
  // rows in common with the next, and the units that a warp adds up at once. False: more than their 32-bit indices
  // take.
  bool choose_segments(Col2imWalk& walk, int add_warps, int most_units) const;

  int64_t segments(const Col2imWalk& walk) const { return problem.batch * walk.strips * walk.segments; }
  // A segment's share of all that is read and written once.
  double bytes_of_segment(const Col2imWalk& walk) const;
  // Cycles in which so many warps add up a step's results.
  double adding_cycles(const Col2imWalk& walk, int add_warps) const;

 private:
  Col2imLayer(const Problem& of_problem, const Device& of_device, const NarrowAxis& height, const NarrowAxis& width);
};

}  // namespace deconv
