// Ranks that are configured differently would wait for each other without end: they are told before
// anything is shared but the launcher's transport.
#pragma once

#include <string>
#include <vector>

#include "comm/communicator.h"
#include "kernels/ops/cost.h"
#include "runtime/config/load.h"

namespace millrace {

// A rank's own view: its configuration and the backend it would use, or what is wrong with them.
struct OwnConfiguration {
  std::string mistakes;  // "": none, and the others are set
  std::string keys;      // ConfigToJson
  Backend backend = Backend::kCpu;
};

// What keeps ranks from starting, the same text on every rank; "" for nothing. data.path,
// data.val_path, model.init_from and execution.tuning_file may differ: hosts keep files where they
// like. `ranks` by rank.
std::string WhyNotOne(const std::vector<OwnConfiguration>& ranks);

// A collective. Error(kConfig) on every rank, with the text of WhyNotOne.
void RequireOneConfiguration(Communicator& world, const OwnConfiguration& own);

}  // namespace millrace
