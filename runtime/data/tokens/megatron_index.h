// The index of a Megatron dataset: NAME.idx beside NAME.bin, whose ids follow each other as they
// are in the file. Little endian:
//
//   bytes 0 to 8    "MMIDIDX\0\0"
//   u64 version     1
//   u8  dtype       1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 6 f64, 7 f32, 8 u16
//   u64 sequences   S, at least 1
//   u64 marks       D: documents and one
//   i32 [S]         length of each sequence, in ids
//   i64 [S]         where each begins in the .bin, in bytes
//   i64 [D]         the sequence that each document begins with; the last is S
//   i8  [S]         mode, of a multimodal dataset only: not read
//
// Source  megatron/core/datasets/indexed_dataset.py of Megatron-LM.
// Errors  kData, with the file's name, the offset, what was found and what is expected.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/data/input_file.h"

namespace millrace {

struct MegatronIndex {
  int64_t bytes_per_token = 0;  // 1, 2, 4 or 8
  bool is_signed = false;
  int64_t sequences = 0, documents = 0, tokens = 0;

  // Where in the file the sequences' places in the .bin are, and the documents' first sequences.
  int64_t OffsetsAt() const noexcept;
  int64_t DocumentsAt() const noexcept;
};

// "x/NAME.bin" -> "x/NAME.idx"; "" for another name.
std::string MegatronIndexPath(const std::string& bin_path);

// All of it is checked: sizes against the file's, dtype, lengths, that sequences lie one behind the
// other and are all of the .bin (`bin_bytes`, of `bin_path`), that documents ascend.
MegatronIndex ReadMegatronIndex(const InputFile& index, const std::string& bin_path,
                                int64_t bin_bytes);

}  // namespace millrace
