// Operands of a kernel test, in host memory: typed strided views over blocks with guard
// bytes, filled with poison where no view writes. `Subject` (subject.h) copies them to the
// device under test and back.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <random>
#include <vector>

#include "runtime/base/dtype.h"
#include "runtime/base/step_scalars.h"
#include "runtime/base/tensor_view.h"

namespace millrace::test {

using Random = std::mt19937_64;

// Uniform in [low, high], both included.
int64_t Pick(Random& random, int64_t low, int64_t high);
bool Flip(Random& random);
// bf16.
DType FloatOf16Bits();
// f32 or that.
DType PickFloat(Random& random);

// While one lives, both give f16 for bf16.
class F16ForBF16 {
 public:
  F16ForBF16();
  ~F16ForBF16();
  F16ForBF16(const F16ForBF16&) = delete;
  F16ForBF16& operator=(const F16ForBF16&) = delete;
};

// Index of an element, in the order of dims; entries past the rank are 0.
using Index = std::array<int64_t, kMaxRank>;

// f(index) for every element, last dimension fastest.
template <class F>
void ForEach(const Layout& layout, F&& f) {
  Index i{};
  for (int64_t n = layout.numel(); n > 0; --n) {
    f(i);
    for (int d = layout.rank - 1; d >= 0; --d) {
      if (++i[d] < layout.dims[d]) break;
      i[d] = 0;
    }
  }
}

std::byte* AddressOf(const TensorView& view, const Index& i);
double Get(const TensorView& view, int64_t i = 0, int64_t j = 0, int64_t k = 0, int64_t l = 0);
double Get(const TensorView& view, const Index& i);
// Rounds to the view's dtype.
void Set(const TensorView& view, const Index& i, double value);

enum class Strides {
  kDense,
  kPadded,      // every dimension but the last has room to spare
  kTransposed,  // 2-D, column-major, with room to spare
};

class Memory {
 public:
  static constexpr int64_t kGuard = 64;

  struct Block {
    std::unique_ptr<std::byte[]> data;
    int64_t bytes;      // guards included
    int64_t alignment;  // of an element
  };

  // A new block; every byte is 0xff, a NaN in every float type. Absent-view tests use TensorView{}.
  TensorView New(DType dtype, std::initializer_list<int64_t> dims,
                 Strides strides = Strides::kDense);
  // The same with uniform values in [-scale, scale].
  TensorView NewRandom(Random& random, DType dtype, std::initializer_list<int64_t> dims,
                       Strides strides = Strides::kDense, double scale = 1);
  // i32 tokens in [low, high).
  TensorView NewTokens(Random& random, std::initializer_list<int64_t> dims, int64_t low,
                       int64_t high, Strides strides = Strides::kDense);
  TensorView NewScalars(const StepScalars& scalars);
  // A new block with the view's dtype, dims and strides.
  TensorView NewLike(const TensorView& view);
  // A copy with the same dtype and values, dense.
  TensorView Clone(const TensorView& view);

  // The block that holds the view's first element.
  Block& BlockOf(const TensorView& view);

 private:
  TensorView NewBlock(Layout layout);
  std::vector<std::unique_ptr<Block>> blocks_;
};

void FillRandom(Random& random, const TensorView& view, double scale);
const StepScalars& ScalarsOf(const TensorView& view);

// All elements equal bit for bit.
bool SameBits(const TensorView& a, const TensorView& b);

}  // namespace millrace::test
