// The index arithmetic of the operator, host and device: the only place that knows about strides.
//
// On each axis, output pixel o, input pixel i and tap k meet where  o + padding = i * stride + k * dilation.
//
// Forward and grad_input are the same computation on each axis: a stride-1 correlation of one *source phase* (`plane`:
// every source_step-th pixel of the source, from pixel `plane` on) that yields one *phase* of the result (every
// result_step-th pixel, from pixel `phase` on). With s the stride:
//   forward:    source = input,       one source phase;   result = output in s phases;
//   grad_input: source = grad_output, s source phases;    result = one phase, the sum over the source phases.
// Taps with the right residue of k * dilation mod s serve a (phase, source phase) pair; they are equally spaced.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define DECONV_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define DECONV_HOST_DEVICE inline
#endif

namespace deconv {

// The taps t = 0 .. count-1 of one (phase, source phase) pair on one axis, in rising source order:
//   weight index  k = first_tap + t * tap_step
//   source pixel  (q + first_shift + t * shift_step) * source_step + plane   for the phase's q-th pixel.
struct AxisTaps {
  int count = 0;
  int first_tap = 0;
  int tap_step = 1;
  int first_shift = 0;
  int shift_step = 1;
};

// The constants of one axis that a kernel needs.
struct AxisGeometry {
  int source_size = 1;
  int result_size = 1;
  int kernel = 1;
  int stride = 1;
  int padding = 0;
  int dilation = 1;
  bool is_forward = true;

  DECONV_HOST_DEVICE int source_step() const { return is_forward ? 1 : stride; }
  DECONV_HOST_DEVICE int result_step() const { return is_forward ? stride : 1; }
  // Count only those that hold a pixel: the stride may exceed the image.
  DECONV_HOST_DEVICE int phases() const { return result_step() < result_size ? result_step() : result_size; }
  DECONV_HOST_DEVICE int planes() const { return source_step() < source_size ? source_step() : source_size; }
  // Pixels of a phase: q = 0 .. phase_size-1 stand for result pixels q * result_step + phase.
  DECONV_HOST_DEVICE int phase_size(int phase) const {
    return phase < result_size ? (result_size - phase - 1) / result_step() + 1 : 0;
  }
};

DECONV_HOST_DEVICE int gcd(int a, int b) {
  while (b != 0) {
    const int rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

DECONV_HOST_DEVICE int floor_div(int a, int b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

// The taps that serve result phase `phase` from source phase `plane`; one of the two is 0, by direction.
DECONV_HOST_DEVICE AxisTaps axis_taps(const AxisGeometry& axis, int phase, int plane) {
  AxisTaps taps;
  const int s = axis.stride, d = axis.dilation;
  const int common = gcd(s, d);
  taps.tap_step = s / common;
  taps.shift_step = d / common;
  // forward: k * d = o + p (mod s) for o = phase;  grad_input: k * d = plane + p (mod s).
  const int residue = (phase + plane + axis.padding) % s;
  int first = 0;
  while (first < taps.tap_step && first < axis.kernel && first * d % s != residue) ++first;
  if (first >= taps.tap_step || first >= axis.kernel) return taps;
  taps.count = (axis.kernel - 1 - first) / taps.tap_step + 1;
  if (axis.is_forward) {  // i = q + (phase + p - k d) / s falls with k: walk the taps backwards
    const int last = first + (taps.count - 1) * taps.tap_step;
    taps.first_shift = floor_div(phase + axis.padding - last * d, s);
    taps.first_tap = last;
    taps.tap_step = -taps.tap_step;
  } else {  // o = q s + (k d - p): plane + s * floor((k d - p) / s)
    taps.first_shift = floor_div(first * d - axis.padding, s);
    taps.first_tap = first;
  }
  return taps;
}

// The one (phase, source phase) pair that tap k serves, and its shift there.
struct TapPlace {
  int phase, plane, shift;
};
DECONV_HOST_DEVICE TapPlace tap_place(const AxisGeometry& axis, int k) {
  const int reach = k * axis.dilation - axis.padding;
  const int steps = floor_div(reach, axis.stride), residue = reach - steps * axis.stride;
  return axis.is_forward ? TapPlace{residue, 0, -steps} : TapPlace{0, residue, steps};
}

// The source pixel that tap k of a result pixel reads, or -1.
DECONV_HOST_DEVICE int source_pixel(const AxisGeometry& axis, int result, int k) {
  if (!axis.is_forward) {
    const int at = result * axis.stride - axis.padding + k * axis.dilation;
    return at >= 0 && at < axis.source_size ? at : -1;
  }
  const int reach = result + axis.padding - k * axis.dilation, at = reach / axis.stride;
  return reach >= 0 && at * axis.stride == reach && at < axis.source_size ? at : -1;
}

// The same without phases (forward: for stride 1). Tap k of result pixel q reads, if it exists, source pixel
//   q * source_step + window_shift.
DECONV_HOST_DEVICE int window_shift(const AxisGeometry& axis, int k) {
  return axis.is_forward ? axis.padding - k * axis.dilation : k * axis.dilation - axis.padding;
}

// With one input pixel the stride has no effect. Returns the axis with a stride so long that every tap has a phase or
// source phase of its own.
DECONV_HOST_DEVICE AxisGeometry without_idle_taps(AxisGeometry axis) {
  const int input = axis.is_forward ? axis.source_size : axis.result_size;
  const int output = axis.is_forward ? axis.result_size : axis.source_size;
  const int reach = axis.dilation * (axis.kernel - 1) + 1;
  if (input == 1) axis.stride = reach > output + axis.padding ? reach : output + axis.padding;
  return axis;
}

}  // namespace deconv
