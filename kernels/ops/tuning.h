// Which algorithm a GEMM library shall use for which product, as measured on one kind of device: a
// value that is measured once, broadcast, hashed and kept with a run, so that the next run computes
// the same bits and measures nothing.
//
// The algorithm is opaque here: bytes of the library that made it, valid for that version only.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "kernels/ops/matmul_key.h"

namespace millrace {

struct TunedMatmul {
  // Hex digits, two per byte; none: a product and a kernel behind it are faster.
  std::string algorithm;
  std::string description;          // for people: "id 66, tile 23, stages 36, split-K 1, ..."
  double microseconds = 0;          // of one product, operands not in the cache
  double default_microseconds = 0;  // the same with the library's own first choice
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
  // the times. 32 hex digits.
  std::string Hash() const;

  bool operator==(const TuningTable&) const = default;
};

}  // namespace millrace
