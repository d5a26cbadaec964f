// How far a run is in each of the sources that it blends (data.sources).
#pragma once

#include <cstdint>
#include <string>

namespace millrace {

struct SourceFigures {
  std::string name;
  int64_t samples = 0;  // drawn from it so far, by all ranks
  double epochs = 0;    // samples over its windows
  bool operator==(const SourceFigures&) const = default;
};

struct SourceLoss {
  std::string name;
  double loss = 0;  // held out
  bool operator==(const SourceLoss&) const = default;
};

}  // namespace millrace
