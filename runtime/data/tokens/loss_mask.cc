#include "runtime/data/tokens/loss_mask.h"

#include <algorithm>
#include <string_view>

#include "runtime/base/error.h"

namespace millrace {

std::string LossMaskPath(const std::string& token_path) {
  constexpr std::string_view kBin = ".bin";
  const size_t ending = token_path.ends_with(kBin) ? kBin.size() : 0;
  return token_path.substr(0, token_path.size() - ending) + ".mask";
}

LossMask::LossMask(const std::string& token_path, int64_t tokens)
    : file_(LossMaskPath(token_path), ErrorCode::kData) {
  MR_REQUIRE(ErrorCode::kData, file_.size() == tokens,
             "{} has {} bytes; the mask of {}, which has {} tokens, is one byte each: {}",
             file_.path(), file_.size(), token_path, tokens,
             file_.size() < tokens ? "truncated?" : "trailing bytes, or another file's mask");
}

void LossMask::Read(int64_t first, int64_t n, uint8_t* out) const {
  file_.Read(first, out, n);
  const int64_t bad = std::find_if(out, out + n, [](uint8_t byte) { return byte > 1; }) - out;
  MR_REQUIRE(ErrorCode::kData, bad == n,
             "{}: byte offset {} is {}; 1 (the token counts as a target) and 0 are allowed",
             file_.path(), first + bad, out[bad]);
}

}  // namespace millrace
