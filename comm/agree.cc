#include "comm/agree.h"

#include <string>
#include <string_view>
#include <vector>

namespace millrace {
namespace {

// Told from what ranks exchange elsewhere.
constexpr std::string_view kSign = "agree:";

// The code as one letter, and the words; nothing where it went well.
std::string Packed(const std::optional<Error>& error) {
  std::string text(kSign);
  if (error) text += static_cast<char>('a' + static_cast<int>(error->code()));
  if (error) text += error->what();
  return text;
}

std::optional<Error> Unpacked(const std::string& text, int rank) {
  MR_REQUIRE(ErrorCode::kComm, text.starts_with(kSign),
             "rank {} is in another exchange than this one: the ranks make other calls, or in "
             "another order",
             rank);
  if (text.size() == kSign.size()) return std::nullopt;
  return Error(static_cast<ErrorCode>(text[kSign.size()] - 'a'), text.substr(kSign.size() + 1));
}

std::optional<Error> FailureOf(const std::function<void()>& step) {
  try {
    step();
  } catch (const Error& error) {
    return error;
  } catch (const std::exception& error) {
    return Error(ErrorCode::kInternal, error.what());
  }
  return std::nullopt;
}

}  // namespace

std::optional<RankFailure> FirstFailure(Communicator& ranks, const std::optional<Error>& own) {
  const std::vector<std::string> all = ranks.HostAllGather(Packed(own));
  for (size_t r = 0; r < all.size(); ++r)
    if (const auto error = Unpacked(all[r], static_cast<int>(r)))
      return RankFailure{static_cast<int>(r), *error};
  return std::nullopt;
}

std::optional<RankFailure> FirstFailure(Communicator& ranks, const std::function<void()>& step) {
  return FirstFailure(ranks, FailureOf(step));
}

void OnLeader(Communicator& ranks, const std::function<void()>& step) {
  const std::optional<Error> own = ranks.rank() == 0 ? FailureOf(step) : std::nullopt;
  if (const auto heard = Unpacked(ranks.HostBroadcast(Packed(own), 0), 0)) throw *heard;
}

}  // namespace millrace
