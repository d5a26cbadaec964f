// Which tokens of a file of token ids count as targets: NAME.mask beside NAME.bin, one byte for
// each token and nothing else. 1: predicting it is learned; 0: it is only read. `millrace tokenize`
// makes one of conversations; any program can (in numpy: mask.astype('uint8').tofile).
//
// Errors   kData, with the file's name, what was found and where, and what is expected.
// Threads  Read may be called from several threads at once.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/data/input_file.h"

namespace millrace {

// "x/NAME.bin" -> "x/NAME.mask"; of another name "x/NAME" -> "x/NAME.mask".
std::string LossMaskPath(const std::string& token_path);

class LossMask {
 public:
  // Of `token_path`, which has `tokens` ids: as many bytes are expected.
  LossMask(const std::string& token_path, int64_t tokens);

  // out[i] = the byte of token first + i, 0 or 1; another one is an error that names its offset.
  void Read(int64_t first, int64_t n, uint8_t* out) const;

  const InputFile& file() const noexcept { return file_; }

 private:
  InputFile file_;
};

}  // namespace millrace
