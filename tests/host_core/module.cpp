// The torch-free host core as a Python module for the tests; built by CMakeLists.txt, not part of the wheel.
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "families/autotune.h"
#include "families/col2im/planner.h"
#include "families/depthwise/planner.h"
#include "families/igemm_sm80/planner.h"
#include "families/igemm_sm90/planner.h"
#include "families/igemm_sm90/tap_order.h"
#include "families/plan_cache.h"
#include "families/simt/planner.h"
#include "families/small_channel/planner.h"
#include "lowerings/group_merge/planner.h"
#include "lowerings/repack.h"
#include "lowerings/sub_pixel/planner.h"
#include "lowerings/wgrad_im2col.h"
#include "planner/explain.h"

namespace py = pybind11;

namespace deconv {
namespace {

Problem problem_of(Direction direction, DType dtype, const Sizes& first, const Sizes& second, const Sizes& extent,
                   const ConvArgs& args, Layout layout) {
  const auto arg = [layout](const Sizes& size) {
    if (size.size() != 4) return TensorArg{size, Sizes(size.size(), 1)};
    const Tensor4 tensor = dense({size[0], size[1], size[2], size[3]}, layout);
    return TensorArg{size, {tensor.stride.begin(), tensor.stride.end()}};
  };
  switch (direction) {
    case Direction::kForward: return describe_forward(dtype, arg(first), arg(second), std::nullopt, args);
    case Direction::kGradInput: return describe_grad_input(dtype, arg(first), arg(second), extent, args);
    default: return describe_grad_weight(dtype, arg(first), arg(second), extent, args);
  }
}

// The family's own plan, of one of these types.
template <class... Types>
py::object tile_of(const Plan& plan) {
  py::object tile = py::none();
  const auto take = [&](const auto* one) {
    if (one) tile = py::cast(*one);
  };
  (take(plan.get_if<Types>()), ...);
  return tile;
}

// What the plans of grad_weight by tensor copies share.
template <class Plan>
void define_copies(py::class_<Plan>& type) {
  type.def_property_readonly(
          "axes",  // from the innermost on
          [](const Plan& p) {
            return p.inner == HopperInner::kWidth ? "whn" : p.inner == HopperInner::kHeight ? "hwn" : "nwh";
          })
      .def_property_readonly("planes",
                             [](const Plan& p) {
                               return std::vector<std::array<int16_t, 2>>(p.plane.begin(), p.plane.begin() + p.planes);
                             })
      .def_property_readonly("boxes",  // of each group of taps: plane, chunk, shifts
                             [](const Plan& p) {
                               std::vector<std::vector<std::array<int, 5>>> all(p.tap_groups);
                               for (int g = 0; g < p.tap_groups; ++g) {
                                 for (int i = p.first_box[g]; i < p.first_box[g + 1]; ++i) {
                                   const HopperWeightBox& b = p.boxes[i];
                                   all[g].push_back({b.plane, b.chunk, b.shift[0], b.shift[1], b.shift[2]});
                                 }
                               }
                               return all;
                             })
      .def_readonly("fold", &Plan::fold)
      .def_readonly("repack_x", &Plan::repack_x)
      .def_readonly("repack_y", &Plan::repack_y)
      .def_readonly("im2col", &Plan::im2col)
      .def_readonly("x_at", &Plan::x_at)
      .def_readonly("y_at", &Plan::y_at)
      .def_readonly("pixels", &Plan::pixels)
      .def_readonly("halo", &Plan::halo)
      .def_readonly("tiles", &Plan::tiles)
      .def_readonly("plane_step", &Plan::plane_step)
      .def_readonly("box_chunks", &Plan::box_chunks)
      .def_readonly("x_boxes", &Plan::x_boxes)
      .def_readonly("y_chunks", &Plan::y_chunks)
      .def_readonly("x_box_bytes", &Plan::x_box_bytes)
      .def_readonly("y_box_bytes", &Plan::y_box_bytes)
      .def_readonly("y_boxes_at", &Plan::y_boxes_at)
      .def_readonly("slot_bytes", &Plan::slot_bytes)
      .def_readonly("slots", &Plan::slots)
      .def_readonly("barriers_at", &Plan::barriers_at)
      .def_readonly("shared_bytes", &Plan::shared_bytes)
      .def_readonly("padded_m", &Plan::padded_m)
      .def_readonly("padded_n", &Plan::padded_n)
      .def_readonly("blocks_m", &Plan::blocks_m)
      .def_readonly("blocks_n", &Plan::blocks_n)
      .def_readonly("blocks_group", &Plan::blocks_group)
      .def_readonly("steps", &Plan::steps)
      .def_readonly("steps_per_split", &Plan::steps_per_split)
      .def_readonly("splits", &Plan::splits)
      .def_readonly("sums", &Plan::sums)
      .def_readonly("slice", &Plan::slice)
      .def_readonly("items", &Plan::items)
      .def_readonly("blocks", &Plan::blocks);
}

}  // namespace
}  // namespace deconv

