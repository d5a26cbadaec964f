// The ids and masks of all of a run's files, looked at before the first step: what is behind the
// part that opening them checks (token_source.h). Each rank takes its share, where all have the
// same files before them; where hosts have copies of their own, each rank checks all of its own.
//
// That files were found good is remembered in the run's folder, by their paths, sizes, times of
// change, beginnings and ends: a run that goes on does not read them again.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "comm/communicator.h"
#include "runtime/data/file_system.h"
#include "runtime/run/data/run_data.h"

namespace millrace {

struct DataCheck {
  int64_t bytes = 0;         // behind what was checked when the files were opened
  bool remembered = false;   // they were found good before, and nothing was read
  std::string verdict = {};  // for Remember; "" where bytes is 0
};

// Collective. `tick` is called now and then. Errors: kData, on all ranks the lowest rank's.
DataCheck CheckRunData(const RunData& data, const std::string& run_dir, Communicator& ranks,
                       const std::function<void()>& tick);

// One rank's, once the folder is there.
void Remember(const DataCheck& check, const std::string& run_dir, FileSystem& files);

}  // namespace millrace
