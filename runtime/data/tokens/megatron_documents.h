// Where documents begin in the ids of a Megatron dataset, as its .idx says. Of the index one entry
// in 256 is kept in memory; the others are read when they are asked for.
//
// Threads  Marks may be called from several threads at once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/data/input_file.h"
#include "runtime/data/tokens/megatron_index.h"

namespace millrace {

class MegatronDocuments {
 public:
  // `index` is ReadMegatronIndex's of that file, which has checked all of it.
  MegatronDocuments(const std::string& index_path, const MegatronIndex& index);

  // marks[i] |= bit where a document begins with id first + i, for i in [0, n). Documents without
  // an id begin nowhere.
  void Mark(int64_t first, int64_t n, uint8_t bit, uint8_t* marks) const;

 private:
  int64_t BeginOf(int64_t document) const;

  InputFile file_;
  MegatronIndex index_;
  std::vector<int64_t> begins_;  // of documents 0, 256, 512, ...
};

}  // namespace millrace
