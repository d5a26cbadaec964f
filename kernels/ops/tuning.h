// Which algorithm a GEMM library shall use for which product, as measured on one kind of device: a
// value that is measured once, broadcast, hashed and kept with a run, so that the next run computes
// the same bits and measures nothing.
//
// The algorithm is opaque here: bytes of the library that made it, valid for that version only.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/ops/matmul_key.h"

namespace millrace {

// What one algorithm took, of those that were compared.
struct MeasuredAlgorithm {
  std::string description;  // as TunedMatmul::description
  double microseconds = 0;  // of one product, in short turns
  // Of hot turns, in which it alone ran back to back until the GPU had the clocks that it keeps;
  // none: it had no such turn, or the GPU does not say.
  std::optional<double> hot_microseconds = {}, sm_mhz = {};
  std::optional<double> millijoules = {};  // that the whole GPU took for one product
  double millijoules_off = 0;              // by so much at most, by the counter's ticks
  bool operator==(const MeasuredAlgorithm&) const = default;
};

struct TunedMatmul {
  // Hex digits, two per byte; none: a product and a kernel behind it are faster.
  std::string algorithm;
  std::string description;  // for people: "id 66, tile 23, stages 36, split-K 1, ..."
  // Of one product, operands not in the cache: in hot turns, where the default had them.
  double microseconds = 0;
  double default_microseconds = 0;  // the same with the library's own first choice
  // What was compared last; tables of older versions have none.
  std::vector<MeasuredAlgorithm> measured = {};
  // Why none of these has millijoules; "": those that had hot turns have.
  std::string no_joules = {};
  bool operator==(const TunedMatmul&) const = default;
};

struct TuningTable {
  std::string device;           // name of the GPU
  std::string library_version;  // "cuBLASLt 130100"
  std::map<MatmulKey, TunedMatmul> matmuls;

  // JSON, one line per product. FromText throws Error(kData), which names
  // `origin`, on anything else.
  std::string ToText() const;
  static TuningTable FromText(std::string_view text, const std::string& origin);

  // XXH3-128 of what decides results: device, library, products and algorithms, not
  // times and joules. 32 hex digits.
  std::string Hash() const;

  bool operator==(const TuningTable&) const = default;
};

}  // namespace millrace
