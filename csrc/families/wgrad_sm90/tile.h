// Shared by wgrad_sm90's kernels: plain data, host and device.
#pragma once

namespace deconv {

inline constexpr int kWgradTileM = 64;  // output channels of a warpgroup: rows of operand A

// Warpgroups that multiply, taps that each accumulates, input channels (wgmma's N).
struct WgradTile {
  int warpgroups, taps, n;
};

}  // namespace deconv
