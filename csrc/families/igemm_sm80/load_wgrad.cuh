// Operands of igemm_sm80's grad_weight in shared memory: the pixels of a step, a row of channels each. Holds every
// pixel of the input, and the pixels of grad_output that any tap of the block meets. Zeros outside the image and past
// the last channel.
#pragma once

#include "families/igemm_sm80/params.cuh"

namespace deconv::sm80 {

// A pixel of a step: elements, rows and columns from the step's first pixel.
struct alignas(kSm80PlaceBytes) Place {
  int64_t offset;
  int h, w;
};

template <class T>
struct WeightOperand {
  const T* data;  // (batch, groups * channels, height, width), any strides, in elements
  int64_t n, c, h, w, group;
  int channels;  // per group
  int size_h, size_w;
  int step_h, step_w;  // rows and columns from one pixel of the input to the next
  bool vector;  // 16 bytes of adjacent channels at once
  Divisor pieces;  // of 16 bytes in a staged row
  int at_once;  // rows that a block's threads copy at once, a piece each
};

template <class T>
struct WeightParams {
  WeightOperand<T> x, y;
  T* result;  // (groups * m, n, kernel height, kernel width)
  float* partial;  // (splits, groups, taps, m, n), m and n padded to whole tiles; null without splits
  int64_t result_m, result_n, result_h, result_w;
  int channels_m, channels_n, groups, kernel_h, kernel_w;
  int batch;
  Divisor tiles_w, tiles_h;
  WgradSm80Tap taps[2][kSm80MaxKernel];
  WgradSm80Plan plan;
};

// The first pixel of a step, in the input.
struct WeightStep {
  int n, h, w;
};
template <class T>
__device__ __forceinline__ WeightStep find_step(const WeightParams<T>& p, int step) {
  const int line = p.tiles_w.quotient(step), n = p.tiles_h.quotient(line);
  return {n * p.plan.pixels.n, (line - n * p.plan.tiles.h) * p.plan.pixels.h,
          (step - line * p.plan.tiles.w) * p.plan.pixels.w};
}

// One operand of one block.
template <class T>
class WeightSource {
 public:
  // width, first: channels of the block's tile, and its first channel; image_rows: those of `rows` in one image.
  __device__ __forceinline__ WeightSource(const WeightOperand<T>& operand, const WgradSm80Plan& plan, int batch,
                                          int group, int first, int width, int pitch, int rows, int image_rows,
                                          const Place* table)
      : o(operand),
        plan_(plan),
        batch_(batch),
        channels_(operand.channels - first),
        width_(width),
        pitch_(pitch),
        rows_(rows),
        image_rows_(image_rows),
        by_rows_(rows),
        table_(table),
        base_(operand.data + group * operand.group + first * operand.c) {}

  // True if cp.async loads it: 16 bytes at once, or 4 bytes of float32. Otherwise (16-bit) through registers.
  __device__ __forceinline__ bool copies() const { return sizeof(T) == 4 || o.vector; }

  // Issues this thread's copies of a step.
  __device__ __forceinline__ void copy(const WeightStep& step, uint32_t to) const {
    const Seen seen = see(step);
    if (o.vector) {
      copy_pieces(seen, to);
    } else if constexpr (sizeof(T) == 4) {
      copy_words(seen, to);
    }
  }

  // Units of 16 bytes through registers, adjacent threads on adjacent pixels: loads now, stores later.
  struct Unit {
    Pack<T, kPiece<T>> pack;
    uint32_t to;
  };
  __device__ __forceinline__ int units() const { return copies() ? 0 : rows_ * (width_ / kPiece<T>); }
  __device__ __forceinline__ Unit load(int index, const WeightStep& step, uint32_t to) const {
    const Seen seen = see(step);
    const int piece = by_rows_.quotient(index), row = index - piece * rows_;
    Unit unit;
    unit.to = to + row * pitch_ + piece * 16;
    const Place at = place(row);
    const int channel = piece * kPiece<T>;
    const int channels = seen.has(row, at) ? channels_ - channel : 0;
    const T* from = seen.from + at.offset + channel * o.c;
#pragma unroll
    for (int i = 0; i < kPiece<T>; ++i, from += o.c) unit.pack.value[i] = i < channels ? *from : narrow<T>(0.0f);
    return unit;
  }
  __device__ __forceinline__ static void store(const Unit& unit) {
    store_shared(unit.to, reinterpret_cast<const uint4&>(unit.pack));
  }

 private:
  // The operand from a step's first pixel on, and which of the staged pixels exist.
  struct Seen {
    const T* from;
    int h, w, rows;
    unsigned size_h, size_w;
    __device__ __forceinline__ bool has(int row, const Place& at) const {
      return row < rows & static_cast<unsigned>(at.h + h) < size_h & static_cast<unsigned>(at.w + w) < size_w;
    }
  };
  __device__ __forceinline__ Seen see(const WeightStep& step) const {
    const int h = step.h * o.step_h, w = step.w * o.step_w;
    return {base_ + step.n * o.n + h * o.h + w * o.w,
            h,
            w,
            min(plan_.pixels.n, batch_ - step.n) * image_rows_,
            static_cast<unsigned>(o.size_h),
            static_cast<unsigned>(o.size_w)};
  }
  __device__ __forceinline__ Place place(int row) const {
    const uint4 bits = *reinterpret_cast<const uint4*>(table_ + row);  // one load
    return reinterpret_cast<const Place&>(bits);
  }

  __device__ __forceinline__ void copy_pieces(const Seen& seen, uint32_t shared) const {
    const int first = o.pieces.quotient(threadIdx.x), piece = threadIdx.x - first * static_cast<int>(o.pieces.divisor);
    if (first >= o.at_once) return;
    const int channel = piece * kPiece<T>;
    const int bytes = max(0, min(kPiece<T>, channels_ - channel)) * static_cast<int>(sizeof(T));
    const T* const from = bytes > 0 ? seen.from + channel : o.data;
    constexpr int kAhead = 4;
    const int step = o.at_once, to_step = step * pitch_;
    uint32_t to = shared + first * pitch_ + piece * 16;
    for (int row = first; row < rows_; row += kAhead * step, to += kAhead * to_step) {
      Place at[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) at[i] = place(min(row + i * step, rows_ - 1));
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (row + i * step >= rows_) break;
        const bool exists = bytes > 0 & seen.has(row + i * step, at[i]);
        copy_16(to + i * to_step, exists ? from + at[i].offset : o.data, exists ? bytes : 0);
      }
    }
  }

  // A warp copies eight pixels x four channels: whole sectors of columns.
  __device__ __forceinline__ void copy_words(const Seen& seen, uint32_t shared) const {
    const int lane = threadIdx.x % 32, channel = lane / 8;
    const int64_t step = 4 * o.c;
    for (int row = threadIdx.x / 32 * 8 + lane % 8; row < rows_; row += static_cast<int>(blockDim.x) / 4) {
      const Place at = place(row);
      const int exist = seen.has(row, at) ? channels_ - channel : 0;
      const T* from = seen.from + at.offset + channel * o.c;
      uint32_t to = shared + row * pitch_ + channel * 4;
#pragma unroll 4
      for (int i = 0; i < width_; i += 4, from += step, to += 16) {
        copy_4(to, i < exist ? from : o.data, i < exist ? 4 : 0);
      }
    }
  }

  const WeightOperand<T>& o;
  const WgradSm80Plan& plan_;
  int batch_, channels_, width_, pitch_, rows_, image_rows_;
  SmallDivisor by_rows_;
  const Place* table_;
  const T* base_;  // the tile's first channel
};

}  // namespace deconv::sm80
