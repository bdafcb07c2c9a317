// What the Hopper family's kernels of grad_weight have in common: plain data, host and device.
#pragma once

namespace deconv {

inline constexpr int kWgradTileM = 64;  // output channels of a warpgroup

// Warpgroups that multiply, taps that each accumulates, input channels (wgmma's N).
struct WgradTile {
  int warpgroups, taps, n;
};

}  // namespace deconv
