// Megatron datasets for tests: the bytes of an index, from its parts.
#pragma once

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "tests/runtime/data/temp_dir.h"

namespace millrace {

struct MegatronParts {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  uint64_t version = 1;
  uint8_t dtype = 8;  // uint16
  std::vector<int32_t> lengths = {};
  std::vector<int64_t> offsets = {};  // empty: as they follow from lengths of `bytes` each
  std::vector<int64_t> documents = {};
  int64_t bytes = 2;
  std::string tail = {};

  std::string Index() const {
    std::vector<int64_t> begins = offsets;
    for (int64_t at = 0; const int32_t length : lengths) {
      if (offsets.empty()) begins.push_back(at);
      at += length * bytes;
    }
    return magic + AsBytes(std::vector{version}) + AsBytes(std::vector{dtype}) +
           AsBytes(std::vector<uint64_t>{lengths.size(), documents.size()}) + AsBytes(lengths) +
           AsBytes(begins) + AsBytes(documents) + tail;
  }
};

}  // namespace millrace
