// Of OpenBLAS 0.3.21's products for Haswell, which the target's environment asks for: of twelve
// rows six are formed in one way and six in another, what is left of four and eight in a third.
#include "kernels/cpu/matmul/sequences_alike.h"

#include <catch2/catch.hpp>
#include <utility>

namespace millrace::cpu {
namespace {

using Place = std::pair<int64_t, int64_t>;  // sequence, position
constexpr Place kNone(-1, -1);

Place Unlike(int64_t rows, int64_t sequences, int64_t positions, int64_t columns = 64,
             DType b = DType::kF32) {
  const auto found = FirstUnlike({rows, columns, 96, DType::kF32, b, true}, sequences, positions);
  return found ? Place(found->sequence, found->position) : kNone;
}

TEST_CASE("the first row in another way than its position's in the first sequence") {
  CHECK(Unlike(30, 1, 30) == kNone);
  CHECK(Unlike(24, 2, 12) == kNone);
  CHECK(Unlike(20, 2, 10) == Place(1, 0));  // row 10: of the second six
  CHECK(Unlike(16, 2, 8) == Place(1, 0));
  CHECK(Unlike(42, 3, 14) == Place(1, 4));  // row 18
}

TEST_CASE("tiles of 512 rows begin anew, and end in rows that are left over") {
  // Of the first tile the last eight are left over: rows 504 to 511, of sequence 42.
  CHECK(Unlike(600, 50, 12) == Place(42, 0));
  CHECK(Unlike(600, 42, 12) == kNone);
  // Rows by strips of 24.
  CHECK(Unlike(24, 50, 12) == kNone);
  // A second tile of columns, of an operand that is converted.
  CHECK(Unlike(24, 2, 12, 576, DType::kBF16) == kNone);
  CHECK(Unlike(20, 2, 10, 576, DType::kBF16) == Place(1, 0));
}

}  // namespace
}  // namespace millrace::cpu