PYBIND11_MODULE(_host_core, m) {
  using namespace deconv;
  py::enum_<Direction>(m, "Direction")
      .value("forward", Direction::kForward)
      .value("grad_input", Direction::kGradInput)
      .value("grad_weight", Direction::kGradWeight);
  py::enum_<DType>(m, "DType")
      .value("float16", DType::kFloat16)
      .value("bfloat16", DType::kBFloat16)
      .value("float32", DType::kFloat32)
      .value("float64", DType::kFloat64);
  py::enum_<Layout>(m, "Layout").value("contiguous", Layout::kContiguous).value("channels_last", Layout::kChannelsLast);

  py::class_<AxisGeometry>(m, "AxisGeometry")
      .def(py::init([](int source_size, int result_size, int kernel, int stride, int padding, int dilation,
                       bool is_forward) {
             return AxisGeometry{source_size, result_size, kernel, stride, padding, dilation, is_forward};
           }),
           py::arg("source_size"), py::arg("result_size"), py::arg("kernel"), py::arg("stride"), py::arg("padding"),
           py::arg("dilation"), py::arg("is_forward"))
      .def("phases", &AxisGeometry::phases)
      .def("planes", &AxisGeometry::planes)
      .def("phase_size", &AxisGeometry::phase_size);
  py::class_<AxisTaps>(m, "AxisTaps")
      .def_readonly("count", &AxisTaps::count)
      .def_readonly("first_tap", &AxisTaps::first_tap)
      .def_readonly("tap_step", &AxisTaps::tap_step)
      .def_readonly("first_shift", &AxisTaps::first_shift)
      .def_readonly("shift_step", &AxisTaps::shift_step);
  m.def("axis_taps", &axis_taps, py::arg("axis"), py::arg("phase"), py::arg("plane"));

  py::class_<ConvArgs>(m, "ConvArgs")
      .def(py::init([](Sizes stride, Sizes padding, Sizes output_padding, int64_t groups, Sizes dilation) {
             return ConvArgs{stride, padding, output_padding, groups, dilation};
           }),
           py::arg("stride") = Sizes{1}, py::arg("padding") = Sizes{0}, py::arg("output_padding") = Sizes{0},
           py::arg("groups") = 1, py::arg("dilation") = Sizes{1});
  py::class_<Problem>(m, "Problem")
      .def(py::init(&problem_of), py::arg("direction"), py::arg("dtype"), py::arg("first"), py::arg("second"),
           py::arg("extent") = Sizes{}, py::arg("args") = ConvArgs{}, py::arg("layout") = Layout::kContiguous)
      .def_readwrite("allow_tf32", &Problem::allow_tf32)
      .def_readwrite("unaligned_first", &Problem::unaligned_first)
      .def_readwrite("unaligned_second", &Problem::unaligned_second)
      .def_readwrite("has_bias", &Problem::has_bias)
      .def("set_strides",  // of "x", "w" or "y", in elements
           [](Problem& p, char tensor, std::array<int64_t, 4> strides) {
             (tensor == 'x' ? p.x : tensor == 'w' ? p.w : p.y).stride = strides;
           })
      .def("result_sizes", &Problem::result_sizes)
      .def("result_strides", &Problem::result_strides)
      .def("flops", &Problem::flops)
      .def("bytes", &Problem::bytes)
      .def("describe", &Problem::describe);
  py::register_exception<InvalidArgument>(m, "InvalidArgument", PyExc_RuntimeError);

  py::class_<GatherConvPlan>(m, "GatherConvPlan")
      .def_readonly("lane_columns", &GatherConvPlan::lane_columns)
      .def_readonly("warps_m", &GatherConvPlan::warps_m)
      .def_readonly("units_h", &GatherConvPlan::units_h)
      .def_readonly("units_n", &GatherConvPlan::units_n)
      .def_readonly("taps_h", &GatherConvPlan::taps_h)
      .def_readonly("taps_w", &GatherConvPlan::taps_w)
      .def_readonly("chunk", &GatherConvPlan::chunk)
      .def_readonly("positions", &GatherConvPlan::positions)
      .def_readonly("image_pitch", &GatherConvPlan::image_pitch)
      .def_readonly("channel_pitch", &GatherConvPlan::channel_pitch)
      .def_readonly("weight_pitch", &GatherConvPlan::weight_pitch)
      .def_readonly("weights_at", &GatherConvPlan::weights_at)
      .def_readonly("tile_at", &GatherConvPlan::tile_at)
      .def_readonly("shared_bytes", &GatherConvPlan::shared_bytes)
      .def_readonly("blocks_m", &GatherConvPlan::blocks_m)
      .def_readonly("blocks_w", &GatherConvPlan::blocks_w)
      .def_readonly("blocks_h", &GatherConvPlan::blocks_h)
      .def_readonly("blocks_n", &GatherConvPlan::blocks_n)
      .def_readonly("blocks", &GatherConvPlan::blocks)
      .def_readonly("vector_source", &GatherConvPlan::vector_source)
      .def_readonly("vector_result", &GatherConvPlan::vector_result);
  py::class_<GatherWeightPlan>(m, "GatherWeightPlan")
      .def_readonly("tile", &GatherWeightPlan::tile)
      .def_readonly("warps_m", &GatherWeightPlan::warps_m)
      .def_readonly("warps_n", &GatherWeightPlan::warps_n)
      .def_readonly("warps_tap", &GatherWeightPlan::warps_tap)
      .def_readonly("pixels", &GatherWeightPlan::pixels)
      .def_readonly("rows", &GatherWeightPlan::rows)
      .def_readonly("span", &GatherWeightPlan::span)
      .def_readonly("pixel_step", &GatherWeightPlan::pixel_step)
      .def_readonly("tap_step", &GatherWeightPlan::tap_step)
      .def_readonly("shared_span", &GatherWeightPlan::shared_span)
      .def_readonly("x_pitch", &GatherWeightPlan::x_pitch)
      .def_readonly("y_pitch", &GatherWeightPlan::y_pitch)
      .def_readonly("y_at", &GatherWeightPlan::y_at)
      .def_readonly("shared_bytes", &GatherWeightPlan::shared_bytes)
      .def_readonly("segments", &GatherWeightPlan::segments)
      .def_readonly("segments_per_split", &GatherWeightPlan::segments_per_split)
      .def_readonly("splits", &GatherWeightPlan::splits)
      .def_readonly("blocks_m", &GatherWeightPlan::blocks_m)
      .def_readonly("blocks_n", &GatherWeightPlan::blocks_n)
      .def_readonly("blocks_tap", &GatherWeightPlan::blocks_tap)
      .def_readonly("blocks", &GatherWeightPlan::blocks);
  py::class_<DepthwiseStripsPlan>(m, "DepthwiseStripsPlan")
      .def_readonly("weight_gradient", &DepthwiseStripsPlan::weight_gradient)
      .def_readonly("channels_inner", &DepthwiseStripsPlan::channels_inner)
      .def_readonly("vector", &DepthwiseStripsPlan::vector)
      .def_readonly("lanes", &DepthwiseStripsPlan::lanes)
      .def_readonly("first_slots", &DepthwiseStripsPlan::first_slots)
      .def_readonly("second_slots", &DepthwiseStripsPlan::second_slots)
      .def_readonly("channel_slots", &DepthwiseStripsPlan::channel_slots)
      .def_readonly("blocks_inner", &DepthwiseStripsPlan::blocks_inner)
      .def_readonly("blocks_first", &DepthwiseStripsPlan::blocks_first)
      .def_readonly("blocks_second", &DepthwiseStripsPlan::blocks_second)
      .def_readonly("block_phases", &DepthwiseStripsPlan::block_phases)
      .def_readonly("rows", &DepthwiseStripsPlan::rows)
      .def_readonly("tap_rows", &DepthwiseStripsPlan::tap_rows)
      .def_readonly("tap_columns", &DepthwiseStripsPlan::tap_columns)
      .def_readonly("units", &DepthwiseStripsPlan::units)
      .def_readonly("units_per_split", &DepthwiseStripsPlan::units_per_split)
      .def_readonly("splits", &DepthwiseStripsPlan::splits)
      .def_readonly("shared_bytes", &DepthwiseStripsPlan::shared_bytes)
      .def_readonly("blocks", &DepthwiseStripsPlan::blocks)
      .def_property_readonly("chunk",
                             [](const DepthwiseStripsPlan& p) { return std::make_pair(p.chunk[0], p.chunk[1]); })
      .def_property_readonly("chunks",
                             [](const DepthwiseStripsPlan& p) { return std::make_pair(p.chunks[0], p.chunks[1]); })
      .def_property_readonly("passes",
                             [](const DepthwiseStripsPlan& p) { return std::make_pair(p.passes[0], p.passes[1]); });
  py::enum_<HopperInner>(m, "HopperInner")
      .value("HEIGHT", HopperInner::kHeight)
      .value("BATCH", HopperInner::kBatch)
      .value("WIDTH", HopperInner::kWidth);
  py::enum_<HopperSource>(m, "HopperSource")
      .value("TENSOR", HopperSource::kTensor)
      .value("TRANSPOSED", HopperSource::kTransposed)
      .value("WARPS", HopperSource::kWarps)
      .value("IM2COL", HopperSource::kIm2col);
  const auto extent = [](const HopperExtent& e) { return std::array<int, 3>{e.n, e.h, e.w}; };
  py::enum_<HopperWeights>(m, "HopperWeights")
      .value("PACKED", HopperWeights::kPacked)
      .value("MAJOR_K", HopperWeights::kMajorK)
      .value("MAJOR_M", HopperWeights::kMajorM);
  py::enum_<HopperResults>(m, "HopperResults")
      .value("STORED", HopperResults::kStored)
      .value("COPIED", HopperResults::kCopied);
  py::class_<HopperConvPlan>(m, "HopperConvPlan")
      .def_property_readonly("groups", [](const HopperConvPlan& p) { return p.tile.groups; })
      .def_property_readonly("phases", [](const HopperConvPlan& p) { return p.tile.phases; })
      .def_readonly("parts", &HopperConvPlan::parts)
      .def_readonly("merge", &HopperConvPlan::merge)
      .def_property_readonly("fold", [](const HopperConvPlan& p) { return p.tile.fold; })
      .def_readonly("row_bytes", &HopperConvPlan::row_bytes)
      .def_readonly("halo_planes", &HopperConvPlan::halo_planes)
      .def_readonly("plane_rows", &HopperConvPlan::plane_rows)
      .def_property_readonly("origin",
                             [](const HopperConvPlan& p) { return std::array<int, 2>{p.origin_h, p.origin_w}; })
      .def_readonly("source", &HopperConvPlan::source)
      .def_readonly("repack", &HopperConvPlan::repack)
      .def_readonly("results", &HopperConvPlan::results)
      .def_readonly("slice", &HopperConvPlan::slice)
      .def_readonly("tile_m", &HopperConvPlan::tile_m)
      .def_readonly("m_tiles", &HopperConvPlan::m_tiles)
      .def_readonly("stage_bytes", &HopperConvPlan::stage_bytes)
      .def_readonly("inner", &HopperConvPlan::inner)
      .def_property_readonly("pixels", [extent](const HopperConvPlan& p) { return extent(p.pixels); })
      .def_property_readonly("halo", [extent](const HopperConvPlan& p) { return extent(p.halo); })
      .def_property_readonly("row", [extent](const HopperConvPlan& p) { return extent(p.row); })
      .def_property_readonly("second", [extent](const HopperConvPlan& p) { return extent(p.second); })
      .def_property_readonly("tiles", [extent](const HopperConvPlan& p) { return extent(p.tiles); })
      .def_readonly("tile_step", &HopperConvPlan::tile_step)
      .def_readonly("whole_sectors", &HopperConvPlan::whole_sectors)
      .def_readonly("row_phases", &HopperConvPlan::row_phases)
      .def_readonly("staged_bytes", &HopperConvPlan::staged_bytes)
      .def_readonly("staged_line_bytes", &HopperConvPlan::staged_line_bytes)
      .def_readonly("line_groups", &HopperConvPlan::line_groups)
      .def_readonly("flat", &HopperConvPlan::flat)
      .def_readonly("channels_adjacent", &HopperConvPlan::channels_adjacent)
      .def_readonly("to_blocks", &HopperConvPlan::to_blocks)
      .def_readonly("copied_lines", &HopperConvPlan::copied_lines)
      .def_readonly("copied_groups", &HopperConvPlan::copied_groups)
      .def_readonly("group_rows", &HopperConvPlan::group_rows)
      .def_readonly("phase_groups", &HopperConvPlan::phase_groups)
      .def_readonly("item_groups", &HopperConvPlan::item_groups)
      .def_readonly("keep_halo", &HopperConvPlan::keep_halo)
      .def_property_readonly("planes", [](const HopperConvPlan& p) { return p.planes_h * p.planes_w; })
      .def_readonly("chunks", &HopperConvPlan::chunks)
      .def_readonly("columns", &HopperConvPlan::columns)
      .def_readonly("items", &HopperConvPlan::items)
      .def_readonly("split", &HopperConvPlan::split)
      .def_readonly("blocks", &HopperConvPlan::blocks)
      .def_readonly("resident_weights", &HopperConvPlan::resident_weights)
      .def_readonly("in_turns", &HopperConvPlan::in_turns)
      .def_readonly("halo_slots", &HopperConvPlan::halo_slots)
      .def_readonly("weight_slots", &HopperConvPlan::weight_slots)
      .def_readonly("raw_slots", &HopperConvPlan::raw_slots)
      .def_readonly("raw_row_bytes", &HopperConvPlan::raw_row_bytes)
      .def_readonly("raw_boxes", &HopperConvPlan::raw_boxes)
      .def_readonly("halo_bytes", &HopperConvPlan::halo_bytes)
      .def_readonly("weights_at", &HopperConvPlan::weights_at)
      .def_readonly("staging_at", &HopperConvPlan::staging_at)
      .def_readonly("table_at", &HopperConvPlan::table_at)
      .def_readonly("barriers_at", &HopperConvPlan::barriers_at)
      .def_readonly("shared_bytes", &HopperConvPlan::shared_bytes)
      .def_readonly("packed_bytes", &HopperConvPlan::packed_bytes)
      .def_readonly("weights", &HopperConvPlan::weights)
      .def_readonly("repacked_bytes", &HopperConvPlan::repacked_bytes);
  py::class_<HopperTap>(m, "HopperTap")
      .def_readonly("k", &HopperTap::k)
      .def_readonly("phase", &HopperTap::phase)
      .def_readonly("plane", &HopperTap::plane)
      .def_readonly("slot", &HopperTap::slot)
      .def_readonly("slots", &HopperTap::slots)
      .def_readonly("row", &HopperTap::row);
  m.def("hopper_tap_step", &hopper_tap_step, py::arg("axis"));
  m.def("hopper_taps", &hopper_taps, py::arg("axis"), py::arg("plan"), py::arg("along_w"));
  py::class_<HopperWeightLinesPlan>(m, "HopperWeightLinesPlan")
      .def_property_readonly("warpgroups", [](const HopperWeightLinesPlan& p) { return p.tile.warpgroups; })
      .def_property_readonly("warp_taps", [](const HopperWeightLinesPlan& p) { return p.tile.taps; })
      .def_property_readonly("n", [](const HopperWeightLinesPlan& p) { return p.tile.n; })
      .def_readonly("parts", &HopperWeightLinesPlan::parts)
      .def_readonly("fold", &HopperWeightLinesPlan::fold)
      .def_readonly("spread", &HopperWeightLinesPlan::spread)
      .def_readonly("block_taps", &HopperWeightLinesPlan::block_taps)
      .def_readonly("block_rows", &HopperWeightLinesPlan::block_rows)
      .def_readonly("block_m", &HopperWeightLinesPlan::block_m)
      .def_readonly("rows", &HopperWeightLinesPlan::rows)
      .def_readonly("columns", &HopperWeightLinesPlan::columns)
      .def_readonly("tiles_h", &HopperWeightLinesPlan::tiles_h)
      .def_readonly("tiles_w", &HopperWeightLinesPlan::tiles_w)
      .def_readonly("tap_groups", &HopperWeightLinesPlan::tap_groups)
      .def_property_readonly("groups",  // plane, first row of the plane, rows of the kernel
                             [](const HopperWeightLinesPlan& p) {
                               std::vector<std::tuple<int, int, std::vector<int>>> all;
                               for (int g = 0; g < p.row_groups; ++g) {
                                 const auto* rows = p.kernel_rows.data() + g * p.block_rows;
                                 all.emplace_back(p.groups[g].plane, p.groups[g].first,
                                                  std::vector<int>(rows, rows + p.block_rows));
                               }
                               return all;
                             })
      .def_readonly("row_step", &HopperWeightLinesPlan::row_step)
      .def_readonly("channel_kinds", &HopperWeightLinesPlan::channel_kinds)
      .def_readonly("y_channels", &HopperWeightLinesPlan::y_channels)
      .def_readonly("y_pitch", &HopperWeightLinesPlan::y_pitch)
      .def_readonly("y_box_bytes", &HopperWeightLinesPlan::y_box_bytes)
      .def_readonly("y_row_bytes", &HopperWeightLinesPlan::y_row_bytes)
      .def_readonly("y_at", &HopperWeightLinesPlan::y_at)
      .def_readonly("stage_bytes", &HopperWeightLinesPlan::stage_bytes)
      .def_readonly("stages", &HopperWeightLinesPlan::stages)
      .def_readonly("barriers_at", &HopperWeightLinesPlan::barriers_at)
      .def_readonly("shared_bytes", &HopperWeightLinesPlan::shared_bytes)
      .def_readonly("blocks_m", &HopperWeightLinesPlan::blocks_m)
      .def_readonly("blocks_n", &HopperWeightLinesPlan::blocks_n)
      .def_readonly("padded_m", &HopperWeightLinesPlan::padded_m)
      .def_readonly("padded_n", &HopperWeightLinesPlan::padded_n)
      .def_readonly("run", &HopperWeightLinesPlan::run)
      .def_readonly("runs", &HopperWeightLinesPlan::runs)
      .def_readonly("all_runs", &HopperWeightLinesPlan::all_runs)
      .def_readonly("splits", &HopperWeightLinesPlan::splits)
      .def_readonly("blocks", &HopperWeightLinesPlan::blocks);
  auto tensor_plan = py::class_<HopperWeightTensorPlan>(m, "HopperWeightTensorPlan");
  define_copies(tensor_plan);
  tensor_plan.def_property_readonly("warpgroups", [](const HopperWeightTensorPlan& p) { return p.tile.warpgroups; })
      .def_property_readonly("run_blocks",
                             [](const HopperWeightTensorPlan& p) {
                               std::vector<int> blocks{p.tile.first};
                               if (p.tile.second > 0) blocks.push_back(p.tile.second);
                               return blocks;
                             })
      .def_property_readonly("share", [](const HopperWeightTensorPlan& p) { return name(p.share); })
      .def_readonly("octet_step", &HopperWeightTensorPlan::octet_step)
      .def_property_readonly("instruction_rows",
                             [](const HopperWeightTensorPlan& p) {
                               return std::vector<int>(p.instruction_row.begin(),
                                                       p.instruction_row.begin() + p.instructions);
                             })
      .def_property_readonly(
          "runs",  // of each group of taps: row, row step, tap, tap step, chunk, chunk step, count
          [](const HopperWeightTensorPlan& p) {
            std::vector<std::vector<std::array<int, 7>>> all(p.tap_groups);
            for (int i = 0; i < p.tap_groups * p.group_runs; ++i) {
              const HopperWeightRun& r = p.runs[i];
              all[i / p.group_runs].push_back({r.row, r.row_step, r.tap, r.tap_step, r.chunk, r.chunk_step, r.count});
            }
            return all;
          });
  py::class_<HopperPlanesPlan>(m, "HopperPlanesPlan")
      .def_property_readonly("channels", [](const HopperPlanesPlan& p) { return p.weights.tile_m; })
      .def_property_readonly("chunks", [](const HopperPlanesPlan& p) { return p.weights.chunks; })
      .def_property_readonly("m_tiles", [](const HopperPlanesPlan& p) { return p.weights.m_tiles; })
      .def_property_readonly("packed_bytes", [](const HopperPlanesPlan& p) { return p.weights.packed_bytes; })
      .def_property_readonly("warpgroups", &HopperPlanesPlan::warpgroups)
      .def_readonly("resident", &HopperPlanesPlan::resident)
      .def_readonly("pieces", &HopperPlanesPlan::pieces)
      .def_readonly("classes", &HopperPlanesPlan::classes)
      .def_readonly("stage_bytes", &HopperPlanesPlan::stage_bytes)
      .def_readonly("rings", &HopperPlanesPlan::rings)
      .def_readonly("weights_at", &HopperPlanesPlan::weights_at)
      .def_readonly("tables_at", &HopperPlanesPlan::tables_at)
      .def_readonly("image_pieces", &HopperPlanesPlan::image_pieces)
      .def_readonly("columns", &HopperPlanesPlan::columns)
      .def_readonly("items", &HopperPlanesPlan::items)
      .def_readonly("blocks", &HopperPlanesPlan::blocks)
      .def_readonly("slots", &HopperPlanesPlan::slots)
      .def_readonly("barriers_at", &HopperPlanesPlan::barriers_at)
      .def_readonly("shared_bytes", &HopperPlanesPlan::shared_bytes);
  py::class_<HopperStridedPlan>(m, "HopperStridedPlan")
      .def_property_readonly("chunks", [](const HopperStridedPlan& p) { return p.weights.chunks; })
      .def_property_readonly("m_tiles", [](const HopperStridedPlan& p) { return p.weights.m_tiles; })
      .def_property_readonly("packed_bytes", [](const HopperStridedPlan& p) { return p.weights.packed_bytes; })
      .def_property_readonly("tile_rows", &HopperStridedPlan::tile_rows)
      .def_property_readonly("rings", &HopperStridedPlan::rings)
      .def_property_readonly("taps",
                             [](const HopperStridedPlan& p) { return strided_taps(kStridedPatterns[p.pattern]); })
      .def_property_readonly("lines",
                             [](const HopperStridedPlan& p) { return strided_lines(kStridedPatterns[p.pattern]); })
      .def_property_readonly("before", [](const HopperStridedPlan& p) { return kStridedPatterns[p.pattern].before; })
      .def_readonly("resident", &HopperStridedPlan::resident)
      .def_readonly("octets", &HopperStridedPlan::octets)
      .def_readonly("halo_rows", &HopperStridedPlan::halo_rows)
      .def_readonly("halo_octets", &HopperStridedPlan::halo_octets)
      .def_readonly("halo_bytes", &HopperStridedPlan::halo_bytes)
      .def_readonly("origin_h", &HopperStridedPlan::origin_h)
      .def_readonly("origin_w", &HopperStridedPlan::origin_w)
      .def_readonly("tiles_w", &HopperStridedPlan::tiles_w)
      .def_readonly("tiles_h", &HopperStridedPlan::tiles_h)
      .def_readonly("tiles", &HopperStridedPlan::tiles)
      .def_readonly("columns", &HopperStridedPlan::columns)
      .def_readonly("items", &HopperStridedPlan::items)
      .def_readonly("blocks", &HopperStridedPlan::blocks)
      .def_readonly("slots", &HopperStridedPlan::slots)
      .def_readonly("weight_slots", &HopperStridedPlan::weight_slots)
      .def_readonly("stage_bytes", &HopperStridedPlan::stage_bytes)
      .def_readonly("weights_at", &HopperStridedPlan::weights_at)
      .def_readonly("bias_at", &HopperStridedPlan::bias_at)
      .def_readonly("barriers_at", &HopperStridedPlan::barriers_at)
      .def_readonly("shared_bytes", &HopperStridedPlan::shared_bytes);
  py::class_<HopperPicturesPlan>(m, "HopperPicturesPlan")
      .def_readonly("operand_rows", &HopperPicturesPlan::operand_rows)
      .def_property_readonly("planes", [](const HopperPicturesPlan& p) { return has_planes(p.source); })
      .def_property_readonly("lines", [](const HopperPicturesPlan& p) { return p.source == PicturesSource::kLines; })
      .def_readonly("shifts", &HopperPicturesPlan::shifts)
      .def_readonly("origin_h", &HopperPicturesPlan::origin_h)
      .def_readonly("lead_step", &HopperPicturesPlan::lead_step)
      .def_readonly("copied", &HopperPicturesPlan::copied)
      .def_readonly("staged_row", &HopperPicturesPlan::staged_row)
      .def_readonly("staged_channel", &HopperPicturesPlan::staged_channel)
      .def_readonly("staged_phase", &HopperPicturesPlan::staged_phase)
      .def_readonly("staged_column", &HopperPicturesPlan::staged_column)
      .def_readonly("staged_bytes", &HopperPicturesPlan::staged_bytes)
      .def_readonly("staged_at", &HopperPicturesPlan::staged_at)
      .def_readonly("strips_w", &HopperPicturesPlan::strips_w)
      .def_readonly("origin_w", &HopperPicturesPlan::origin_w)
      .def_readonly("tile_rows", &HopperPicturesPlan::tile_rows)
      .def_readonly("tile_columns", &HopperPicturesPlan::tile_columns)
      .def_readonly("lead", &HopperPicturesPlan::lead)
      .def_readonly("pitch", &HopperPicturesPlan::pitch)
      .def_readonly("halo_rows", &HopperPicturesPlan::halo_rows)
      .def_readonly("tiles_h", &HopperPicturesPlan::tiles_h)
      .def_readonly("tiles_w", &HopperPicturesPlan::tiles_w)
      .def_readonly("tiles", &HopperPicturesPlan::tiles)
      .def_readonly("tile_blocks", &HopperPicturesPlan::tile_blocks)
      .def_readonly("blocks", &HopperPicturesPlan::blocks)
      .def_readonly("chunks", &HopperPicturesPlan::chunks)
      .def_readonly("stages", &HopperPicturesPlan::stages)
      .def_readonly("slots", &HopperPicturesPlan::slots)
      .def_readonly("stage_bytes", &HopperPicturesPlan::stage_bytes)
      .def_readonly("slot_bytes", &HopperPicturesPlan::slot_bytes)
      .def_readonly("weights_at", &HopperPicturesPlan::weights_at)
      .def_readonly("rows_at", &HopperPicturesPlan::rows_at)
      .def_readonly("barriers_at", &HopperPicturesPlan::barriers_at)
      .def_readonly("shared_bytes", &HopperPicturesPlan::shared_bytes);
  py::class_<HopperFoldedPlan>(m, "HopperFoldedPlan")
      .def_readonly("pixels", &HopperFoldedPlan::pixels)
      .def_readonly("images", &HopperFoldedPlan::images)
      .def_readonly("quads", &HopperFoldedPlan::quads)
      .def_readonly("run", &HopperFoldedPlan::run)
      .def_readonly("image_pixels", &HopperFoldedPlan::image_pixels)
      .def_readonly("chunks", &HopperFoldedPlan::chunks)
      .def_readonly("tiles", &HopperFoldedPlan::tiles)
      .def_readonly("m_tiles", &HopperFoldedPlan::m_tiles)
      .def_readonly("columns", &HopperFoldedPlan::columns)
      .def_readonly("items", &HopperFoldedPlan::items)
      .def_readonly("blocks", &HopperFoldedPlan::blocks)
      .def_readonly("slots", &HopperFoldedPlan::slots)
      .def_readonly("stage_bytes", &HopperFoldedPlan::stage_bytes)
      .def_readonly("plane_bytes", &HopperFoldedPlan::plane_bytes)
      .def_readonly("sums_at", &HopperFoldedPlan::sums_at)
      .def_readonly("results_at", &HopperFoldedPlan::results_at)
      .def_readonly("barriers_at", &HopperFoldedPlan::barriers_at)
      .def_readonly("shared_bytes", &HopperFoldedPlan::shared_bytes);
  auto turned_plan = py::class_<HopperWeightTurnedPlan>(m, "HopperWeightTurnedPlan");
  define_copies(turned_plan);
  turned_plan.def_property_readonly("warpgroups", [](const HopperWeightTurnedPlan& p) { return p.tile.warpgroups; })
      .def_property_readonly("warp_taps", [](const HopperWeightTurnedPlan& p) { return p.tile.taps; })
      .def_property_readonly("n", [](const HopperWeightTurnedPlan& p) { return p.tile.n; })
      .def_readonly("parts", &HopperWeightTurnedPlan::parts)
      .def_readonly("spread", &HopperWeightTurnedPlan::spread)
      .def_readonly("tap_fold", &HopperWeightTurnedPlan::tap_fold)
      .def_readonly("block_taps", &HopperWeightTurnedPlan::block_taps)
      .def_readonly("octet_row", &HopperWeightTurnedPlan::octet_row)
      .def_property_readonly("taps",  // of each group: row, tap
                             [](const HopperWeightTurnedPlan& p) {
                               std::vector<std::vector<std::array<int, 2>>> all(p.tap_groups);
                               for (int i = 0; i < p.tap_groups * p.block_taps; ++i) {
                                 all[i / p.block_taps].push_back({p.taps[i].row, p.taps[i].tap});
                               }
                               return all;
                             });
  const auto pixels = [](const MmaExtent& e) { return std::array<int, 3>{e.n, e.h, e.w}; };
  py::class_<MmaConvPlan>(m, "MmaConvPlan")
      .def_property_readonly("rows", [](const MmaConvPlan& p) { return p.tile.rows; })
      .def_property_readonly("warps_m", [](const MmaConvPlan& p) { return p.tile.warps_m; })
      .def_readonly("split", &MmaConvPlan::split)
      .def_property_readonly("pixels", [pixels](const MmaConvPlan& p) { return pixels(p.pixels); })
      .def_property_readonly("halo", [pixels](const MmaConvPlan& p) { return pixels(p.halo); })
      .def_property_readonly("tiles", [pixels](const MmaConvPlan& p) { return pixels(p.tiles); })
      .def_readonly("row_bytes", &MmaConvPlan::row_bytes)
      .def_readonly("bands", &MmaConvPlan::bands)
      .def_readonly("chunks", &MmaConvPlan::chunks)
      .def_readonly("m_tiles", &MmaConvPlan::m_tiles)
      .def_readonly("items", &MmaConvPlan::items)
      .def_readonly("items_per_block", &MmaConvPlan::items_per_block)
      .def_readonly("runs", &MmaConvPlan::runs)
      .def_readonly("halos_ahead", &MmaConvPlan::halos_ahead)
      .def_readonly("halo_bytes", &MmaConvPlan::halo_bytes)
      .def_readonly("keep_halos", &MmaConvPlan::keep_halos)
      .def_readonly("halo_slots", &MmaConvPlan::halo_slots)
      .def_readonly("table_planes", &MmaConvPlan::table_planes)
      .def_readonly("weights_at", &MmaConvPlan::weights_at)
      .def_readonly("staging_at", &MmaConvPlan::staging_at)
      .def_readonly("table_at", &MmaConvPlan::table_at)
      .def_readonly("places_at", &MmaConvPlan::places_at)
      .def_readonly("kept_at", &MmaConvPlan::kept_at)
      .def_readonly("staged_bytes", &MmaConvPlan::staged_bytes)
      .def_readonly("together", &MmaConvPlan::together)
      .def_readonly("shared_bytes", &MmaConvPlan::shared_bytes)
      .def_readonly("blocks", &MmaConvPlan::blocks)
      .def_readonly("starts_early", &MmaConvPlan::starts_early)
      .def_readonly("repack", &MmaConvPlan::repack)
      .def_readonly("slice", &MmaConvPlan::slice)
      .def_readonly("packed_bytes", &MmaConvPlan::packed_bytes)
      .def_readonly("repacked_bytes", &MmaConvPlan::repacked_bytes)
      .def_readonly("unpack", &MmaConvPlan::unpack)
      .def_readonly("unpacked_bytes", &MmaConvPlan::unpacked_bytes);
  py::class_<MmaWeightPlan>(m, "MmaWeightPlan")
      .def_property_readonly("rows", [](const MmaWeightPlan& p) { return p.tile.rows; })
      .def_property_readonly("units", [](const MmaWeightPlan& p) { return p.tile.units; })
      .def_property_readonly("most_warps", [](const MmaWeightPlan& p) { return mma_weight_warps(p.tile, p.split); })
      .def_readonly("split", &MmaWeightPlan::split)
      .def_readonly("warps_m", &MmaWeightPlan::warps_m)
      .def_readonly("warps_n", &MmaWeightPlan::warps_n)
      .def_property_readonly("channels_m", &MmaWeightPlan::channels_m)
      .def_property_readonly("channels_n", &MmaWeightPlan::channels_n)
      .def_readonly("taps_h", &MmaWeightPlan::taps_h)
      .def_readonly("taps_w", &MmaWeightPlan::taps_w)
      .def_readonly("groups_h", &MmaWeightPlan::groups_h)
      .def_readonly("groups_w", &MmaWeightPlan::groups_w)
      .def_property_readonly("pixels", [pixels](const MmaWeightPlan& p) { return pixels(p.pixels); })
      .def_property_readonly("tiles", [pixels](const MmaWeightPlan& p) { return pixels(p.tiles); })
      .def_readonly("step_pixels", &MmaWeightPlan::step_pixels)
      .def_readonly("y_rows", &MmaWeightPlan::y_rows)
      .def_readonly("x_pitch", &MmaWeightPlan::x_pitch)
      .def_readonly("y_pitch", &MmaWeightPlan::y_pitch)
      .def_readonly("y_at", &MmaWeightPlan::y_at)
      .def_readonly("slot_bytes", &MmaWeightPlan::slot_bytes)
      .def_readonly("x_places_at", &MmaWeightPlan::x_places_at)
      .def_readonly("y_places_at", &MmaWeightPlan::y_places_at)
      .def_readonly("rows_at", &MmaWeightPlan::rows_at)
      .def_readonly("shared_bytes", &MmaWeightPlan::shared_bytes)
      .def_readonly("blocks_m", &MmaWeightPlan::blocks_m)
      .def_readonly("blocks_n", &MmaWeightPlan::blocks_n)
      .def_readonly("steps", &MmaWeightPlan::steps)
      .def_readonly("steps_per_split", &MmaWeightPlan::steps_per_split)
      .def_readonly("splits", &MmaWeightPlan::splits)
      .def_readonly("blocks", &MmaWeightPlan::blocks)
      .def_readonly("repack_x", &MmaWeightPlan::repack_x)
      .def_readonly("repack_y", &MmaWeightPlan::repack_y)
      .def_readonly("repacked_x_at", &MmaWeightPlan::repacked_x_at)
      .def_readonly("repacked_y_at", &MmaWeightPlan::repacked_y_at);
  // The taps of one axis in the order of their groups: reach, tap, line, segment; and the most lines of a group.
  m.def("mma_weight_taps", [](const AxisGeometry& axis, int most, int pixels) {
    std::vector<MmaWeightTap> taps(axis.kernel);
    const int lines = mma_weight_taps(axis.kernel, axis.stride, axis.padding, axis.dilation, most, pixels, taps.data());
    std::vector<std::array<int, 4>> all;
    for (const MmaWeightTap& tap : taps) all.push_back({tap.reach, tap.tap, tap.line, tap.segment});
    return std::pair(all, lines);
  });
  const auto narrow_extent = [](const NarrowExtent& e) { return std::array<int, 3>{e.n, e.h, e.w}; };
  py::class_<NarrowConvPlan>(m, "NarrowConvPlan")
      .def_readonly("row_tiles", &NarrowConvPlan::row_tiles)
      .def_readonly("warps_m", &NarrowConvPlan::warps_m)
      .def_readonly("parts", &NarrowConvPlan::parts)
      .def_readonly("channels", &NarrowConvPlan::channels)
      .def_readonly("all_heights", &NarrowConvPlan::all_heights)
      .def_property_readonly("tile", [narrow_extent](const NarrowConvPlan& p) { return narrow_extent(p.tile); })
      .def_property_readonly("tiles", [narrow_extent](const NarrowConvPlan& p) { return narrow_extent(p.tiles); })
      .def_readonly("units", &NarrowConvPlan::units)
      .def_readonly("chunks", &NarrowConvPlan::chunks)
      .def_readonly("row_groups", &NarrowConvPlan::row_groups)
      .def_readonly("positions", &NarrowConvPlan::positions)
      .def_readonly("steps", &NarrowConvPlan::steps)
      .def_readonly("stage_channel", &NarrowConvPlan::stage_channel)
      .def_readonly("source_pixels", &NarrowConvPlan::source_pixels)
      .def_readonly("source_pitch", &NarrowConvPlan::source_pitch)
      .def_readonly("buffers", &NarrowConvPlan::buffers)
      .def_readonly("quads", &NarrowConvPlan::quads)
      .def_readonly("passes_h", &NarrowConvPlan::passes_h)
      .def_readonly("passes_m", &NarrowConvPlan::passes_m)
      .def_readonly("tile_blocks", &NarrowConvPlan::tile_blocks)
      .def_readonly("blocks", &NarrowConvPlan::blocks)
      .def_readonly("source_at", &NarrowConvPlan::source_at)
      .def_readonly("stage_at", &NarrowConvPlan::stage_at)
      .def_readonly("tables_at", &NarrowConvPlan::tables_at)
      .def_readonly("shared_bytes", &NarrowConvPlan::shared_bytes)
      .def_readonly("columns_adjacent", &NarrowConvPlan::columns_adjacent);
  py::class_<DepthwiseRowsPlan>(m, "DepthwiseRowsPlan")
      .def_readonly("weight_gradient", &DepthwiseRowsPlan::weight_gradient)
      .def_readonly("channels_inner", &DepthwiseRowsPlan::channels_inner)
      .def_readonly("stride", &DepthwiseRowsPlan::stride)
      .def_readonly("kernel", &DepthwiseRowsPlan::kernel)
      .def_readonly("lanes", &DepthwiseRowsPlan::lanes)
      .def_readonly("line_runs", &DepthwiseRowsPlan::line_runs)
      .def_readonly("parts", &DepthwiseRowsPlan::parts)
      .def_readonly("part_runs", &DepthwiseRowsPlan::part_runs)
      .def_readonly("shift", &DepthwiseRowsPlan::shift)
      .def_readonly("first_row", &DepthwiseRowsPlan::first_row)
      .def_readonly("segments", &DepthwiseRowsPlan::segments)
      .def_readonly("segment_rows", &DepthwiseRowsPlan::segment_rows)
      .def_readonly("units", &DepthwiseRowsPlan::units)
      .def_readonly("unit_blocks", &DepthwiseRowsPlan::unit_blocks)
      .def_readonly("channel_blocks", &DepthwiseRowsPlan::channel_blocks)
      .def_readonly("threads", &DepthwiseRowsPlan::threads)
      .def_readonly("splits", &DepthwiseRowsPlan::splits)
      .def_readonly("shared_bytes", &DepthwiseRowsPlan::shared_bytes)
      .def_readonly("blocks", &DepthwiseRowsPlan::blocks);
  py::class_<SubpixelPlan>(m, "SubpixelPlan")
      .def_property_readonly("inner", [](const SubpixelPlan& p) { return *p.inner; })
      .def_readonly("output_in_place", &SubpixelPlan::output_in_place)
      .def_readonly("weight_in_place", &SubpixelPlan::weight_in_place)
      .def_readonly("stores_plain", &SubpixelPlan::stores_plain)
      .def_readonly("output_at", &SubpixelPlan::output_at)
      .def_readonly("weight_at", &SubpixelPlan::weight_at)
      .def_readonly("bias_at", &SubpixelPlan::bias_at)
      .def_readonly("inner_at", &SubpixelPlan::inner_at);
  py::class_<MergedPlan>(m, "MergedPlan")
      .def_property_readonly("inner", [](const MergedPlan& p) { return *p.inner; })
      .def_readonly("merge", &MergedPlan::merge)
      .def_readonly("inner_at", &MergedPlan::inner_at);
  py::class_<Col2imHopperPlan>(m, "Col2imHopperPlan")
      .def_readonly("channels", &Col2imHopperPlan::channels)
      .def_readonly("passes", &Col2imHopperPlan::passes)
      .def_readonly("columns", &Col2imHopperPlan::columns)
      .def_readonly("rows", &Col2imHopperPlan::rows)
      .def_readonly("pitch", &Col2imHopperPlan::pitch)
      .def_readonly("shifts_h", &Col2imHopperPlan::shifts_h)
      .def_readonly("shifts_w", &Col2imHopperPlan::shifts_w)
      .def_readonly("ring_rows", &Col2imHopperPlan::ring_rows)
      .def_readonly("product_pitch", &Col2imHopperPlan::product_pitch)
      .def_readonly("strips", &Col2imHopperPlan::strips)
      .def_readonly("segments", &Col2imHopperPlan::segments)
      .def_readonly("segment_rows", &Col2imHopperPlan::segment_rows)
      .def_readonly("steps", &Col2imHopperPlan::steps)
      .def_readonly("units", &Col2imHopperPlan::units)
      .def_readonly("segment_blocks", &Col2imHopperPlan::segment_blocks)
      .def_readonly("blocks", &Col2imHopperPlan::blocks)
      .def_readonly("operand_rows", &Col2imHopperPlan::operand_rows)
      .def_readonly("planes", &Col2imHopperPlan::planes)
      .def_readonly("staged_lead", &Col2imHopperPlan::staged_lead)
      .def_readonly("staged_pitch", &Col2imHopperPlan::staged_pitch)
      .def_readonly("chunks", &Col2imHopperPlan::chunks)
      .def_readonly("slots", &Col2imHopperPlan::slots)
      .def_readonly("slot_bytes", &Col2imHopperPlan::slot_bytes)
      .def_property_readonly("stage_bytes", &Col2imHopperPlan::stage_bytes)
      .def_readonly("weights_at", &Col2imHopperPlan::weights_at)
      .def_readonly("products_at", &Col2imHopperPlan::products_at)
      .def_readonly("tables_at", &Col2imHopperPlan::tables_at)
      .def_readonly("shared_bytes", &Col2imHopperPlan::shared_bytes);
  py::class_<Col2imConvPlan>(m, "Col2imConvPlan")
      .def_readonly("row_tiles", &Col2imConvPlan::row_tiles)
      .def_readonly("warps_m", &Col2imConvPlan::warps_m)
      .def_readonly("parts", &Col2imConvPlan::parts)
      .def_readonly("channels", &Col2imConvPlan::channels)
      .def_readonly("passes", &Col2imConvPlan::passes)
      .def_readonly("column_bytes", &Col2imConvPlan::column_bytes)
      .def_readonly("columns", &Col2imConvPlan::columns)
      .def_readonly("rows", &Col2imConvPlan::rows)
      .def_readonly("lead", &Col2imConvPlan::lead)
      .def_readonly("pitch", &Col2imConvPlan::pitch)
      .def_readonly("origin_w", &Col2imConvPlan::origin_w)
      .def_readonly("shifts_h", &Col2imConvPlan::shifts_h)
      .def_readonly("shifts_w", &Col2imConvPlan::shifts_w)
      .def_readonly("ring_rows", &Col2imConvPlan::ring_rows)
      .def_readonly("product_pitch", &Col2imConvPlan::product_pitch)
      .def_readonly("strips", &Col2imConvPlan::strips)
      .def_readonly("segments", &Col2imConvPlan::segments)
      .def_readonly("segment_rows", &Col2imConvPlan::segment_rows)
      .def_readonly("steps", &Col2imConvPlan::steps)
      .def_readonly("depth_steps", &Col2imConvPlan::depth_steps)
      .def_readonly("all_depth_steps", &Col2imConvPlan::all_depth_steps)
      .def_readonly("chunks", &Col2imConvPlan::chunks)
      .def_readonly("slots", &Col2imConvPlan::slots)
      .def_readonly("slot_bytes", &Col2imConvPlan::slot_bytes)
      .def_readonly("segment_blocks", &Col2imConvPlan::segment_blocks)
      .def_readonly("blocks", &Col2imConvPlan::blocks)
      .def_readonly("source_at", &Col2imConvPlan::source_at)
      .def_readonly("products_at", &Col2imConvPlan::products_at)
      .def_readonly("tables_at", &Col2imConvPlan::tables_at)
      .def_readonly("shared_bytes", &Col2imConvPlan::shared_bytes)
      .def_property_readonly("pixels", &Col2imConvPlan::pixels);
  py::class_<TapPlace>(m, "TapPlace")
      .def_readonly("phase", &TapPlace::phase)
      .def_readonly("plane", &TapPlace::plane)
      .def_readonly("shift", &TapPlace::shift);
  m.def("tap_place", &tap_place, py::arg("axis"), py::arg("k"));
  m.def("window_shift", &window_shift, py::arg("axis"), py::arg("k"));
  m.def("without_idle_taps", &without_idle_taps, py::arg("axis"));
  py::class_<Device>(m, "Device")
      .def(py::init<>())
      .def_readwrite("capability", &Device::capability)
      .def_readwrite("has_wgmma", &Device::has_wgmma)
      .def_readwrite("has_mma", &Device::has_mma)
      .def_readwrite("multiprocessors", &Device::multiprocessors)
      .def_readwrite("shared_bytes_per_block", &Device::shared_bytes_per_block)
      .def_readwrite("partial_run_bytes", &Device::partial_run_bytes);
  m.def("partial_run_bytes", &partial_run_bytes, py::arg("peak_bandwidth"));
  py::class_<Plan>(m, "Plan")
      .def_property_readonly(
          "tile", tile_of<GatherConvPlan, GatherWeightPlan, DepthwiseStripsPlan, DepthwiseRowsPlan, HopperConvPlan,
                          HopperPlanesPlan, HopperStridedPlan, HopperFoldedPlan, HopperPicturesPlan,
                          HopperWeightLinesPlan, HopperWeightTensorPlan, HopperWeightTurnedPlan, MmaConvPlan,
                          MmaWeightPlan, NarrowConvPlan, Col2imConvPlan, Col2imHopperPlan, SubpixelPlan, MergedPlan>)
      .def_readonly("workspace_bytes", &Plan::workspace_bytes)
      .def_readonly("estimate_ms", &Plan::estimate_ms)
      .def("describe", [](const Plan& plan, DType dtype) { return describe(plan, dtype); }, py::arg("dtype"));
  py::class_<PlanMemory>(m, "PlanMemory")
      .def(py::init<>())
      .def_property_readonly("planned", &PlanMemory::planned)
      .def_property_readonly("remembered", &PlanMemory::remembered)
      .def(
          "find",
          [](PlanMemory& memory, const Problem& problem, int device_index, const Device& device) {
            return memory.find(problem, device_index, device, {});  // a copy
          },
          py::arg("problem"), py::arg("device_index") = 0, py::arg("device") = Device());
  const auto tiles = [](const auto& table) {
    std::vector<std::array<int, 4>> all;
    for (const GatherWeightTile& tile : table)
      all.push_back({tile.thread_m, tile.thread_n, tile.lanes_m, tile.lanes_n});
    return all;
  };
  m.attr("WEIGHT_TILES") = tiles(kGatherWeightTiles);
  m.attr("WEIGHT_TILES_DOUBLE") = tiles(kGatherWeightTilesDouble);
  m.def("gather_shared_bytes", &gather_shared_bytes);
  m.attr("DEPTHWISE_THREADS") = kDepthwiseThreads;
  m.def("quotient", [](int n, int64_t divisor) { return divide_by(divisor).quotient(n); });
  m.def("depthwise_strip", &depthwise_strip);
  m.def("depthwise_rows_columns", [](int element, const DepthwiseRowsPlan& plan) {
    return depthwise_rows_columns(element, plan.stride, plan.channels_inner, plan.read);
  });
  m.def("depthwise_rows_padding", &depthwise_rows_padding);
  m.def("depthwise_rows_history", &depthwise_rows_history);
  m.attr("MMA_STAGES") = kMmaStages;
  m.attr("WORKSPACE_LIMIT") = kWorkspaceLimit;
  m.attr("REPACK_LIMIT") = kRepackLimit;
  m.attr("SHARED_BYTES_LIMIT") = Device{}.shared_bytes_per_block;
  m.def("gather_pitch", &gather_pitch);
  m.attr("TENSOR_CORE_MIN_CHANNELS") = kTensorCoreMinChannels;
  m.attr("TF32_MIN_FLOPS") = kTf32MinFlops;
  m.def("wants_tf32_answer", &wants_tf32_answer, py::arg("problem"), py::arg("device") = Device{});
  // `kernels` is what DECONV_KERNELS would hold.
  m.def(
      "make_plan",
      [](const Problem& problem, const Device& device, const std::string& kernels) {
        return make_plan(problem, device, parse_planner_options(kernels.c_str()));
      },
      py::arg("problem"), py::arg("device") = Device{}, py::arg("kernels") = "");
  // The plans that make_plan chooses from, of the families that list theirs.
  m.def(
      "candidates",
      [](const Problem& problem, const Device& device, const std::string& kernels) {
        std::vector<Candidate> considered;
        make_plan(problem, device, parse_planner_options(kernels.c_str()), &considered);
        std::vector<Plan> plans;
        for (const Candidate& candidate : considered) {
          if (candidate.plan) plans.push_back(*candidate.plan);
        }
        return plans;
      },
      py::arg("problem"), py::arg("device") = Device{}, py::arg("kernels") = "");
  m.def(
      "plan_hopper_weight_lines",  // whether it is the cheapest or not
      [](const Problem& problem, const Device& device) { return plan_hopper_weight_lines(problem, device, nullptr); },
      py::arg("problem"), py::arg("device") = Device{});
  m.def("fits_weight_im2col", &fits_weight_im2col);
  m.def(
      "plan_hopper_weight_turned",  // whether it is the cheapest or not
      [](const Problem& problem, const Device& device) { return plan_hopper_weight_turned(problem, device, nullptr); },
      py::arg("problem"), py::arg("device") = Device{});
  py::class_<TunedPlan, std::shared_ptr<TunedPlan>>(m, "TunedPlan")
      .def_readonly("plan", &TunedPlan::plan)
      .def_property_readonly("timings", [](const TunedPlan& tuned) {  // tile, estimate ms, ms
        std::vector<std::tuple<std::string, double, double>> all;
        for (const Timing& one : tuned.timings) all.emplace_back(one.tile, one.estimate_ms, one.ms);
        return all;
      });
  m.def(
      "autotune",  // `time` stands for the GPU: a plan's ms, or None
      [](const Problem& problem, int64_t most, const TimePlan& time) { return autotune(problem, {}, {}, most, time); },
      py::arg("problem"), py::arg("most"), py::arg("time"));
  py::class_<Autotuner>(m, "Autotuner")
      .def(py::init<>())
      .def_property_readonly("candidates", &Autotuner::candidates)
      .def("set_candidates", &Autotuner::set_candidates)
      .def("find", [](const Autotuner& tuner,
                      const Problem& problem) { return std::const_pointer_cast<TunedPlan>(tuner.find(problem, 0)); })
      .def("keep", [](Autotuner& tuner, const Problem& problem, TunedPlan plan) {
        return std::const_pointer_cast<TunedPlan>(tuner.keep(problem, 0, std::move(plan)));
      });
  m.def(
      "explain",
      [](const Problem& problem, const Device& device, const std::string& kernels, const TunedPlan* tuned) {
        return explain(problem, device, parse_planner_options(kernels.c_str()), tuned);
      },
      py::arg("problem"), py::arg("device") = Device{}, py::arg("kernels") = "", py::arg("tuned") = nullptr);
}
