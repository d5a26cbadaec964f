#include "runtime/data/tokens/megatron_documents.h"

#include <algorithm>

#include "runtime/base/error.h"

namespace millrace {
namespace {

constexpr int64_t kKeptEvery = 256;

}  // namespace

MegatronDocuments::MegatronDocuments(const std::string& index_path, const MegatronIndex& index)
    : file_(index_path, ErrorCode::kData), index_(index) {
  for (int64_t d = 0; d < index_.documents; d += kKeptEvery) begins_.push_back(BeginOf(d));
}

// The id that the document's first sequence begins with; one past the last id where only empty
// documents follow.
int64_t MegatronDocuments::BeginOf(int64_t document) const {
  int64_t sequence = 0, offset = 0;
  file_.Read(index_.DocumentsAt() + document * int64_t{sizeof(sequence)}, &sequence,
             sizeof(sequence));
  MR_REQUIRE(ErrorCode::kData, sequence >= 0 && sequence <= index_.sequences,
             "{} changed while in use: document {} begins with sequence {} of {}", file_.path(),
             document, sequence, index_.sequences);
  if (sequence == index_.sequences) return index_.tokens;
  file_.Read(index_.OffsetsAt() + sequence * int64_t{sizeof(offset)}, &offset, sizeof(offset));
  return offset / index_.bytes_per_token;
}

void MegatronDocuments::Mark(int64_t first, int64_t n, uint8_t bit, uint8_t* marks) const {
  // The first document that begins at `first` or behind it: between two that are kept.
  const auto kept = std::lower_bound(begins_.begin(), begins_.end(), first) - begins_.begin();
  int64_t document = std::max<int64_t>(0, kept - 1) * kKeptEvery;
  for (int64_t end = std::min(kept * kKeptEvery, index_.documents); document < end;) {
    const int64_t middle = document + (end - document) / 2;
    if (BeginOf(middle) < first)
      document = middle + 1;
    else
      end = middle;
  }
  const int64_t end = std::min(first + n, index_.tokens);
  for (; document < index_.documents; ++document) {
    const int64_t begin = BeginOf(document);
    if (begin >= end) break;
    if (begin >= first) marks[begin - first] |= bit;  // it was checked, but the file may change
  }
}

}  // namespace millrace
