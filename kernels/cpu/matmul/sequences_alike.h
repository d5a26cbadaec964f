// Whether a sequence has other bits where it lies elsewhere in a microbatch.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/base/dtype.h"

namespace millrace::cpu {

// A product of a training forward: a [rows, depth], row-major, by b [depth, columns]. Its rows are
// those of a microbatch, sequence by sequence, or a part of as many of them as `rows` says.
struct WholeProduct {
  int64_t rows, columns, depth;
  DType a, b;
  bool b_transposed;
  auto operator<=>(const WholeProduct&) const = default;
};

struct RowOfSequence {
  int64_t sequence, position;
};

// A row of `sequences` of so many positions that this process's BLAS forms in another way than the
// row of the same position in the first sequence (alike.h): the first such, in some of the columns.
// None: a sequence's bits do not depend on its place. By trial, once per process and sizes.
// Threads  Callable from several threads at once.
std::optional<RowOfSequence> FirstUnlike(const WholeProduct& product, int64_t sequences,
                                         int64_t positions);

}  // namespace millrace::cpu
