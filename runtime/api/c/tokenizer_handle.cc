// The functions of mr_tokenizer: arguments in, exceptions ended, results out.
#include "runtime/api/c/tokenizer_handle.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "runtime/api/c/millrace.h"
#include "runtime/api/c/status.h"

using millrace::CallError;
using millrace::Guarded;
using millrace::OpenedTokenizer;
using millrace::TokenizerHandles;

namespace {

void RequirePointer(const void* pointer, const char* name) {
  if (pointer == nullptr) throw CallError(MR_INVALID_ARGUMENT, fmt::format("{} is NULL", name));
}

void RequireArray(const void* first, int64_t count, const char* name, const char* length) {
  if (count < 0 || (first == nullptr && count > 0))
    throw CallError(MR_INVALID_ARGUMENT,
                    fmt::format("{} is {}, and {} {}", name, first == nullptr ? "NULL" : "not NULL",
                                length, count));
}

// As much as there is room for.
template <class From, class To>
void Give(const From& all, To* to, int64_t room, int64_t* count) {
  std::copy_n(all.data(), std::min(room, std::ssize(all)), to);
  *count = std::ssize(all);
}

}  // namespace

mr_status* mr_tokenizer_open(const char* path, mr_tokenizer** out) {
  if (out != nullptr) *out = nullptr;
  return Guarded([&] {
    RequirePointer(path, "path");
    RequirePointer(out, "out");
    std::filesystem::path file(path);
    if (std::filesystem::is_directory(file)) file /= "tokenizer.json";
    *out = TokenizerHandles::Get().Add(std::make_shared<OpenedTokenizer>(file.string()));
  });
}

void mr_tokenizer_free(mr_tokenizer* tokenizer) { TokenizerHandles::Get().Remove(tokenizer); }

mr_status* mr_tokenizer_encode(mr_tokenizer* tokenizer, const char* text, int64_t bytes,
                               int32_t flags, int32_t* tokens, int64_t room, int64_t* count) {
  return Guarded([&] {
    const auto opened = TokenizerHandles::Get().Require(tokenizer, "tokenizer");
    RequirePointer(count, "count");
    RequireArray(text, bytes, "text", "bytes");
    RequireArray(tokens, room, "tokens", "room");
    if ((flags & ~(MR_TEXT_PLAIN | MR_TEXT_ALONE)) != 0)
      throw CallError(
          MR_INVALID_ARGUMENT,
          fmt::format("flags is {}; allowed are MR_TEXT_PLAIN and MR_TEXT_ALONE", flags));
    millrace::EncodeOptions options;
    if ((flags & MR_TEXT_PLAIN) != 0) options.special = millrace::SpecialText::kPlain;
    if ((flags & MR_TEXT_ALONE) != 0) options.around = millrace::AroundText::kNothing;
    const std::lock_guard lock(opened->one_text);
    const std::string_view whole(text == nullptr ? "" : text, static_cast<size_t>(bytes));
    Give(opened->encoder.Encode(whole, options), tokens, room, count);
  });
}

mr_status* mr_tokenizer_decode(mr_tokenizer* tokenizer, const int32_t* tokens, int64_t count,
                               int32_t skip_special, char* text, int64_t room, int64_t* bytes) {
  return Guarded([&] {
    const auto opened = TokenizerHandles::Get().Require(tokenizer, "tokenizer");
    RequirePointer(bytes, "bytes");
    RequireArray(tokens, count, "tokens", "count");
    RequireArray(text, room, "text", "room");
    if (skip_special != 0 && skip_special != 1)
      throw CallError(MR_INVALID_ARGUMENT,
                      fmt::format("skip_special is {}; allowed are 0 and 1", skip_special));
    Give(opened->tokenizer.Decode(
             {tokens, static_cast<size_t>(count)},
             skip_special == 1 ? millrace::SpecialTokens::kSkip : millrace::SpecialTokens::kKeep),
         text, room, bytes);
  });
}

mr_status* mr_tokenizer_find(mr_tokenizer* tokenizer, const char* token, int32_t* id) {
  return Guarded([&] {
    const auto opened = TokenizerHandles::Get().Require(tokenizer, "tokenizer");
    RequirePointer(token, "token");
    RequirePointer(id, "id");
    *id = opened->tokenizer.AddedTokenId(token).value_or(-1);
  });
}
